"""One Arrow type for two, without loss, and arrays brought to it.

null gives way to any type; integers, floats, decimals, times and offsets widen; structs unite
field by field, lists by their items. 64-bit integers and floats, or the two kinds of 64-bit
integers, unite only where the values seen allow it: the caller knows their range. A timestamp may
get a finer unit; one too far away for it does not fit then, and says so.
"""

from __future__ import annotations

import pyarrow as pa

from geodata.sources.batches import Unfit

_UNITS = ("s", "ms", "us", "ns")


class Clash(Exception):
    """Two types without a common one, and the path where they meet."""

    def __init__(self, path: str, one: pa.DataType, other: pa.DataType):
        super().__init__(path)
        self.path, self.one, self.other = path, one, other


def bare(kind: pa.DataType) -> pa.DataType:
    """Return the type without what files add to it: names of items, nullability, metadata."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, bare(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(bare(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(bare(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(bare(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(bare(kind.key_type), bare(kind.item_type))
    return kind


def united(one: pa.DataType, other: pa.DataType, path: str, first_wins: bool) -> pa.DataType:
    """Return the type that holds both; else the first when `first_wins`, or raise Clash."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _united_structs(one, other, path, first_wins)
    if _is_list(one) and _is_list(other):
        items = united(one.value_type, other.value_type, f"{path}[]", first_wins)
        return _list_of(items, one, other)
    if pa.types.is_map(one) and pa.types.is_map(other):
        keys = united(one.key_type, other.key_type, f"{path}.key", first_wins)
        return pa.map_(keys, united(one.item_type, other.item_type, f"{path}.value", first_wins))
    common = _common(one, other)
    if common is None and not first_wins:
        raise Clash(path, one, other)
    return one if common is None else common


def conform(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return the array as `kind`, every value unchanged; raise Unfit if one cannot be."""
    if array.type.equals(kind):
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    plain = bare(array.type)
    try:
        if not (_are_numbers(plain, kind) or united(kind, plain, path, False).equals(kind)):
            raise Unfit.of(path, kind, str(plain))
        return array.cast(kind, safe=True)
    except Clash as error:
        raise Unfit.of(error.path, error.one, str(error.other)) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Unfit.of(path, kind, f"a value of {plain} that it cannot hold") from error
