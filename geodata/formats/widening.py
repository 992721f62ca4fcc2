"""Types that hold all values of another, whatever these are: what a stored column may become.

Appending may widen the type of a column. The shards that are there stay as they were written, each
with the types that it has in its own files; opened as a part of the dataset, their values are those
of the wider type. So a column widens only where that succeeds for all values that there can be, and
changes none: null to any type, integers and floats to such as hold them exactly, at any depth, and
a struct by fields that are null in what is there. Of times none widens: a finer unit ends sooner.
"""

from __future__ import annotations

import pyarrow as pa

_DIGITS = {16: 11, 32: 24, 64: 53}
"""How many binary digits a float of so many bits holds."""


def widens(stored: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether every value of a type is one of another."""
    if stored.equals(wide) or pa.types.is_null(stored):
        return True
    if pa.types.is_struct(stored) and pa.types.is_struct(wide):
        return _structs_widen(stored, wide)
    if pa.types.is_map(stored) and pa.types.is_map(wide):
        return widens(stored.key_type, wide.key_type) and widens(stored.item_type, wide.item_type)
    if _are_lists(stored, wide):
        return widens(stored.value_type, wide.value_type)
    return _values_widen(stored, wide)


def widened(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values as a type to which theirs widens."""
    return array if array.type.equals(kind) else array.cast(kind)


def _structs_widen(stored: pa.StructType, wide: pa.StructType) -> bool:
    places = [wide.get_field_index(field.name) for field in stored]
    distinct = len(set(places)) == len(places) and -1 not in places
    return distinct and all(
        widens(field.type, wide.field(place).type)
        for field, place in zip(stored, places, strict=True)
    )


def _are_lists(stored: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(stored) and pa.types.is_fixed_size_list(wide):
        return bool(stored.list_size == wide.list_size)
    if pa.types.is_large_list(stored):
        return bool(pa.types.is_large_list(wide))
    lists = pa.types.is_list(wide) or pa.types.is_large_list(wide)
    return bool(pa.types.is_list(stored) and lists)


def _values_widen(stored: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_integer(stored) and pa.types.is_integer(wide):
        return _integers_widen(stored, wide)
    if pa.types.is_integer(stored) and pa.types.is_floating(wide):
        digits = stored.bit_width - int(pa.types.is_signed_integer(stored))
        return bool(digits <= _DIGITS[wide.bit_width])
    if pa.types.is_floating(stored) and pa.types.is_floating(wide):
        return bool(stored.bit_width < wide.bit_width)
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wide):
        whole = stored.precision - stored.scale <= wide.precision - wide.scale
        return bool(whole and stored.scale <= wide.scale)
    if pa.types.is_string(stored):
        return bool(pa.types.is_large_string(wide))
    if pa.types.is_fixed_size_binary(stored):
        return bool(pa.types.is_binary(wide) or pa.types.is_large_binary(wide))
    if pa.types.is_date32(stored):
        return bool(pa.types.is_date64(wide))
    return bool(pa.types.is_binary(stored) and pa.types.is_large_binary(wide))


def _integers_widen(stored: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_signed_integer(stored) == pa.types.is_signed_integer(wide):
        return bool(stored.bit_width < wide.bit_width)
    signed = pa.types.is_signed_integer(wide)
    return bool(signed and stored.bit_width < wide.bit_width)
