"""Reads records from a tar, whole or compressed by segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import CorruptShard, GeodataError
from geodata.formats.mapping import map_file
from geodata.formats.slices import RAGGED, Slices, runs_of
from geodata.formats.units import (
    check_batch_bytes,
    check_rows,
    pick,
    select,
    starts_of,
    take_by_unit,
)
from geodata.formats.webdataset import index as tarindex
from geodata.formats.webdataset.columns import plan
from geodata.formats.webdataset.jsonvalues import JsonColumn, loads
from geodata.formats.webdataset.scan import scan
from geodata.formats.webdataset.segments import Codec, unpacked
from geodata.schema import KEY

Int64s = npt.NDArray[np.int64]

_MALFORMED = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What decoding raises on content that no writer made."""
_NO_BYTES = pa.py_buffer(b"")


class _TarReader:
    """An opened tar shard."""

    def __init__(self, path: Path, index: Path | None, codec: Codec | None = None):
        self._shard = path.name
        self._data: pa.Buffer | None = map_file(path)
        self._index = index_of(self._data, path, index, codec)
        self._members = _Members(self._index, path.name)
        self.schema: pa.Schema = self._index.schema
        self.metadata: Mapping[str, str] = self._index.metadata
        self.unit_slots: Sequence[int] = [unit.slots for unit in self._index.units]
        self._starts = starts_of(self.unit_slots)
        self.num_rows = int(self._starts[-1])

    def close(self) -> None:
        """Release the file."""
        self._data = None

    def _opened(self) -> pa.Buffer:
        if self._data is None:
            raise ValueError("the shard is closed")
        return self._data

    def _bounds(self, unit: int) -> tuple[int, int]:
        """Return the first row of a unit, and the one after its last."""
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        return int(self._starts[unit]), int(self._starts[unit + 1])


class WebDatasetReader(_TarReader):
    """Reads one tar shard from its mapping: members of columns not asked for are not touched."""

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a run of members."""
        schema, data = select(self.schema, columns), self._opened()
        return self._members.read(data, np.arange(*self._bounds(unit)), schema)

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return the contents of a unit's members that are values as they stand, and its keys."""
        data = self._opened()
        return self._members.runs(data, slice(*self._bounds(unit)), columns)

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, touching no other record."""
        schema, data = select(self.schema, columns), self._opened()
        distinct, places = np.unique(check_rows(rows, self.num_rows), return_inverse=True)
        batch = self._members.read(data, distinct, schema)
        in_order = np.array_equal(places, np.arange(len(distinct)))
        return batch if in_order else pick(batch, places)


class PackedReader(_TarReader):
    """Reads one compressed tar shard: a unit is unpacked as a whole whenever it is read."""

    def __init__(self, path: Path, index: Path | None, codec: Codec):
        super().__init__(path, index, codec)
        self._codec = codec

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a run of members; keys alone are in the index."""
        schema, data = select(self.schema, columns), self._opened()
        rows = np.arange(*self._bounds(unit))
        content = _NO_BYTES if schema.names == [KEY] else self._unpacked(data, unit)
        return self._members.read(content, rows, schema)

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, unpacking each unit that holds some of them once."""
        schema, _data = select(self.schema, columns), self._opened()
        if len(rows) == 0:
            return self._members.read(_NO_BYTES, np.arange(0), schema)
        return take_by_unit(lambda unit: self.read_unit(unit, columns), self._starts, rows)

    def _unpacked(self, data: pa.Buffer, unit: int) -> pa.Buffer:
        view, segments = memoryview(data).cast("B"), self._index.segments
        return pa.py_buffer(unpacked(self._codec, view, segments, unit + 1, self._shard))


def index_of(
    data: pa.Buffer, path: Path, index: Path | None, codec: Codec | None = None
) -> tarindex.TarIndex:
    """Return the index of a shard, from its file or by a scan."""
    if index is None:
        return scan(data, path.name, codec)
    return tarindex.load(index, data, path.name, codec)


class _Members:
    """What a shard's index says of its members, by which they are read from their bytes."""

    def __init__(self, index: tarindex.TarIndex, shard: str):
        self._shard, self._keys, self._schema = shard, index.keys, index.schema
        self._json, *places = index.where()
        members = plan(index.schema).members
        self._places = {m.field.name: (m, p) for m, p in zip(members, places, strict=True)}
        in_json = [field for field in index.schema if field.name not in self._places]
        self._codecs = {field.name: JsonColumn(field) for field in in_json}

    def read(self, data: pa.Buffer, rows: Int64s, schema: pa.Schema) -> pa.RecordBatch:
        """Return ascending rows."""
        in_json = [name for name in schema.names if name != KEY and name in self._codecs]
        documents = self._documents(data, rows) if in_json else []
        arrays = []
        for field in schema:
            with self._corrupt(field.name):
                if field.name == KEY:
                    arrays.append(self._keys.take(pa.array(rows)).cast(field.type))
                elif field.name in self._places:
                    member, places = self._places[field.name]
                    arrays.append(member.decode(self._pick(data, places, rows)))
                else:
                    values = [document.get(field.name) for document in documents]
                    arrays.append(self._codecs[field.name].decode(values))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def runs(self, data: pa.Buffer, rows: slice, columns: Sequence[str]) -> dict[str, Slices]:
        """Return where values lie that stand as they are."""
        found = {}
        for name in columns:
            with self._corrupt(name):
                if name in self._places and self._places[name][0].is_plain:
                    found[name] = self._pick(data, self._places[name][1], rows)
                elif name == KEY and self._schema.field(KEY).type in RAGGED:
                    found[name] = runs_of(self._keys[rows])
        return found

    def _documents(self, data: pa.Buffer, rows: Int64s) -> list[dict[str, Any]]:
        """Return the JSON of these rows, empty for a tombstone."""
        with self._corrupt(".json"):
            found = self._pick(data, self._json, rows).gather()
            texts = found.cast(pa.large_string()).to_pylist()
        documents: list[dict[str, Any]] = []
        for row, text in zip(rows.tolist(), texts, strict=True):
            try:
                documents.append({} if text is None else loads(text))
            except ValueError:
                key = self._keys[row].as_py()
                fault = "a .json member that is no JSON"
                raise CorruptShard(fault, shard=self._shard, row=row, key=key) from None
        return documents

    def _pick(self, data: pa.Buffer, places: tarindex.Places, rows: Int64s | slice) -> Slices:
        picked = Slices(data, *places).pick(rows)
        if (picked.offsets < 0).any() or (picked.sizes > len(data) - picked.offsets).any():
            raise CorruptShard("the index points outside the tar", shard=self._shard)
        check_batch_bytes(int(picked.sizes.sum()))
        return picked

    @contextmanager
    def _corrupt(self, column: str) -> Iterator[None]:
        """Name the shard and the column instead of what the decoding stumbled over."""
        try:
            yield
        except GeodataError:
            raise
        except _MALFORMED as error:
            text = f"a member cannot be decoded ({type(error).__name__})"
            raise CorruptShard(text, shard=self._shard, column=column) from None
