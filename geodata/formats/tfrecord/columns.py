"""Which features of `tf.train.Example` the columns of a schema have.

A column's values stand under its own name where they are plain (`plain`) or flat lists of plain
values; those of a tensor do row by row, its shape as integers under `__geodata__/shape/NAME`. What
would lose something by it stands whole under `__geodata__/exact/NAME` (`exact`): a float64 that
is none of 32 bits, beside the rounded one; lists with nulls, and values of all other types,
alone. Null is no feature, an empty list an empty one.

A column whose name starts with `__geodata__/` stands under `__geodata__/column/NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.lowering import Lowering, retype
from geodata.formats.slices import RAGGED, Slices
from geodata.formats.tfrecord import values as tfvalues
from geodata.formats.tfrecord.exact import ExactColumn
from geodata.formats.tfrecord.example import BYTES, FIRST, Feature, among
from geodata.formats.tfrecord.plain import Values, plain_of, valid, within
from geodata.formats.tfrecord.wire import Bools, Int64s, Runs, sums

RESERVED = "__geodata__/"
"""How the names start of features that are no columns."""


class Column:
    """The features of one column: those of its plain values, then the exact one."""

    def __init__(self, field: pa.Field):
        self.name: str = field.name
        self._field = field
        self._lowering = Lowering.of(field.type, casts=_cast_of, views=_view_of)
        self._plain = plain_of(field, self._lowering.cast)
        self._codec = ExactColumn(field.with_type(self._lowering.stored))
        self._own = _own_features(field.name, self._plain.kinds if self._plain else [])
        self._exact = Feature.of(f"{RESERVED}exact/{field.name}", BYTES)

    @property
    def features(self) -> list[Feature]:
        """Return all features that there may be, in order."""
        return [*self._own, self._exact]

    @property
    def is_ragged(self) -> bool:
        """Return whether a row's feature has the bytes of its value."""
        return self._field.type in RAGGED

    def encode(self, array: pa.Array, live: Bools) -> list[Runs]:
        """Return the entries of the live ones among these values, of each feature that some have.

        Raises SchemaError for text that is not UTF-8.
        """
        array = self._lowering.lower(array)
        array = array if live.all() else array.filter(pa.array(live))
        whole, lists, lossy = self._divide(array)
        entries = [
            feature.entries(self._encode(values, offsets), whole)
            for feature, (values, offsets) in zip(self._own, lists, strict=True)
            if whole.any()
        ]
        if lossy.any():
            exact = self._codec.encode(array.filter(pa.array(lossy)))
            content = Runs.of(_placed([(lossy, exact)], len(array), exact.type))
            entries.append(self._exact.entries(content.delimited(FIRST), lossy))
        return entries

    def nbytes(self, array: pa.Array) -> Int64s:
        """Return about how many bytes the entries of each value take at most."""
        array = self._lowering.lower(array)
        total = np.zeros(len(array), np.int64)
        whole, lists, lossy = self._divide(array)
        for feature, (values, offsets) in zip(self._own, lists, strict=True):
            sizes = np.diff(sums(tfvalues.nbytes(values))[offsets])
            total += np.where(whole, sizes + feature.header_nbytes, 0)
        if lossy.any():
            exact = self._codec.nbytes(array.filter(pa.array(lossy)))
            total[lossy] += exact + self._exact.header_nbytes
        return total

    def decode(self, found: Mapping[Feature, Slices], count: int) -> pa.Array:
        """Return the values of `count` rows with these features.

        ValueError or an Arrow error where they are not of the column's type.
        """
        groups = []
        lossy, whole = _present(found, [self._exact], count), _present(found, self._own, count)
        if lossy.any():
            contents = tfvalues.contents(found[self._exact].pick(lossy))
            groups.append((lossy, self._codec.decode(contents)))
            whole &= ~lossy
        if self._plain and whole.any():
            pairs = zip(self._own, self._plain.kinds, strict=True)
            lists = [tfvalues.decode(found[feature].pick(whole), kind) for feature, kind in pairs]
            groups.append((whole, self._plain.build(lists)))
        return self._lowering.restore(_placed(groups, count, self._lowering.stored))

    def runs(self, found: Mapping[Feature, Slices], count: int) -> Slices:
        """Return where the bytes lie of the values of `count` rows with these features.

        ValueError where they are not of the column's type, which is one of bytes.
        """
        (feature,) = self._own
        present = _present(found, [feature], count)
        if self._exact in found:
            raise ValueError("bytes that do not stand as they are")
        if not present.any():
            return Slices(pa.py_buffer(b""), np.zeros(count, np.int64), np.full(count, -1))
        values = tfvalues.runs(found[feature].pick(present))
        return among(values.data, values.offsets, values.sizes, present)

    def _divide(self, array: pa.Array) -> tuple[Bools, list[Values], Bools]:
        """Return which values stand plain, their lists, and which ones lose something so."""
        lossy = valid(array)
        if self._plain is None:
            return np.zeros(len(array), bool), [], lossy
        whole = self._plain.whole(array)
        lists = self._plain.lists(array, whole)
        return whole, lists, lossy & ~whole | _rounded(*lists[0])

    def _encode(self, values: pa.Array, offsets: Int64s) -> Runs:
        try:
            return tfvalues.encode(values, offsets)
        except pa.ArrowInvalid:
            raise SchemaError("a string that is not UTF-8", column=self._field.name) from None


def _own_features(name: str, kinds: Sequence[pa.DataType]) -> list[Feature]:
    own = f"{RESERVED}column/{name}" if name.startswith(RESERVED) else name
    names = [own, f"{RESERVED}shape/{name}"]
    return [Feature.of(*pair) for pair in zip(names, map(tfvalues.kind_of, kinds), strict=False)]


def _cast_of(kind: pa.DataType) -> pa.DataType | None:
    is_extension = isinstance(kind, pa.BaseExtensionType)
    return retype(kind.storage_type, _cast_of) if is_extension else None


def _view_of(kind: pa.DataType) -> pa.DataType | None:
    """Return integers for narrow decimals, which Arrow 20 cannot filter."""
    if pa.types.is_decimal(kind) and kind.bit_width <= 64:
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return None


def _rounded(values: pa.Array, offsets: Int64s) -> Bools:
    """Return which lists hold a number that 32 bits do not."""
    if values.type != pa.float64():
        return np.zeros(len(offsets) - 1, bool)
    exact = values.to_numpy()
    return within((tfvalues.rounded(values) != exact) & ~np.isnan(exact), offsets)


def _present(found: Mapping[Feature, Slices], features: list[Feature], count: int) -> Bools:
    """Return which rows have the first of these features; ValueError if not all that follow."""
    masks = [found[f].present if f in found else np.zeros(count, bool) for f in features]
    if any((mask != masks[0]).any() for mask in masks):
        raise ValueError("a tensor without its values or its shape")
    return masks[0].copy() if masks else np.zeros(count, bool)


def _placed(groups: list[tuple[Bools, pa.Array]], count: int, kind: pa.DataType) -> pa.Array:
    """Return `count` values, those of each group at its places, null elsewhere."""
    order, start = np.full(count, -1), 0
    for places, values in groups:
        order[places] = np.arange(start, start + len(values))
        start += len(values)
    if not groups:
        return pa.nulls(count, kind)
    if len(groups) == 1 and start == count:
        return groups[0][1]
    joined = pa.concat_arrays([values for _, values in groups])
    return joined.take(pa.array(order, mask=order < 0))
