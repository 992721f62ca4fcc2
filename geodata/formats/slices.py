"""Pieces of a mapped file, gathered into an Arrow array without a Python object for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import ragged
from geodata.formats.units import check_batch_bytes

Int64s = npt.NDArray[np.int64]

WIDE = (pa.large_string(), pa.large_binary())
TEXTS = (pa.string(), pa.large_string())
RAGGED = (*TEXTS, pa.binary(), pa.large_binary())
"""The types whose values are runs of bytes."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Runs of bytes in `data`; a size of -1 says that there is none."""

    data: pa.Buffer
    offsets: Int64s
    sizes: Int64s

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Return where there is a run."""
        return self.sizes >= 0

    def found(self) -> Slices:
        """Return the runs that are there."""
        present = self.present
        return self if present.all() else self.pick(present)

    def pick(self, rows: slice | npt.NDArray[np.bool_] | Int64s) -> Slices:
        """Return some of the runs."""
        return Slices(self.data, self.offsets[rows], self.sizes[rows])

    def part(self, start: Int64s, size: Int64s) -> Slices:
        """Return a part of each run; all must be there and long enough, else ValueError."""
        if ((size < 0) | (start + size > self.sizes)).any():
            raise ValueError("content is shorter than it must be")
        return Slices(self.data, self.offsets + start, size)

    def gather(self) -> pa.Array:
        """Return runs that ascend as large_binary, null where there is none: one copy in Arrow."""
        runs = self.found()
        bounds = np.stack([runs.offsets, runs.offsets + runs.sizes], axis=1).reshape(-1)
        if not bounds.size:
            return pa.nulls(len(self.sizes), pa.large_binary())
        buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds)), self.data]
        between = pa.Array.from_buffers(pa.large_binary(), bounds.size - 1, buffers)
        return spread(between, self.present, step=2)


def spread(array: pa.Array, present: npt.NDArray[np.bool_], step: int = 1) -> pa.Array:
    """Return every `step`th value at the places that are present, in order, null elsewhere."""
    places = (np.cumsum(present) - 1) * step
    return array.take(pa.array(places, mask=None if present.all() else ~present))


def joined(array: pa.Array) -> pa.Buffer:
    """Return all bytes of a gathered array without nulls."""
    offsets, data = ragged(array)
    return pa.py_buffer(data[offsets[0] : offsets[-1]])


def runs_of(array: pa.Array) -> Slices:
    """Return where the values of a string or binary array lie."""
    offsets, data = ragged(array)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[~array.is_valid().to_numpy(zero_copy_only=False)] = -1
    return Slices(pa.py_buffer(data), offsets[:-1], sizes)


def merged(pieces: Iterable[tuple[Slices, Int64s]], count: int, kind: pa.DataType) -> pa.Array:
    """Return an array of `count` values, those of each piece at its places: one copy of the bytes.

    Raises ValueError for text that is not UTF-8 and for runs outside of their data, SchemaError
    where 32-bit offsets end.
    """
    views: list[memoryview] = []
    source, starts, sizes = np.empty((3, count), np.int64)
    for runs, places in pieces:
        source[places], starts[places], sizes[places] = len(views), runs.offsets, runs.sizes
        views.append(memoryview(runs.data))
    present, lengths = sizes >= 0, np.maximum(sizes, 0)
    spans = zip(source.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
    data = b"".join([views[number][start:stop] for number, start, stop in spans])
    if len(data) != lengths.sum():
        raise ValueError("runs outside of their data")
    if kind not in WIDE:
        check_batch_bytes(len(data))
    offsets = np.zeros(count + 1, np.int64 if kind in WIDE else np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flags = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [flags, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(kind, count, buffers)
    if kind in TEXTS:
        array.validate(full=True)
    return array
