"""Shards in TFRecord: one `tf.train.Example` a live record, under the columns' own names.

`columns` tells the features of a column, `index` what rides on the last record. A tombstone is
no record: stock readers see the live ones and nothing else (a shard without any has one record
that says so). A unit is a run of records; its bytes are none where all its rows are tombstones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from geodata.canonical import ragged
from geodata.errors import CorruptShard, GeodataError
from geodata.formats.base import UnitRange, stamped
from geodata.formats.mapping import map_file
from geodata.formats.slices import Slices
from geodata.formats.tfrecord import index as tfindex
from geodata.formats.tfrecord.columns import Column
from geodata.formats.tfrecord.example import (
    Feature,
    among,
    entries_of,
    example_of,
    examples,
    split,
)
from geodata.formats.tfrecord.frames import FRAME, Data, framed
from geodata.formats.tfrecord.plain import valid
from geodata.formats.tfrecord.wire import Int64s
from geodata.formats.units import (
    UnitCutter,
    check_batch_bytes,
    check_rows,
    one_batch,
    pick,
    select,
    starts_of,
)
from geodata.schema import KEY


class TfRecordFormat:
    """The format `tfrecord`."""

    name = "tfrecord"
    suffix = ".tfrecord"
    index_suffix: str | None = ".index"

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> TfRecordWriter:
        """Start a shard."""
        units = UnitCutter(schema, self.row_nbytes, unit_bytes, unit_slots)
        return TfRecordWriter(path, schema, units, metadata)

    def open(self, path: Path, index: Path | None = None) -> TfRecordReader:
        """Open a shard by its index, or by a scan of its frames."""
        return TfRecordReader(path, index)

    def write_index(self, path: Path, index: Path) -> None:
        """Write the index, an Arrow file that `index` describes."""
        tfindex.save(tfindex.scan(map_file(path), path.name), index)

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:
        """Return the bytes of each unit's records."""
        return list(_index_of(map_file(path), path, index).units)

    def row_nbytes(self, batch: pa.RecordBatch) -> Int64s:
        """Return about how many bytes each record's frame has."""
        total = np.full(batch.num_rows, FRAME + len("\x0a12345"), np.int64)
        for field, array in zip(batch.schema, batch.columns, strict=True):
            total += Column(field).nbytes(array)
        return total


class TfRecordWriter:
    """Writes one TFRecord shard; the last record waits for what `close` puts on it."""

    def __init__(
        self, path: Path, schema: pa.Schema, units: UnitCutter, metadata: Mapping[str, str]
    ):
        self.nbytes = 0
        self._path, self._units = path, units
        self._columns = [Column(field) for field in schema]
        self._key = schema.get_field_index(KEY)
        self._summary = tfindex.Summary(schema, stamped(metadata))
        self._held: list[pa.Buffer] = []
        self._sink = pa.OSFile(str(path), "wb")

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit, and on its last record what is said of the shard."""
        for unit in self._units.flush():
            self._write_unit(unit)
        before = b"".join(entries_of(example) for example in self._held)
        self._write(framed([example_of(before + self._summary.entry(before))]))
        self._sink.close()

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        unit = one_batch(batches)
        live = valid(unit.column(self._key)) if self._key >= 0 else np.ones(unit.num_rows, bool)
        self._summary.add_unit(live)
        if not live.any():
            return
        pairs = zip(self._columns, unit.columns, strict=True)
        entries = [entry for column, array in pairs for entry in column.encode(array, live)]
        records = [*self._held, *_pieces(examples(entries, int(live.sum())))]
        self._held = records[-1:]
        parts = framed(records[:-1])
        self._write(parts)
        del parts[1::3]
        self._summary.add_frames(b"".join(parts))

    def _write(self, parts: list[Data]) -> None:
        self._sink.write(b"".join(parts))
        self.nbytes = self._sink.tell()


class TfRecordReader:
    """Reads one TFRecord shard from its mapping: only the records that hold a wanted row."""

    def __init__(self, path: Path, index: Path | None):
        self._shard = path.name
        self._data: pa.Buffer | None = map_file(path)
        self._index = _index_of(self._data, path, index)
        self.schema: pa.Schema = self._index.schema
        self.metadata: Mapping[str, str] = self._index.metadata
        self.unit_slots: Sequence[int] = [unit.slots for unit in self._index.units]
        self._starts = starts_of(self.unit_slots)
        self.num_rows = int(self._starts[-1])
        with self._corrupt():
            self._columns = {field.name: Column(field) for field in self.schema}
        self._features = [f for column in self._columns.values() for f in column.features]
        self._features.append(tfindex.ABOUT)

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a run of records."""
        schema = select(self.schema, columns)
        return self._read(self._rows(unit), schema)

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return where strings and binaries lie in a unit's records."""
        rows = self._rows(unit)
        ragged = [self._columns[name] for name in columns if self._columns[name].is_ragged]
        if not ragged:
            return {}
        found, runs = self._split(rows, ragged), {}
        for column in ragged:
            with self._corrupt(column.name):
                runs[column.name] = column.runs(found, len(rows))
        return runs

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

    def _rows(self, unit: int) -> Int64s:
        """Return the numbers of a unit's rows."""
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        return np.arange(self._starts[unit], self._starts[unit + 1])

    def _split(self, rows: Int64s, columns: Sequence[Column]) -> Mapping[Feature, Slices]:
        """Return the features of these columns in ascending rows."""
        records = self._records(rows)
        wanted = {feature for column in columns for feature in column.features}
        with self._corrupt():
            data = np.frombuffer(records.data, np.uint8)
            return split(data, records, self._features, wanted)

    def _read(self, rows: Int64s, schema: pa.Schema) -> pa.RecordBatch:
        """Return ascending rows."""
        columns = [self._columns[name] for name in schema.names]
        found = self._split(rows, columns)
        arrays = []
        for field, column in zip(schema, columns, strict=True):
            with self._corrupt(field.name):
                for feature in found.keys() & column.features:
                    check_batch_bytes(int(found[feature].found().sizes.sum()))
                arrays.append(column.decode(found, len(rows)))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _records(self, rows: Int64s) -> Slices:
        """Return the Examples of ascending rows, none for a tombstone."""
        if self._data is None:
            raise ValueError("the shard is closed")
        known = self._index.rows
        places = np.searchsorted(known, rows)
        live = places < len(known)
        live[live] = known[places[live]] == rows[live]
        offsets, sizes = self._index.frames.pick(places[live])
        ends = offsets + sizes
        outside = (offsets < 0) | (sizes < 0) | (sizes > len(self._data) - offsets)
        if outside.any():
            raise CorruptShard("the index points outside the shard", shard=self._shard)
        if (offsets[1:] < ends[:-1]).any():
            raise CorruptShard("the index has records out of order", shard=self._shard)
        return among(self._data, offsets, sizes, live)

    @contextmanager
    def _corrupt(self, column: str | None = None) -> Iterator[None]:
        """Name the shard and the column instead of what the decoding stumbled over."""
        try:
            yield
        except GeodataError:
            raise
        except tfindex.MALFORMED as error:
            text = f"a record cannot be decoded ({type(error).__name__})"
            raise CorruptShard(text, shard=self._shard, column=column) from None


def _pieces(array: pa.Array) -> list[pa.Buffer]:
    """Return the bytes of each value of a large_binary array without nulls, not copied."""
    offsets, _ = ragged(array)
    data = array.buffers()[2]
    return [data.slice(start, stop - start) for start, stop in pairwise(offsets.tolist())]


def _index_of(data: pa.Buffer, path: Path, index: Path | None) -> tfindex.TfIndex:
    if index is None:
        return tfindex.scan(data, path.name)
    return tfindex.load(index, data, path.name)
