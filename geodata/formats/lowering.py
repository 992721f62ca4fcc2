"""Types that a format cannot hold, as types that it can, and back without loss.

Two steps of Arrow do it at any depth: a cast between types of the same values (a timestamp in
seconds as one in milliseconds), then a view of the same bytes (an interval as 16 bytes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Replace = Callable[[pa.DataType], pa.DataType | None]


@dataclass(frozen=True, slots=True)
class Lowering:
    """How values of `kind` are stored: cast to `cast`, then seen as `stored`."""

    kind: pa.DataType
    cast: pa.DataType
    stored: pa.DataType

    @classmethod
    def of(cls, kind: pa.DataType, *, casts: Replace, views: Replace) -> Lowering:
        """Return the lowering of `kind`; both functions give a type's substitute or None."""
        cast = retype(kind, casts)
        return cls(kind, cast, retype(cast, views))

    def lower(self, array: pa.Array) -> pa.Array:
        """Return the values as `stored`; ArrowInvalid where one does not fit."""
        if self._unwraps:
            array = array.storage
        return _view(_cast(array, self.cast), self.stored)

    def restore(self, array: pa.Array) -> pa.Array:
        """Return stored values as `kind`, names of list items included."""
        kind = self.kind.storage_type if self._unwraps else self.kind
        values = _cast(_view(array, self.cast), kind)
        if not values.type.equals(kind, check_metadata=True):
            values = values.view(kind)
        return pa.ExtensionArray.from_storage(self.kind, values) if self._unwraps else values

    @property
    def _unwraps(self) -> bool:
        """Return whether an extension type is stored as its storage."""
        return isinstance(self.kind, pa.BaseExtensionType) and self.cast != self.kind


def retype(kind: pa.DataType, replace: Replace) -> pa.DataType:
    """Return `kind` with every type for which `replace` returns one replaced, outermost first."""
    made = replace(kind)
    if made is not None:
        return made
    if isinstance(kind, pa.BaseExtensionType):
        storage = retype(kind.storage_type, replace)
        return kind if storage == kind.storage_type else storage
    if pa.types.is_struct(kind):
        return pa.struct([_refield(kind.field(i), replace) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        key, item = _refield(kind.key_field, replace), _refield(kind.item_field, replace)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_refield(kind.value_field, replace), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_refield(kind.value_field, replace))
    if pa.types.is_list(kind):
        return pa.list_(_refield(kind.value_field, replace))
    return kind


def _refield(field: pa.Field, replace: Replace) -> pa.Field:
    return field.with_type(retype(field.type, replace))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _view(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.view(kind)
