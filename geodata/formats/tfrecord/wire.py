"""The wire format of Protocol Buffers, many messages at once.

A message is a run of fields; those used here are a tag byte, a length and that many bytes. Lengths
and integers are varints: groups of seven bits, the lowest first, the high bit set on all but the
last. Messages are written as `Runs`, which one kernel of Arrow joins, and read in lockstep: each
message has a cursor of its own, and one step moves them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

VARINT_NBYTES = 10
"""How long a varint may be."""

_BINARY = pa.large_binary()
_NOTHING = pa.scalar(b"", _BINARY)
_SHIFTS = np.arange(0, 7 * VARINT_NBYTES, 7).astype(np.uint64)

_LENGTH = np.arange(1, 6)
"""The bytes after a tag that a length may take."""
_GROUPS = np.tril(np.full((5, 5), 127, np.uint8))
"""Which bits of those count, by the place of the last byte."""
_WEIGHTS = 1 << np.arange(0, 35, 7)
"""What the bytes weigh."""
_MOST = np.array([1, *(1 + width + (1 << 7 * width) - 1 for width in range(1, 5))])
"""How long a field may be, by how many bytes its length takes."""


@dataclass(frozen=True, slots=True)
class Runs:
    """One run of bytes a row, in pieces: constants, and large_binary arrays whose nulls are empty.

    `nbytes` is each row's length, all pieces together.
    """

    pieces: Sequence[bytes | pa.Array]
    nbytes: Int64s

    @classmethod
    def of(cls, array: pa.Array) -> Runs:
        """Return the values of a large_binary array, empty for null."""
        nbytes = pc.binary_length(array)
        return cls([array], (nbytes.fill_null(0) if array.null_count else nbytes).to_numpy())

    @classmethod
    def cut(cls, data: Bytes, offsets: Int64s) -> Runs:
        """Return the bytes between offsets that ascend, one more than there are rows."""
        return cls([_cut(data, offsets)], np.diff(offsets))

    @classmethod
    def chained(cls, runs: Sequence[Runs], count: int) -> Runs:
        """Return in each of `count` rows all of these runs, one after another."""
        nbytes = sum((part.nbytes for part in runs), np.zeros(count, np.int64))
        return cls([piece for part in runs for piece in part.pieces], nbytes)

    def after(self, constant: bytes) -> Runs:
        """Return these runs with a constant before each."""
        return Runs([constant, *self.pieces], self.nbytes + len(constant))

    def delimited(self, tag: bytes) -> Runs:
        """Return fields with these runs as content."""
        lengths = varints(self.nbytes)
        nbytes = len(tag) + lengths.nbytes + self.nbytes
        return Runs([tag, *lengths.pieces, *self.pieces], nbytes)

    def where(self, present: Bools) -> Runs:
        """Return the runs of some rows; the last piece must be empty in the others already."""
        if present.all():
            return self
        *front, last = self.pieces
        head = pc.if_else(pa.array(present), _joined(front), _NOTHING)
        return Runs([head, last], np.where(present, self.nbytes, 0))

    def join(self) -> pa.Array:
        """Return each row's bytes as large_binary."""
        return _joined(self.pieces)


def sums(lengths: Int64s | Bools) -> Int64s:
    """Return the offsets of runs of these lengths, one more than runs."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def varints(values: Int64s) -> Runs:
    """Return each integer as a varint: ten bytes where it is negative."""
    return Runs.cut(*packed(values))


def packed(values: Int64s) -> tuple[Bytes, Int64s]:
    """Return the varints of integers, one after another, and the n + 1 offsets of theirs."""
    widths = varint_nbytes(values)
    most = int(widths.max(initial=1))
    if most == 1:
        return values.astype(np.uint8), np.arange(len(values) + 1)
    places = np.arange(most)
    groups = (values.view(np.uint64)[:, None] >> _SHIFTS[:most]).astype(np.uint8)
    groups[places < widths[:, None] - 1] |= 128
    return groups[places < widths[:, None]], sums(widths)


def unpacked(data: Bytes, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Return the integers of runs of varints, and how many each run holds.

    `offsets` are where the runs start in `data`, and where the last one ends. ValueError where a
    run does not end with a varint.
    """
    data = data[offsets[0] : offsets[-1]]
    ends = np.flatnonzero(data < 128) + 1
    upto = np.searchsorted(ends, offsets - offsets[0], side="right")
    if (np.concatenate([[0], ends])[upto] != offsets - offsets[0]).any():
        raise ValueError("a varint that is cut off")
    starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
    return _values(data, starts, ends - starts), np.diff(upto)


def varint_nbytes(values: Int64s) -> Int64s:
    """Return how long the varint of each integer is."""
    bits, widths = values.view(np.uint64), np.ones(len(values), np.int64)
    for bound in range(7, 64, 7):
        over = bits >= np.uint64(1 << bound)
        if not over.any():
            break
        widths += over
    return widths


def enter(data: Bytes, at: Int64s, stop: Int64s, tag: bytes) -> tuple[Int64s, Int64s]:
    """Return where the content starts and ends of the fields that stand at these places.

    ValueError where a field has another tag, or does not end by `stop`.
    """
    start, end, good = _headers(data, at)
    if not (good & (end <= stop)).all() or (data.take(at, mode="clip") != tag[0]).any():
        raise ValueError("a field of another tag, or longer than its message")
    return start, end


def inside(data: Bytes, at: Int64s, stop: Int64s, tag: bytes) -> Int64s:
    """Return where the content starts of fields that each fill [at, stop).

    ValueError where a field has another tag or length, of which the first byte is compared.
    """
    widths = np.searchsorted(_MOST, stop - at)
    start = at + 1 + widths
    low = (stop - start) & 127 | (widths > 1) << 7
    alike = (data.take(at, mode="clip") == tag[0]) & (data.take(at + 1, mode="clip") == low)
    if not (alike & (widths > 0)).all():
        raise ValueError("a field of another tag or length than its message")
    return start


def repeated(data: Bytes, bounds: Int64s, tag: bytes) -> tuple[Int64s, Int64s, Int64s]:
    """Return where the contents of all fields start and end, and how many each message has.

    The messages lie one after another between `bounds`. Every byte that looks like the tag may
    start a field; those that do are found by following all fields at once, each step twice as far
    as the one before. ValueError where a message is not made of fields with this tag.
    """
    places = np.flatnonzero(data == tag[0])
    start, end, good = _headers(data, places)
    stop = bounds[np.searchsorted(bounds, places, side="right")]
    done, lost = len(places), len(places) + 1
    following = _index(places, end)
    following[end == stop] = done
    following[~good | (end > stop)] = lost
    first = _index(places, bounds[:-1][np.diff(bounds) > 0])
    reached = _follow(first, np.append(following, [done, lost]))
    if reached[lost]:
        raise ValueError("a field of another tag, or longer than its message")
    rows = np.flatnonzero(reached[:done])
    return start[rows], end[rows], np.diff(np.searchsorted(places[rows], bounds))


def field(tag: bytes, content: bytes) -> bytes:
    """Return one field."""
    length, _ = packed(np.array([len(content)]))
    return tag + length.tobytes() + content


def fields(message: memoryview, tag: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield where each field of a message starts, and its content; ValueError for another tag."""
    data, at, size = np.frombuffer(message, np.uint8), 0, np.array([len(message)])
    while at < len(message):
        start, stop = enter(data, np.array([at]), size, tag)
        yield at, message[start[0] : stop[0]]
        at = int(stop[0])


def _headers(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return where the contents start and end of fields at these places, and if a length does."""
    window = data.take(at[:, None] + _LENGTH, mode="clip")
    widths = (window < 128).argmax(axis=1)
    start = at + 2 + widths
    return start, start + (window & _GROUPS[widths]) @ _WEIGHTS, window.min(axis=1) < 128


def _index(places: Int64s, wanted: Int64s) -> Int64s:
    """Return which of the ascending places each wanted one is; one more than there are if none."""
    found = np.searchsorted(places, wanted)
    known = np.append(places, -1)[found] == wanted
    return np.where(known, found, len(places) + 1)


def _follow(first: Int64s, following: Int64s) -> Bools:
    """Return which nodes are reached from the first ones."""
    reached = np.zeros(len(following), bool)
    reached[first] = True
    while True:
        more = reached.copy()
        more[following[reached]] = True
        if np.array_equal(more, reached):
            return reached
        reached, following = more, following[following]


def _values(data: Bytes, starts: Int64s, widths: Int64s) -> Int64s:
    """Return the varints that start at these places of `data`."""
    most = int(widths.max(initial=0))
    if most > VARINT_NBYTES:
        raise ValueError("a varint that does not end")
    bits = np.zeros(len(starts), np.uint64)
    for place in range(most):
        rows = np.flatnonzero(widths > place)
        group = data[starts[rows] + place] & np.uint8(127)
        bits[rows] |= group.astype(np.uint64) << np.uint64(7 * place)
    return bits.view(np.int64)


def _cut(data: Bytes, offsets: Int64s) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(offsets) - 1, buffers)


def _joined(pieces: Sequence[bytes | pa.Array]) -> pa.Array:
    parts = [pa.scalar(p, _BINARY) if isinstance(p, bytes) else p for p in pieces]
    return pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=""
    )
