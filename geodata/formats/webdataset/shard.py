"""Shards in WebDataset's layout: a tar, in which a unit is a run of members.

A record's members follow one another: `.json` first, then those of `columns`. Their stem is
the key, percent-encoded but for [A-Za-z0-9_-], so that stock readers, which split at the first
dot, find it whole ("%" stands for the empty key). Members under `__geodata__/`, which stock
readers skip, hold what is said of the shard (`shard.json`, `end.json`) and a tombstone's slot.

A record costs 1 KiB for its `.json` and about 768 bytes of header and padding for each other
member: text of 1 KB a record is 2 to 5 times larger than in Parquet. Pack text, or use Parquet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import array_nbytes
from geodata.durable import sync
from geodata.errors import CorruptShard, GeodataError, SchemaError
from geodata.formats.base import FORMAT_VERSION, UnitRange, stamped
from geodata.formats.mapping import map_file
from geodata.formats.slices import RAGGED, Slices, runs_of
from geodata.formats.units import (
    UnitCutter,
    check_batch_bytes,
    check_rows,
    pick,
    select,
    starts_of,
)
from geodata.formats.webdataset import index as tarindex
from geodata.formats.webdataset.columns import Content, Plan, plan
from geodata.formats.webdataset.jsonvalues import JsonColumn, dumps, loads
from geodata.formats.webdataset.tarball import (
    BLOCK,
    END,
    header,
    header_nbytes,
    key_of,
    padded,
    padded_nbytes,
    padding,
    stem_nbytes,
    stems,
)
from geodata.schema import KEY, to_json

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


class WebDatasetFormat:
    """The format `webdataset`."""

    name = "webdataset"
    suffix = ".tar"
    index_suffix: str | None = ".index"

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> WebDatasetWriter:
        """Start a shard."""
        units = UnitCutter(schema, self.row_nbytes, unit_bytes, unit_slots)
        return WebDatasetWriter(path, schema, units, metadata)

    def open(self, path: Path, index: Path | None = None) -> WebDatasetReader:
        """Open a shard by its index, or by a scan of its headers."""
        return WebDatasetReader(path, index)

    def write_index(self, path: Path, index: Path) -> None:
        """Write the index, an Arrow file that `index` describes."""
        tarindex.save(tarindex.scan(map_file(path), path.name), index)

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:
        """Return the blocks of each unit's members."""
        return list(_index_of(map_file(path), path, index).units)

    def row_nbytes(self, batch: pa.RecordBatch) -> Int64s:
        """Return the bytes of each record's members with headers and padding; JSON is a guess."""
        places = plan(batch.schema)
        keys = batch.column(batch.schema.get_field_index(KEY))
        names = stem_nbytes(keys)
        total = _member_nbytes(names + len(".json"), _json_nbytes(batch, places))
        for member in places.members:
            suffix = max(len(suffix) for suffix in member.suffixes)
            total += _member_nbytes(names + suffix, member.nbytes(batch.column(member.column)))
        return np.where(keys.is_valid(), total, BLOCK)


class WebDatasetWriter:
    """Writes one tar shard."""

    def __init__(
        self, path: Path, schema: pa.Schema, units: UnitCutter, metadata: Mapping[str, str]
    ):
        if schema.get_field_index(KEY) < 0:
            raise SchemaError("a tar shard needs keys", column=KEY)
        self.nbytes = 0
        self._path, self._schema, self._units = path, schema, units
        self._plan = plan(schema)
        self._json = [
            (schema.field(i).name, i, JsonColumn(schema.field(i))) for i in self._plan.json
        ]
        self._slots: list[int] = []
        self._rows = 0
        self._seen: set[bytes] = set()
        self._hash = hashlib.sha256()
        self._sink = pa.OSFile(str(path), "wb")
        self._write_head(schema, metadata)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit and the last member; sync the file to disk."""
        for unit in self._units.flush():
            self._write_unit(unit)
        told = {"rows": self._rows, "unit_slots": self._slots, "digest": self._hash.hexdigest()}
        content = json.dumps(told).encode()
        self._write([header(tarindex.TAIL, len(content)), padded(content), END])
        self._sink.close()
        sync(self._path)

    def _write_head(self, schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        about = {
            "format_version": FORMAT_VERSION,
            "metadata": stamped(metadata),
            "schema": to_json(schema),
        }
        content = json.dumps(about).encode()
        self._write([self._header(tarindex.HEAD, len(content)), padded(content)])
        self._hash.update(content)

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        parts: list[Content] = []
        for batch in batches:
            for name, content in self._members(batch):
                parts += (self._header(name, len(content)), content, padding(len(content)))
        self._slots.append(sum(batch.num_rows for batch in batches))
        self._write(parts)

    def _members(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, Content]]:
        """Yield name and content of each member of these rows, in order."""
        documents = self._documents(batch)
        columns = [(m, m.encode(batch.column(m.column))) for m in self._plan.members]
        for row, stem in enumerate(stems(batch.column(self._schema.get_field_index(KEY)))):
            self._rows += 1
            if stem is None:
                yield tarindex.TOMBSTONE + b"%08d" % (self._rows - 1), b""
                continue
            self._check_new(stem)
            yield stem + b".json", documents[row]
            for member, contents in columns:
                content = contents[row]
                if content is not None:
                    yield stem + member.suffix(content), content

    def _documents(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return each record's JSON."""
        names = [name for name, _, _ in self._json]
        columns = [codec.encode(batch.column(i)) for _, i, codec in self._json]
        return [
            dumps({n: v for n, v in zip(names, row, strict=True) if v is not None}).encode()
            for row in zip(*columns, strict=True)
        ]

    def _check_new(self, stem: bytes) -> None:
        if stem in self._seen:
            raise SchemaError("two records of a shard have one key", key=key_of(stem))
        self._seen.add(stem)

    def _header(self, name: bytes, size: int) -> bytes:
        blocks = header(name, size)
        self._hash.update(blocks)
        return blocks

    def _write(self, parts: list[Content]) -> None:
        self._sink.write(b"".join(parts))
        self.nbytes = self._sink.tell()


class WebDatasetReader:
    """Reads one tar shard from its mapping: members of columns not asked for are not touched."""

    def __init__(self, path: Path, index: Path | None):
        self._shard = path.name
        self._data: pa.Buffer | None = map_file(path)
        self._index = _index_of(self._data, path, index)
        self.schema: pa.Schema = self._index.schema
        self.metadata: Mapping[str, str] = self._index.metadata
        self.unit_slots: Sequence[int] = [unit.slots for unit in self._index.units]
        self._starts = starts_of(self.unit_slots)
        self.num_rows = int(self._starts[-1])
        self._json, *contents = self._index.slices(self._data)
        members = plan(self.schema).members
        self._members = {
            m.field.name: (m, slices) for m, slices in zip(members, contents, strict=True)
        }
        in_json = [field for field in self.schema if field.name not in self._members]
        self._codecs = {field.name: JsonColumn(field) for field in in_json}

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a run of members."""
        schema = select(self.schema, columns)
        return self._read(np.arange(*self._bounds(unit)), schema)

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return the contents of a unit's members that are values as they stand, and its keys."""
        rows, found = slice(*self._bounds(unit)), {}
        for name in columns:
            with self._corrupt(name):
                if name in self._members and self._members[name][0].is_plain:
                    found[name] = self._pick(self._members[name][1], rows)
                elif name == KEY and self.schema.field(KEY).type in RAGGED:
                    found[name] = runs_of(self._index.keys[rows])
        return found

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, touching no other record."""
        schema = select(self.schema, columns)
        distinct, places = np.unique(check_rows(rows, self.num_rows), return_inverse=True)
        batch = self._read(distinct, schema)
        in_order = np.array_equal(places, np.arange(len(distinct)))
        return batch if in_order else pick(batch, places)

    def close(self) -> None:
        """Release the file."""
        self._data = None

    def _opened(self) -> pa.Buffer:
        if self._data is None:
            raise ValueError("the shard is closed")
        return self._data

    def _bounds(self, unit: int) -> tuple[int, int]:
        """Return the first row of a unit, and the one after its last."""
        self._opened()
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        return int(self._starts[unit]), int(self._starts[unit + 1])

    def _read(self, rows: Int64s, schema: pa.Schema) -> pa.RecordBatch:
        """Return ascending rows."""
        self._opened()
        in_json = [name for name in schema.names if name != KEY and name in self._codecs]
        documents = self._documents(rows) if in_json else []
        arrays = []
        for field in schema:
            with self._corrupt(field.name):
                if field.name == KEY:
                    arrays.append(self._index.keys.take(pa.array(rows)).cast(field.type))
                elif field.name in self._members:
                    member, slices = self._members[field.name]
                    arrays.append(member.decode(self._pick(slices, rows)))
                else:
                    values = [document.get(field.name) for document in documents]
                    arrays.append(self._codecs[field.name].decode(values))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _documents(self, rows: Int64s) -> list[dict[str, Any]]:
        """Return the JSON of these rows, empty for a tombstone."""
        with self._corrupt(".json"):
            texts = self._pick(self._json, rows).gather().cast(pa.large_string()).to_pylist()
        documents: list[dict[str, Any]] = []
        for row, text in zip(rows.tolist(), texts, strict=True):
            try:
                documents.append({} if text is None else loads(text))
            except ValueError:
                key = self._index.keys[row].as_py()
                fault = "a .json member that is no JSON"
                raise CorruptShard(fault, shard=self._shard, row=row, key=key) from None
        return documents

    def _pick(self, slices: Slices, rows: Int64s | slice) -> Slices:
        picked, nbytes = slices.pick(rows), len(self._opened())
        if (picked.offsets < 0).any() or (picked.sizes > nbytes - picked.offsets).any():
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


def _index_of(data: pa.Buffer, path: Path, index: Path | None) -> tarindex.TarIndex:
    if index is None:
        return tarindex.scan(data, path.name)
    return tarindex.load(index, data, path.name)


def _member_nbytes(names: Int64s, contents: Int64s) -> Int64s:
    """Return the bytes of members with names and contents of these lengths; -1: no member."""
    return np.where(contents < 0, 0, header_nbytes(names) + padded_nbytes(contents))


def _json_nbytes(batch: pa.RecordBatch, places: Plan) -> Int64s:
    """Return about how long each record's JSON is at most."""
    total = np.full(batch.num_rows, len("{}"), np.int64)
    for i in places.json:
        field, array = batch.schema.field(i), batch.column(i)
        wide = 1 if field.type in (pa.string(), pa.large_string()) else 3
        sizes = wide * (array_nbytes(array) + 1) + len(field.name) + len('"":,')
        total += np.where(array.is_valid(), sizes, 0)
    return total
