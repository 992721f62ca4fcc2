"""Cutting rows into units, and finding rows in units again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import check_types
from geodata.errors import SchemaError
from geodata.schema import KEY

Int64s = npt.NDArray[np.int64]

BATCH_BYTES = 1 << 31


class UnitCutter:
    """Cuts a stream of batches into units: by bytes, or as `unit_slots` says.

    A unit closes when the next row would push it over `unit_bytes`; it holds at least one row.
    Raises SchemaError for a schema with types that no format stores.
    """

    def __init__(
        self,
        schema: pa.Schema,
        row_nbytes: Callable[[pa.RecordBatch], Int64s],
        unit_bytes: int,
        unit_slots: Sequence[int] | None = None,
    ):
        check_types(schema)
        self._schema = schema
        self._row_nbytes = row_nbytes
        self._unit_bytes = unit_bytes
        self._slots = None if unit_slots is None else list(reversed(unit_slots))
        self._pending: list[pa.RecordBatch] = []
        self._filled = 0

    def push(self, batch: pa.RecordBatch) -> Iterator[list[pa.RecordBatch]]:
        """Yield each unit that these rows close, as slices of the batches pushed."""
        _check(batch, self._schema)
        ends = np.cumsum(self._sizes(batch))
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self._room(), side="right"))
            if not self._pending:
                stop = max(stop, start + 1)
            if stop > start:
                self._pending.append(batch.slice(start, stop - start))
                self._filled += int(ends[stop - 1]) - before
            if stop < batch.num_rows:
                yield self._close()
            start = stop

    def flush(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the last unit, if rows are left."""
        if self._pending:
            yield self._close()
        if self._slots:
            raise SchemaError("a shard has fewer rows than its units are to hold")

    def _sizes(self, batch: pa.RecordBatch) -> Int64s:
        if self._slots is None:
            return self._row_nbytes(batch)
        return np.ones(batch.num_rows, np.int64)

    def _room(self) -> int:
        if self._slots is None:
            return self._unit_bytes - self._filled
        if not self._slots:
            raise SchemaError("a shard has more rows than its units are to hold")
        return self._slots[-1] - self._filled

    def _close(self) -> list[pa.RecordBatch]:
        unit, self._pending, self._filled = self._pending, [], 0
        if self._slots is not None and sum(map(len, unit)) != self._slots.pop():
            raise SchemaError("a shard has fewer rows than its units are to hold")
        return unit


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches in one, copied only when there are several."""
    if len(batches) == 1:
        return batches[0]
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
    if len(whole) > 1:
        raise _too_large()
    return whole[0]


def pick(batch: pa.RecordBatch, places: Int64s) -> pa.RecordBatch:
    """Return the rows at these places of a batch, in the order given."""
    try:
        return batch.take(pa.array(places))
    except pa.ArrowInvalid:  # the only failure that places inside the batch can meet
        raise _too_large() from None


def check_batch_bytes(nbytes: int) -> None:
    """Refuse a column of 2 GiB in one batch: Arrow's offsets end there."""
    if nbytes >= BATCH_BYTES:
        raise _too_large()


def select(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of these columns, in schema order; SchemaError for an unknown one."""
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise SchemaError("no such column", column=name)
    if not columns:
        raise SchemaError("no columns to read", hint="Name at least one")
    return pa.schema([field for field in schema if field.name in columns], schema.metadata)


def starts_of(unit_slots: Sequence[int]) -> Int64s:
    """Return the number of each unit's first row, and after the last the number of rows."""
    starts = np.zeros(len(unit_slots) + 1, np.int64)
    np.cumsum(unit_slots, out=starts[1:])
    return starts


def check_rows(rows: Sequence[int], num_rows: int) -> Int64s:
    """Return row numbers as an array; IndexError when one is not in the shard."""
    numbers = np.asarray(rows, np.int64)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < num_rows:
        raise IndexError(f"a row number is not in [0, {num_rows})")
    return numbers


def take_by_unit(
    read_unit: Callable[[int], pa.RecordBatch], starts: Int64s, rows: Sequence[int]
) -> pa.RecordBatch:
    """Return these rows, at least one, in the order given; a unit that holds some is read once."""
    distinct, places = np.unique(check_rows(rows, int(starts[-1])), return_inverse=True)
    units = np.searchsorted(starts, distinct, side="right") - 1
    parts = [
        pick(read_unit(int(unit)), distinct[units == unit] - starts[unit])
        for unit in np.unique(units)
    ]
    return pick(one_batch(parts), places)


def _too_large() -> SchemaError:
    return SchemaError("rows of 2 GiB do not fit one batch", hint="Take fewer rows at once")


def _check(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuse another schema, and a tombstone with values."""
    if not batch.schema.equals(schema):
        raise SchemaError("a batch has another schema than its shard")
    index = schema.get_field_index(KEY)
    if index < 0 or not batch.column(index).null_count:
        return
    dead = batch.filter(batch.column(index).is_null())
    for field, array in zip(schema, dead.columns, strict=True):
        if array.null_count < len(array):
            raise SchemaError("a row without a key must be null throughout", column=field.name)
