"""The parts of a layout: what one is, what it is called, and what Arrow makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import SchemaError

Array = npt.NDArray[Any]
Found = Mapping[str, Array]
Int64s = npt.NDArray[np.int64]

VALID, OFFSETS, VALUES = "valid", "offsets", "values"
"""The roles of a part."""

_INT32_MAX = 2**31 - 1
_RESERVED = re.compile(r"[%/:\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Part:
    """One flat array of a column; `shape` is that of each value, () for a plain one.

    There are `per` values for each item of the list whose offsets are the part `level`; where that
    is empty, for each value of the column.
    """

    name: str
    role: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    level: str = ""
    per: int = 1

    @property
    def nbytes(self) -> int:
        """Return the bytes of one value."""
        return self.dtype.itemsize * prod(self.shape)

    def count(self, found: Found, length: int) -> int:
        """Return how many values `length` values of the column with these parts have here."""
        if not self.level:
            return self.per * length
        offsets = found[self.level]
        return self.per * int(offsets[-1] - offsets[0])


def escape(name: str) -> str:
    """Return the name of a column or field as parts have it."""
    if name in ("", "."):
        return "%2E" if name else "%"
    return _RESERVED.sub(lambda match: f"%{ord(match[0]):02X}", name)


def plain(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of a value with a fixed number of bits."""
    is_decimal, is_bytes = pa.types.is_decimal(kind), pa.types.is_fixed_size_binary(kind)
    if not (pa.types.is_primitive(kind) or is_decimal or is_bytes or pa.types.is_interval(kind)):
        raise SchemaError(f"type {kind} cannot be stored", hint="Flatten or decode it first")
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_), ()
    width = kind.bit_width // 8
    if is_bytes or width > 8 or pa.types.is_interval(kind):
        return np.dtype(np.uint8), (width,)
    unsigned = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"<{'f' if pa.types.is_floating(kind) else unsigned}{width}"), ()


def sums(lengths: Int64s) -> Int64s:
    """Return the offsets of runs of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def get(found: Found, part: Part, length: int) -> Array:
    """Return the values of a part, `length` in number; ValueError where they are not there."""
    array = found.get(part.name)
    if array is None:
        raise ValueError(f"the part '{part.name}' is missing")
    if array.dtype != part.dtype or array.shape != (length, *part.shape):
        raise ValueError(f"the part '{part.name}' has another dtype or shape than its column")
    return array


def bounds(offsets: Int64s, wide: bool) -> tuple[pa.Buffer, int]:
    """Return offsets from 0 as Arrow has them, and how many items they span.

    Raises ValueError where they do not ascend from 0 or above, or not fit 32 bits unless `wide`.
    """
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
    if first < 0 or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("offsets that do not ascend")
    if not wide and count > _INT32_MAX:
        raise ValueError("offsets beyond 2 GiB")
    local = offsets - first if first else offsets
    return buffer(local if wide else local.astype(np.int32)), count


def bitmap(flags: Array) -> pa.Buffer:
    """Return booleans as Arrow has them."""
    return pa.py_buffer(np.packbits(flags.view(np.uint8), bitorder="little"))


def buffer(array: Array) -> pa.Buffer:
    """Return the bytes of an array, not copied where they are contiguous."""
    return pa.py_buffer(np.ascontiguousarray(array))
