"""Records that come one by one → batches: held until they are many, then built column by column.

Those that do not fit the schema are found by halving, and rejected with their original bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from geodata.schema import data_fields
from geodata.sources.base import Reject
from geodata.sources.batches import (
    BATCH_BYTES,
    Origin,
    Unfit,
    assemble,
    bounded,
    fitting,
    most_rows,
)

_HELD_BYTES = BATCH_BYTES // 2
"""Of items; what they become may be larger."""


@dataclass(slots=True)
class Item:
    """A record on its way: its key, where it stands, the values of its fields by name.

    `nbytes` is about what it takes in memory, `raw` its original bytes.
    """

    key: str
    file: str
    row: int
    values: Mapping[str, Any]
    nbytes: int
    raw: bytes = b""

    def unfit(self, reason: str) -> Reject:
        """Return the record as one that the schema does not hold."""
        return Reject(self.file, self.row, reason, self.raw, unfit=True)


Kind = TypeVar("Kind", bound=Item)

Columns = Callable[[Sequence[Kind], Sequence[pa.Field]], Mapping[str, pa.Array]]
"""Makes the columns of some items; raises Unfit where one has a value that its field cannot hold.

All their values have a field.
"""


def by_field(column: Callable[[list[Any], pa.Field], pa.Array]) -> Columns[Item]:
    """Return what makes each column by itself, of its values in all items (None: there is none)."""

    def columns(items: Sequence[Item], fields: Sequence[pa.Field]) -> dict[str, pa.Array]:
        return {
            field.name: column([item.values.get(field.name) for item in items], field)
            for field in fields
        }

    return columns


def batches_of(
    items: Iterable[Kind | pa.RecordBatch],
    schema: pa.Schema,
    columns: Columns[Kind],
    reject: Callable[[Reject], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the items that fit `schema` in their order, and batches among them as they are."""
    block = _Block(schema, columns, reject)
    for item in items:
        if isinstance(item, pa.RecordBatch):
            yield from block.flush()
            yield from bounded(item)
        else:
            if block.nbytes + item.nbytes > _HELD_BYTES or len(block.items) >= block.most_rows:
                yield from block.flush()
            block.items.append(item)
            block.nbytes += item.nbytes
        del item  # which may be large, while the next is read
    yield from block.flush()


class _Block(Generic[Kind]):
    """Items that become one batch, of at most `most_rows`."""

    def __init__(self, schema: pa.Schema, columns: Columns[Kind], reject: Callable[[Reject], None]):
        self.items: list[Kind] = []
        self.nbytes = 0
        self.most_rows = most_rows(schema)
        self._schema, self._columns, self._reject = schema, columns, reject
        self._fields = data_fields(schema)
        self._names = {field.name for field in self._fields}

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the items that fit, reject the others, and start again.

        They are let go of before what was made of them is taken.
        """
        if self.items:
            made = list(fitting(self._build, len(self.items), self._refuse))
            self.items, self.nbytes = [], 0
            yield from made

    def _build(self, rows: Sequence[int]) -> pa.RecordBatch:
        items = [self.items[row] for row in rows]
        unknown = set().union(*(item.values for item in items)) - self._names
        if unknown:
            raise Unfit(f"'{min(unknown)}' is not in the schema")
        columns = self._columns(items, self._fields)
        origin = Origin([item.file for item in items], [item.row for item in items])
        return assemble(self._schema, [item.key for item in items], columns, origin)

    def _refuse(self, row: int, reason: str) -> None:
        self._reject(self.items[row].unfit(reason))
