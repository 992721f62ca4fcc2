"""Columns whose values are plain, or flat lists of plain values: which lists in features they are.

`whole` are the rows that are not null and hold no null; the others have no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.formats.tfrecord.values import is_plain
from geodata.formats.tfrecord.wire import Bools, Int64s, sums
from geodata.schema import is_tensor

Values = tuple[pa.Array, Int64s]
"""Values without nulls, and the offsets of lists in them, or how many each list has."""


class Plain(Protocol):
    """How the values of one type become lists, and lists the values."""

    kinds: Sequence[pa.DataType]
    """The type of the values in each list."""

    def whole(self, array: pa.Array) -> Bools:
        """Return which values are neither null nor hold a null."""

    def lists(self, array: pa.Array, whole: Bools) -> list[Values]:
        """Return the values of the lists of all rows, empty where not whole, and their offsets."""

    def build(self, lists: Sequence[Values]) -> pa.Array:
        """Return the column's values from those of the lists, and how many each holds.

        ValueError or an Arrow error where it cannot have made them.
        """


def plain_of(field: pa.Field, kind: pa.DataType) -> Plain | None:
    """Return how values of a field that are stored as `kind` become lists, None if they do not."""
    if is_plain(kind):
        return Single(kind)
    if _is_flat(kind):
        return List(kind)
    return Tensor(kind) if is_tensor(field) and _is_shaped(kind) else None


class Single:
    """Plain values: lists of one."""

    def __init__(self, kind: pa.DataType):
        self.kinds: Sequence[pa.DataType] = [kind]

    def whole(self, array: pa.Array) -> Bools:
        return valid(array)

    def lists(self, array: pa.Array, whole: Bools) -> list[Values]:
        return [(array.drop_null(), sums(whole))]

    def build(self, lists: Sequence[Values]) -> pa.Array:
        ((values, counts),) = lists
        if (counts != 1).any():
            raise ValueError("a list that holds not one value")
        return values


class List:
    """Lists of plain values, of fixed size too."""

    def __init__(self, kind: pa.DataType):
        self.kinds: Sequence[pa.DataType] = [kind.value_type]
        self._kind = kind

    def whole(self, array: pa.Array) -> Bools:
        items = array.flatten()
        if not items.null_count:
            return valid(array)
        return valid(array) & ~within(~valid(items), sums(_counts(array)))

    def lists(self, array: pa.Array, whole: Bools) -> list[Values]:
        counts = np.where(whole, _counts(array), 0)
        kept = array if whole.all() else array.filter(pa.array(whole))
        return [(kept.flatten(), sums(counts))]

    def build(self, lists: Sequence[Values]) -> pa.Array:
        ((values, counts),) = lists
        if pa.types.is_fixed_size_list(self._kind):
            if (counts != self._kind.list_size).any():
                raise ValueError("a list of another size")
            return pa.Array.from_buffers(self._kind, len(counts), [None], children=[values])
        wide = pa.types.is_large_list(self._kind)
        offsets = pa.array(sums(counts), pa.int64() if wide else pa.int32())
        made = pa.LargeListArray if wide else pa.ListArray
        return made.from_arrays(offsets, values, type=self._kind)


class Tensor:
    """Structs of `data` and `shape`, both lists of plain values."""

    def __init__(self, kind: pa.DataType):
        self._kind = kind
        self._fields = [List(kind.field(i).type) for i in range(kind.num_fields)]
        self.kinds: Sequence[pa.DataType] = [field.kinds[0] for field in self._fields]

    def whole(self, array: pa.Array) -> Bools:
        data, shape = (
            field.whole(child) for field, child in zip(self._fields, array.flatten(), strict=True)
        )
        return data & shape

    def lists(self, array: pa.Array, whole: Bools) -> list[Values]:
        pairs = zip(self._fields, array.flatten(), strict=True)
        return [lists for field, child in pairs for lists in field.lists(child, whole)]

    def build(self, lists: Sequence[Values]) -> pa.Array:
        pairs = zip(self._fields, lists, strict=True)
        children = [field.build([pair]) for field, pair in pairs]
        return pa.StructArray.from_arrays(children, fields=list(self._kind))


def within(flags: Bools, offsets: Int64s) -> Bools:
    """Return which runs between offsets hold a flag."""
    upto = sums(flags)
    return upto[offsets[1:]] > upto[offsets[:-1]]


def valid(array: pa.Array) -> Bools:
    """Return which values are not null."""
    flags: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _is_flat(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_list(kind) for is_list in lists) and is_plain(kind.value_type)


def _is_shaped(kind: pa.DataType) -> bool:
    """Return whether `kind` is a struct of data and shape, both flat lists."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["data", "shape"]:
        return False
    return all(_is_flat(field.type) for field in kind)


def _counts(lists: pa.Array) -> Int64s:
    counts: Int64s = pc.list_value_length(lists).cast(pa.int64()).fill_null(0).to_numpy()
    return counts
