"""Each value of a column of any type as bytes of its own, exact: its pieces of the layout's parts.

The parts stand in the layout's order, little-endian, without the validity of the value itself;
other validity is always there, a byte a value, and offsets are lengths (uint32). So a float64 is
its 8 bytes, and a list of strings its length, a byte for each item, their lengths, and all text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.layout import OFFSETS, VALID, Array, Layout, Part, escape
from geodata.formats.slices import Slices, joined
from geodata.formats.tfrecord.wire import Bytes, Int64s, Runs, sums

_LENGTH = np.dtype("<u4")


class ExactColumn:
    """The values of one column as bytes.

    Raises SchemaError for types that no format stores.
    """

    def __init__(self, field: pa.Field):
        self._name = field.name
        self._layout = Layout(field)
        own = f"{escape(field.name)}:{VALID}"
        self._parts = [part for part in self._layout.parts if part.name != own]

    def encode(self, array: pa.Array) -> pa.Array:
        """Return the bytes of each value, no nulls, as large_binary."""
        runs = [Runs.cut(*piece) for piece in self._pieces(array)]
        return Runs.chained(runs, len(array)).join()

    def nbytes(self, array: pa.Array) -> Int64s:
        """Return how many bytes each value, no nulls, has."""
        total: Int64s = np.sum([np.diff(ends) for _, ends in self._pieces(array)], axis=0)
        return total

    def decode(self, slices: Slices) -> pa.Array:
        """Return the values with these bytes, none absent; ValueError where there are none."""
        count = len(slices.sizes)
        counts = {"": np.ones(count, np.int64)}
        start = np.zeros(count, np.int64)
        found: dict[str, Array] = {}
        for part in self._parts:
            many = counts[part.level] * part.per
            size = many * _width(part)
            data = np.frombuffer(joined(slices.part(start, size).gather()), np.uint8)
            start += size
            if part.role == OFFSETS:
                found[part.name] = sums(data.view(_LENGTH).astype(np.int64))
                counts[part.name] = np.diff(found[part.name][sums(many)])
            else:
                values = data != 0 if part.dtype == np.bool_ else data.view(part.dtype)
                found[part.name] = values.reshape(int(many.sum()), *part.shape)
        if (start != slices.sizes).any():
            raise ValueError("more bytes than the values have")
        return self._layout.build(found, count)

    def _pieces(self, array: pa.Array) -> Iterator[tuple[Bytes, Int64s]]:
        """Yield each part's bytes, and the offsets of the values in them."""
        found, count = self._layout.flatten(array), len(array)
        yield np.zeros(0, np.uint8), np.zeros(count + 1, np.int64)
        starts = {"": np.arange(count + 1)}
        for part in self._parts:
            places = starts[part.level] * part.per
            if part.role == OFFSETS:
                starts[part.name] = found[part.name][places]
                values = self._lengths(found[part.name])
            elif part.name in found:
                values = found[part.name]
            else:
                values = np.ones(part.count(found, count), np.bool_)
            yield values.reshape(-1).view(np.uint8), places * _width(part)

    def _lengths(self, offsets: Int64s) -> Array:
        lengths = np.diff(offsets)
        if lengths.max(initial=0) > np.iinfo(_LENGTH).max:
            raise SchemaError("a list of over 4 billion items", column=self._name)
        return lengths.astype(_LENGTH)


def _width(part: Part) -> int:
    return _LENGTH.itemsize if part.role == OFFSETS else part.nbytes
