"""The lists in features of `tf.train.Example`: which values they hold, and how.

Plain values are

    string, binary, binary of fixed size        bytes
    float16, float32, float64                   floats; the last rounded to 32 bits
    bool, integers, dates, times, durations     integers: the one that Arrow stores
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.canonical import ragged
from geodata.formats.slices import Slices, joined
from geodata.formats.tfrecord.example import BYTES, FIRST, FLOATS, INTEGERS
from geodata.formats.tfrecord.wire import (
    Bytes,
    Int64s,
    Runs,
    enter,
    inside,
    packed,
    repeated,
    sums,
    unpacked,
    varint_nbytes,
)

_BINARY = pa.large_binary()
_TEXTS = (pa.string(), pa.large_string())
_BLOBS = (pa.binary(), pa.large_binary())
_SMALL = 16
_FLOAT = np.dtype("<f4")


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a list can hold values of this type."""
    return bool(
        pa.types.is_floating(kind)
        or _is_integral(kind)
        or kind in (*_TEXTS, *_BLOBS)
        or pa.types.is_fixed_size_binary(kind)
    )


def kind_of(kind: pa.DataType) -> bytes:
    """Return the kind of the lists that hold values of this plain type."""
    if pa.types.is_floating(kind):
        return FLOATS
    return INTEGERS if _is_integral(kind) else BYTES


def encode(values: pa.Array, offsets: Int64s) -> Runs:
    """Return the lists of the values, no nulls, between these offsets.

    Their last piece is empty where the list is. Raises ArrowInvalid for text that is not UTF-8.
    """
    kind = kind_of(values.type)
    if kind == BYTES:
        return _encode_bytes(values, offsets)
    if kind == FLOATS:
        data, ends = rounded(values).view(np.uint8), np.arange(len(values) + 1) * _FLOAT.itemsize
    else:
        data, ends = packed(_integers(values))
    runs = Runs.cut(data, ends[offsets])
    return runs.delimited(FIRST).where(runs.nbytes > 0)


def decode(lists: Slices, kind: pa.DataType) -> tuple[pa.Array, Int64s]:
    """Return the values of all lists, none absent, and how many each holds.

    ValueError or an Arrow error where they are not of this type.
    """
    if kind_of(kind) == BYTES:
        values, counts = _items(lists)
        return values.gather().cast(kind), counts
    filled = np.flatnonzero(lists.sizes)
    some = contents(lists.pick(filled))
    data, ends = _bytes(some), sums(some.sizes)
    counts = np.zeros(len(lists.sizes), np.int64)
    if kind_of(kind) == INTEGERS:
        numbers, counts[filled] = unpacked(data, ends)
        return _from_integers(numbers, kind), counts
    if (some.sizes % _FLOAT.itemsize).any():
        raise ValueError("a float that is cut off")
    counts[filled] = some.sizes // _FLOAT.itemsize
    return _from_floats(data.view(_FLOAT), kind), counts


def runs(lists: Slices) -> Slices:
    """Return the values of lists, none absent, that each have one of bytes, else ValueError."""
    values, counts = _items(lists)
    if (counts != 1).any():
        raise ValueError("a list that holds not one value")
    return values


def contents(lists: Slices) -> Slices:
    """Return the contents of lists, none absent, of one field each; ValueError for others."""
    stop = lists.offsets + lists.sizes
    start = inside(np.frombuffer(lists.data, np.uint8), lists.offsets, stop, FIRST)
    return Slices(lists.data, start, stop - start)


def rounded(values: pa.Array) -> npt.NDArray[np.float32]:
    """Return the nearest numbers of 32 bits."""
    with np.errstate(all="ignore"):
        numbers: npt.NDArray[np.float32] = values.to_numpy().astype(_FLOAT)
    return numbers


def nbytes(values: pa.Array) -> Int64s:
    """Return how long each value, no nulls, is in a list."""
    kind = kind_of(values.type)
    if kind == BYTES:
        lengths: Int64s = pc.binary_length(values).cast(pa.int64()).to_numpy()
        return lengths + varint_nbytes(lengths) + 1
    if kind == FLOATS:
        return np.full(len(values), _FLOAT.itemsize, np.int64)
    return varint_nbytes(_integers(values))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def _is_integral(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_time(kind))


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the integers whose bits are those of a time."""
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _integers(values: pa.Array) -> Int64s:
    if _is_time(values.type) or values.type == pa.uint64():
        values = values.view(_stored(values.type))
    numbers: Int64s = values.cast(pa.int64()).to_numpy()
    return numbers


def _from_integers(numbers: Int64s, kind: pa.DataType) -> pa.Array:
    """Return integers as `kind`; ValueError or ArrowInvalid for one that does not fit."""
    if pa.types.is_boolean(kind):
        if ((numbers != 0) & (numbers != 1)).any():
            raise ValueError("an integer that is no boolean")
        return pa.array(numbers != 0)
    array = pa.array(numbers)
    if _is_time(kind) or kind == pa.uint64():
        return array.cast(_stored(kind)).view(kind)
    return array.cast(kind)


def _from_floats(numbers: npt.NDArray[np.float32], kind: pa.DataType) -> pa.Array:
    with np.errstate(all="ignore"):
        return pa.array(numbers.astype(np.dtype(f"f{kind.bit_width // 8}")), kind)


def _bytes(slices: Slices) -> Bytes:
    """Return all bytes of slices, none absent."""
    most = int(slices.sizes.max(initial=0))
    if most > _SMALL:
        return np.frombuffer(joined(slices.gather()), np.uint8)
    places = np.arange(most)
    window = np.frombuffer(slices.data, np.uint8).take(
        slices.offsets[:, None] + places, mode="clip"
    )
    return window[places < slices.sizes[:, None]]


def _encode_bytes(values: pa.Array, offsets: Int64s) -> Runs:
    """Return lists of bytes; the values are copied unless each list has one."""
    if values.type in _TEXTS:
        values.validate(full=True)
    items = Runs.of(values.cast(_BINARY)).delimited(FIRST)
    if (np.diff(offsets) == 1).all():
        return items
    ends, data = ragged(items.join())
    return Runs.cut(data, ends[offsets])


def _items(lists: Slices) -> tuple[Slices, Int64s]:
    """Return the contents of all fields of lists, and how many fields each has."""
    if lists.sizes.all():
        data, stop = np.frombuffer(lists.data, np.uint8), lists.offsets + lists.sizes
        start, end = enter(data, lists.offsets, stop, FIRST)
        if (end == stop).all():
            return Slices(lists.data, start, end - start), np.ones(len(start), np.int64)
    buffer = joined(lists.gather())
    start, end, counts = repeated(np.frombuffer(buffer, np.uint8), sums(lists.sizes), FIRST)
    return Slices(buffer, start, end - start), counts
