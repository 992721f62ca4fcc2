"""Serialized `tf.train.Example` messages, many at once.

An Example is a map from names to features; a feature is a list of bytes, of floats or of integers:

    Example  1: Features     Features  1: entry, once a feature     entry  1: name, 2: Feature
    Feature  1: BytesList, or 2: FloatList, or 3: Int64List
    BytesList  1: value, repeated     FloatList, Int64List  1: all values, packed

The entries stand in an order that the reader knows, absent ones left out, each name before its
feature. Whatever else a map could look like is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from geodata.formats.slices import Slices
from geodata.formats.tfrecord.wire import Bools, Bytes, Int64s, Runs, enter, field, fields, inside

FIRST, SECOND, THIRD = b"\x0a", b"\x12", b"\x1a"
"""The tags of a message's fields."""
BYTES, FLOATS, INTEGERS = FIRST, SECOND, THIRD
"""The kinds of a feature: the tag of its list."""


class Feature(NamedTuple):
    """A feature: `key` is how its entries start, `kind` the tag of its list."""

    key: bytes
    kind: bytes

    @classmethod
    def of(cls, name: str, kind: bytes) -> Feature:
        """Return the feature of that name."""
        return cls(field(FIRST, name.encode()), kind)

    @property
    def header_nbytes(self) -> int:
        """Return about how many bytes an entry takes beside its values: name, tags, lengths."""
        return len(self.key) + 16

    def entries(self, values: Runs, present: Bools) -> Runs:
        """Return the entry in each row's Example, from the bytes of its list.

        Where it is not `present`, the last piece of `values` must be empty.
        """
        value = values.delimited(self.kind).delimited(SECOND)
        return value.after(self.key).delimited(FIRST).where(present)

    def entry(self, values: Sequence[bytes]) -> bytes:
        """Return an entry with these values of bytes."""
        value = field(BYTES, b"".join(field(FIRST, value) for value in values))
        return field(FIRST, self.key + field(SECOND, value))


def examples(entries: Sequence[Runs], count: int) -> pa.Array:
    """Return the Examples of `count` rows that have these entries, as large_binary."""
    return Runs.chained(entries, count).delimited(FIRST).join()


def example_of(entries: bytes) -> bytes:
    """Return the Example with these entries, one after another."""
    return field(FIRST, entries)


def entries_of(example: bytes | pa.Buffer) -> bytes:
    """Return all entries of an Example, one after another."""
    ((_, entries),) = fields(memoryview(example), FIRST)
    return bytes(entries)


def last(example: memoryview, feature: Feature) -> tuple[memoryview, list[bytes]]:
    """Return all entries of an Example but the last, and this one's values of bytes.

    ValueError where it is not of that feature, or that no Example.
    """
    ((_, entries),) = fields(example, FIRST)
    *_, (start, entry) = fields(entries, FIRST)
    if bytes(entry[: len(feature.key)]) != feature.key:
        raise ValueError("another feature")
    ((_, value),) = fields(entry[len(feature.key) :], SECOND)
    ((_, values),) = fields(value, BYTES)
    return entries[:start], [bytes(content) for _, content in fields(values, FIRST)]


def split(
    data: Bytes, messages: Slices, features: Sequence[Feature], wanted: Collection[Feature]
) -> Mapping[Feature, Slices]:
    """Return the lists of each wanted feature that some of these Examples have; some may be absent.

    `features` are all that there may be, in order. ValueError where an Example is malformed, or
    has others.
    """
    stop = np.where(messages.present, messages.offsets + messages.sizes, 0)
    at, there = stop.copy(), np.flatnonzero(messages.present)
    at[there] = inside(data, messages.offsets[there], stop[there], FIRST)
    at, end = _enter(data, at, stop)
    found = {}
    for feature in features:
        here = _starts(data, at, end, feature.key)
        rows = np.flatnonzero(here)
        if not rows.size:
            continue
        if feature in wanted:
            lists = _lists(data, at[rows] + len(feature.key), end[rows], feature.kind)
            found[feature] = among(messages.data, lists, end[rows] - lists, here)
        at[rows], end[rows] = _enter(data, end[rows], stop[rows])
    if (at < stop).any():
        raise ValueError("a feature that no column has")
    return found


def among(data: pa.Buffer, offsets: Int64s, sizes: Int64s, present: Bools) -> Slices:
    """Return runs of bytes for the rows that are present, in order, none for the others."""
    slices = Slices(data, np.zeros(len(present), np.int64), np.full(len(present), -1, np.int64))
    slices.offsets[present], slices.sizes[present] = offsets, sizes
    return slices


def _enter(data: Bytes, at: Int64s, stop: Int64s) -> tuple[Int64s, Int64s]:
    """Return where the contents start and end of the entries that stand at these places."""
    start, end = stop.copy(), stop.copy()
    left = np.flatnonzero(at < stop)
    if left.size:
        start[left], end[left] = enter(data, at[left], stop[left], FIRST)
    return start, end


def _starts(data: Bytes, at: Int64s, end: Int64s, key: bytes) -> Bools:
    """Return which contents start with `key`."""
    rows: Bools = data.take(at + 1, mode="clip") == key[1]
    if rows.any():
        places = at[rows][:, None] + np.arange(len(key))
        same = data.take(places, mode="clip") == np.frombuffer(key, np.uint8)
        rows[rows] = same.all(axis=1) & (places[:, -1] < end[rows])
    return rows


def _lists(data: Bytes, at: Int64s, end: Int64s, kind: bytes) -> Int64s:
    """Return where the lists start that are the Features at these places, up to `end`."""
    return inside(data, inside(data, at, end, SECOND), end, kind)
