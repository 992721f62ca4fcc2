"""HDF5 files of parallel arrays: an index of the first axis is a record, a dataset a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata.sources.batches import BATCH_BYTES
from geodata.sources.columns import Range, wider
from geodata.sources.corpus import MAX_RECORD
from geodata.sources.guard.guarded import Say
from geodata.sources.hdf5.file import FAULTS, Walk, member_of, open_dataset
from geodata.sources.hdf5.types import STRUCT, Member, Refused, array_of, type_of

LOST = "its values cannot be read"

_MOST_ROWS = 4096
_FIRST_ROWS = 64
_BLOCK = 1 << 20
"""Integers looked at at once for their range."""


class Arrays:
    """The datasets of a file that share their first axis; a single one of a compound is a table."""

    def __init__(self, file: Any, path: Path, ignored: Counter[str]):
        self._file = file
        self.members = _members(file, ignored)
        self.count = self.members[0].shape[0]
        only = self.members[0] if len(self.members) == 1 else None
        flat = only is not None and only.element.form == STRUCT and len(only.shape) == 1
        self.layout = "table" if flat else "arrays"
        self._flat = flat
        self._vary = any(member.element.dtype.hasobject for member in self.members)
        self.row_nbytes = self._row_nbytes(path)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        if self._flat:
            fields = self.members[0].element.fields
            return pa.schema([(name, type_of(below)) for name, below in fields])
        return pa.schema([(m.name, type_of(m.element, m.shape[1:])) for m in self.members])

    def cuts(self, target_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield runs of rows of about `target_bytes`, in whole chunks."""
        size = max(1, target_bytes // self.row_nbytes)
        chunk = max((member.chunk for member in self.members), default=1)
        size = -(-size // chunk) * chunk
        for start in range(0, self.count, size):
            yield start, min(start + size, self.count)

    def batches(
        self, start: int, stop: int, say: Say, *, step: int = 0, skip: Collection[int] = ()
    ) -> None:
        """Send the rows [start, stop), about 8 MiB at once; the number of those that are lost.

        How large values of varying length are shows only then: more rows are read step by step, as
        where there are to be `step` at first.
        """
        opened = [open_dataset(self._file, member) for member in self.members]
        most = self._rows_at_once()
        size = min(step or most, most)
        while start < stop:
            if start in skip:
                start += 1
                say({"lost": 1, "why": None, "next": start})
                continue
            last = min(start + size, stop)
            say({"at": start, "rows": last - start})
            batch = self._read(opened, start, last)
            if batch is None:
                say({"lost": last - start, "why": LOST, "next": last})
            else:
                say({"next": last})
                say(batch)
            size = self._next_size(size, most, batch)
            start = last

    def spans(self, start: int, stop: int, say: Say) -> dict[str, Range | None]:
        """Return the range of each column of 64-bit integers, as far as it can be read."""
        found: dict[str, Range | None] = {}
        for member in self.members:
            kind = type_of(member.element, member.shape[1:])
            if kind not in (pa.int64(), pa.uint64()):
                continue
            span: Range | None = (0, 0)
            dataset = open_dataset(self._file, member)
            for first in range(start, stop, _BLOCK):
                say({"at": first, "rows": _BLOCK})
                span = wider(span, _span(dataset, first, min(first + _BLOCK, stop)))
            found[member.name] = span
        return found

    def _next_size(self, size: int, most: int, batch: pa.RecordBatch | None) -> int:
        """Return how many rows follow a batch of `size`, or None, which could not be read."""
        if not self._vary:
            return min(most, 2 * size)
        if batch is None:
            return size
        fitting = BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)
        return int(max(1, min(_MOST_ROWS, 2 * size, fitting)))

    def _rows_at_once(self) -> int:
        """Return how many rows are read first; whole chunks, where these are smaller."""
        size = max(1, min(_MOST_ROWS, BATCH_BYTES // self.row_nbytes))
        if self._vary:
            return min(_FIRST_ROWS, size)
        chunks = [member.chunk for member in self.members if member.chunk <= size]
        return size - size % max(chunks, default=1)

    def _read(self, opened: Sequence[Any], start: int, stop: int) -> pa.RecordBatch | None:
        """Return some rows, None where they cannot be read."""
        try:
            values = [dataset[start:stop] for dataset in opened]
            arrays = [array_of(v, m.element) for v, m in zip(values, self.members, strict=True)]
            if self._flat:
                names = [name for name, _ in self.members[0].element.fields]
                return pa.RecordBatch.from_arrays(arrays[0].flatten(), names)
            return pa.RecordBatch.from_arrays(arrays, [member.name for member in self.members])
        except (pa.ArrowException, *FAULTS):
            return None

    def _row_nbytes(self, path: Path) -> int:
        """Return about how many bytes a row takes; values of varying length fill what is left."""
        placed = sum(member.row_nbytes for member in self.members)
        if not self._vary or not self.count:
            return max(1, placed)
        return max(1, placed, path.stat().st_size // self.count)


def _members(file: Any, ignored: Counter[str]) -> list[Member]:
    """Return the datasets that are columns; Refused where they are not parallel."""
    members = []
    for name, path, dataset in Walk(ignored).datasets(file["/"].id):
        if not dataset.shape:
            ignored["scalar dataset"] += 1
        else:
            members.append(member_of(name, path, dataset))
    lengths = Counter(member.shape[0] for member in members)
    for member in members:
        usual = lengths.most_common(1)[0][0]
        if member.shape[0] != usual:
            other = next(m for m in members if m.shape[0] == usual)
            raise Refused(
                f"'{other.name}' has {usual} rows, '{member.name}' {member.shape[0]}",
                "A record is one index of the first axis of every dataset: put others elsewhere",
            )
        if member.row_nbytes > MAX_RECORD:
            raise Refused(f"a row of '{member.name}' holds 1 GiB or more", "Cut it up")
    if sum(member.row_nbytes for member in members) > MAX_RECORD:
        raise Refused("a row holds 1 GiB or more", "Cut it up, or make several files of it")
    if not members:
        raise Refused("it holds no array", "A record is a row of an array, or a group")
    return members


def _span(dataset: Any, first: int, last: int) -> Range | None:
    try:
        values = dataset[first:last]
    except FAULTS:
        return None
    return min(0, int(np.min(values))), max(0, int(np.max(values)))
