"""Shards in Parquet: a row group is a unit.

Columns stand under their own names and, where Parquet has them, their own types. What it lacks is
lowered: seconds to milliseconds, `date64` to a timestamp, lists of fixed size (tensors of fixed
shape too) to lists, narrow decimals to wide ones and those of an odd scale to their bytes, an
interval to its 16 bytes, a struct without fields to one with a null. Encoded media are stored
plain (no compression or statistics), and so are the few numbers beside them; all else with zstd,
without dictionaries. The file's key-value metadata hold the shard's own, and `geodata.schema` as
JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from geodata.canonical import row_nbytes
from geodata.errors import CorruptShard, GeodataError, ObjectNotFound, SchemaError
from geodata.formats.base import VERSION_KEY, UnitRange, check_version, stamped
from geodata.formats.lowering import Lowering, retype
from geodata.formats.units import UnitCutter, one_batch, select, starts_of, take_by_unit
from geodata.schema import from_json, media_of, to_json

ZSTD_LEVEL = 3
"""Text of 98 languages in files of 7 KB, in their order, shrinks by 71 %; at level 1 by 66 %."""

_SCHEMA = "geodata.schema"
_ARROW = "ARROW:schema"


class ParquetFormat:
    """The format `parquet`."""

    name = "parquet"
    suffix = ".parquet"
    index_suffix: str | None = None

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> ParquetWriter:
        """Start a shard."""
        units = UnitCutter(schema, row_nbytes, unit_bytes, unit_slots)
        return ParquetWriter(path, schema, units, metadata)

    def open(self, path: Path, index: Path | None = None) -> ParquetReader:  # noqa: ARG002
        """Open a shard; the footer is its index."""
        return ParquetReader(path)

    def write_index(self, path: Path, index: Path) -> None:  # noqa: ARG002
        """Refuse: the footer is the index."""
        raise ValueError("a Parquet shard has no index beside it")

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:  # noqa: ARG002
        """Return the byte range of each row group, from its first page to its last."""
        with _corrupt(path):
            footer = pq.read_metadata(path)
            return [_range(footer.row_group(unit)) for unit in range(footer.num_row_groups)]

    def row_nbytes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the uncompressed Arrow bytes of each row."""
        return row_nbytes(batch)


class ParquetWriter:
    """Writes one Parquet shard."""

    def __init__(
        self, path: Path, schema: pa.Schema, units: UnitCutter, metadata: Mapping[str, str]
    ):
        self.nbytes = 0
        self._path = path
        self._units = units
        self._lowerings = _lowerings(schema)
        self._stored = _stored_schema(schema, self._lowerings)
        self._sink = pa.OSFile(str(path), "wb")
        self._file = pq.ParquetWriter(self._sink, self._stored, **_layout(schema, self._stored))
        entries = {**stamped(metadata), _SCHEMA: json.dumps(to_json(schema))}
        self._file.add_key_value_metadata(entries)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit and the footer."""
        for unit in self._units.flush():
            self._write_unit(unit)
        self._file.close()
        self.nbytes = self._sink.tell()
        self._sink.close()

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        unit = one_batch(batches)
        arrays = [_lower(*pair) for pair in zip(self._lowerings, unit, unit.schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=self._stored)
        self._file.write_table(table, row_group_size=unit.num_rows)
        self.nbytes = self._sink.tell()


class ParquetReader:
    """Reads one Parquet shard; opens it anew in each process that reads."""

    def __init__(self, path: Path):
        self._path = path
        self._open()
        footer = self._file.metadata
        with _corrupt(path):
            entries = {k.decode(): v.decode() for k, v in (footer.metadata or {}).items()}
            check_version(entries.get(VERSION_KEY), path.name)
            self.schema: pa.Schema = from_json(json.loads(entries.pop(_SCHEMA)))
        self.metadata: Mapping[str, str] = {k: v for k, v in entries.items() if k != _ARROW}
        self._lowerings = dict(zip(self.schema.names, _lowerings(self.schema), strict=True))
        self.num_rows: int = footer.num_rows
        self.unit_slots: Sequence[int] = [
            footer.row_group(unit).num_rows for unit in range(footer.num_row_groups)
        ]
        self._starts = starts_of(self.unit_slots)

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a row group."""
        schema = select(self.schema, columns)
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        file = self._opened()
        with _corrupt(self._path, unit=unit):
            table = file.read_row_group(unit, schema.names, use_threads=False)
            stored = one_batch(table.select(schema.names).to_batches())
            arrays = [
                self._lowerings[name].restore(array)
                for name, array in zip(schema.names, stored, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, decoding each row group that holds one once."""
        schema = select(self.schema, columns)
        if len(rows) == 0:
            nothing = [pa.nulls(0, field.type) for field in schema]
            return pa.RecordBatch.from_arrays(nothing, schema=schema)
        return take_by_unit(lambda unit: self.read_unit(unit, columns), self._starts, rows)

    def close(self) -> None:
        """Release the file."""
        self._file.close(force=True)
        self._pid = -1

    def _opened(self) -> pq.ParquetFile:
        if self._pid == -1:
            raise ValueError("the shard is closed")
        if self._pid != os.getpid():
            self._open()
        return self._file

    def _open(self) -> None:
        with _corrupt(self._path):
            self._file = pq.ParquetFile(self._path, memory_map=True, pre_buffer=False)
        self._pid = os.getpid()


@contextmanager
def _corrupt(path: Path, unit: int | None = None) -> Iterator[None]:
    """Name the shard instead of what Parquet or JSON stumbled over."""
    try:
        yield
    except GeodataError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound("no such shard", shard=path.name) from None
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        text = f"not readable as a Parquet shard ({type(error).__name__})"
        raise CorruptShard(text, shard=path.name, unit=unit) from None


def _range(group: pq.RowGroupMetaData) -> UnitRange:
    chunks = [group.column(i) for i in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    length = sum(chunk.total_compressed_size for chunk in chunks)
    return UnitRange(min(starts), length, group.num_rows)


def _lowerings(schema: pa.Schema) -> list[Lowering]:
    return [Lowering.of(field.type, casts=_cast_of, views=_view_of) for field in schema]


def _stored_schema(schema: pa.Schema, lowerings: list[Lowering]) -> pa.Schema:
    pairs = zip(schema, lowerings, strict=True)
    return pa.schema([field.with_type(lowering.stored) for field, lowering in pairs])


def _lower(lowering: Lowering, array: pa.Array, field: pa.Field) -> pa.Array:
    if lowering.kind == lowering.stored:
        return array
    try:
        return _compact(lowering.lower(array))
    except pa.ArrowInvalid:
        raise SchemaError(
            f"a value of {field.type} is out of range for Parquet", column=field.name
        ) from None


def _compact(array: pa.Array) -> pa.Array:
    """Return a copy whose null lists hide nothing; Parquet writers before Arrow 23 demand it."""
    return array.take(pa.array(np.arange(len(array))))


def _cast_of(kind: pa.DataType) -> pa.DataType | None:
    """Return the type whose values stand for those of `kind`; None where Parquet holds `kind`."""
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if kind == pa.time32("s"):
        return pa.time32("ms")
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return pa.struct([pa.field("empty", pa.bool_())])
    if kind == pa.binary(0):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return retype(pa.list_(kind.value_field), _cast_of)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return None


def _view_of(kind: pa.DataType) -> pa.DataType | None:
    """Return the type whose bytes stand for those of `kind`; None where Parquet holds `kind`."""
    if pa.types.is_date64(kind):
        return pa.timestamp("ms")
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        return pa.binary(kind.byte_width)
    if pa.types.is_interval(kind):
        return pa.binary(kind.bit_width // 8)
    return None


def _layout(schema: pa.Schema, stored: pa.Schema) -> dict[str, object]:
    """Return what Parquet is to do with each leaf: codec, dictionary and statistics.

    Without dictionaries zstd finds more repeats: tables and tokens take 3 to 25 % fewer bytes.
    """
    media = {field.name for field in schema if media_of(field) in ("image", "audio")}
    few = {field.name for field in schema if media and pa.types.is_primitive(field.type)}
    leaves = _leaves(stored)
    packed = [leaf for leaf in leaves if leaf not in media | few]
    return {
        "compression_level": dict.fromkeys(packed, ZSTD_LEVEL),
        "compression": {**dict.fromkeys(leaves, "none"), **dict.fromkeys(packed, "zstd")},
        "use_dictionary": False,
        "write_statistics": [leaf for leaf in leaves if leaf not in media],
    }


def _leaves(stored: pa.Schema) -> list[str]:
    """Return the dotted path of each leaf, as Parquet names them."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, stored).close()
    columns = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [columns.column(i).path for i in range(len(columns))]
