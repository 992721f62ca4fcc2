"""Pieces of a mapped file, gathered into an Arrow array without a Python object for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import ragged

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slices:
    """Runs of bytes in `data`, ascending and apart; a size of -1 says that there is none."""

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
        """Return the runs as large_binary, null where there is none: one copy in Arrow."""
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
