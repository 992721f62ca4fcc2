"""Values as HDF5's own filters `shuffle` and `deflate` leave them, made and read without HDF5.

The bytes of values wider than one are put in the order of their place in the value, all lowest ones
first: offsets, which differ in these alone, then take a third. Stock h5py undoes both.
"""

from __future__ import annotations

import zlib

import numpy as np

from geodata.formats.layout import Array

CODEC = "deflate"
ENCODED = ("image", "audio")
"""Media that are compressed already, and are read in place."""
LEVEL = 9
RATIO = 1032
"""How many bytes one byte can stand for, at most; a property of the encoding."""
MOST_NBYTES = 1 << 30
"""Of the values that are deflated as one."""

_SAVING = 16
"""What would shrink by less than one part in so many is read in place instead."""


def deflate(array: Array) -> bytes | None:
    """Return the values deflated; None where that is not worth while."""
    if not 0 < array.nbytes <= MOST_NBYTES:
        return None
    size = array.dtype.itemsize
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    data = flat if size == 1 else np.ascontiguousarray(flat.reshape(-1, size).T)
    packed = zlib.compress(data.data, LEVEL)
    worth_while = len(packed) <= array.nbytes - max(array.nbytes // _SAVING, 1)
    return packed if worth_while else None


def inflate(data: Array, nbytes: int, size: int) -> Array:
    """Return values of `size` bytes as bytes, `nbytes` in all.

    Raises ValueError where the data are damaged, or hold more or less; no more is ever made.
    """
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data.data, nbytes + 1)
    except zlib.error:
        raise ValueError("compressed bytes that are damaged") from None
    if len(found) != nbytes or not unpacker.eof or unpacker.unused_data:
        raise ValueError("compressed bytes of another length than they must have")
    flat = np.frombuffer(found, np.uint8)
    if size == 1:
        return flat
    return np.ascontiguousarray(flat.reshape(size, -1).T).reshape(-1)
