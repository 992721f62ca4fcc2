"""One Arrow type for two, without loss, and arrays brought to it.

null gives way to any type; integers, floats, decimals, times and offsets widen; structs unite
field by field, lists by their items, tensors of several shapes to those of varying shape. 64-bit
integers and floats, or the two kinds of 64-bit integers, unite only where the values seen allow it:
the caller knows their range. A timestamp may get a finer unit; one too far away for it does not fit
then, and says so.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import SchemaError
from geodata.schema import plain_type
from geodata.sources.batches import Unfit
from geodata.sources.tensors import (
    are_tensors,
    fixed_tensors,
    is_fixed,
    lists_of,
    tensor_type,
    value_type,
    varying_tensors,
)

_UNITS = ("s", "ms", "us", "ns")


class Clash(Exception):
    """Two types without a common one, and the path where they meet."""

    def __init__(self, path: str, one: pa.DataType, other: pa.DataType):
        super().__init__(path)
        self.path, self.one, self.other = path, one, other


def check_usable(schema: pa.Schema) -> None:
    """Raise ValueError for a name that is not UTF-8, and for a type that pyarrow only half knows.

    Both may stand deep within a column's type; the name of a time zone counts too.
    """
    for field in schema:
        _check_usable(field)


def _check_usable(field: pa.Field) -> None:
    field.name  # noqa: B018
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) in ("month_interval", "day_time_interval"):
        raise ValueError(f"type {kind}")
    if pa.types.is_timestamp(kind):
        kind.tz  # noqa: B018
    if pa.types.is_fixed_size_list(kind) and kind.list_size < 1:
        raise ValueError("lists of no size")
    for number in range(kind.num_fields):
        _check_usable(kind.field(number))


def bare(kind: pa.DataType) -> pa.DataType:
    """Return the type without what files add to it: names of items, nullability, metadata."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, bare(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(bare(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(bare(kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
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
    if are_tensors(one, other):
        values = united(value_type(one), value_type(other), f"{path}[]", first_wins)
        return tensor_type(values, one, other)
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
    if is_fixed(array.type) and are_tensors(array.type, kind):
        return _conform_tensor(array, kind, path)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        return _conform_struct(array, kind, path)
    if _is_varying_list(array.type) and _is_varying_list(kind):
        return _conform_list(array, kind, path)
    return _conform_leaf(array, kind, path)


def _conform_struct(array: pa.StructArray, kind: pa.StructType, path: str) -> pa.StructArray:
    present = {field.name: i for i, field in enumerate(array.type)}
    for name in present:
        if kind.get_field_index(name) < 0:
            raise Unfit(f"'{path}.{name}' is not in the schema")
    below = array.flatten()
    children = [
        conform(below[present[field.name]], field.type, f"{path}.{field.name}")
        if field.name in present
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _conform_tensor(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return tensors of fixed shape with other values, or as tensors of varying shape."""
    shape = array.type.shape
    if is_fixed(kind) and list(kind.shape) != list(shape):
        raise Unfit.of(path, kind, f"a tensor of shape {list(shape)}")
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    values = conform(array.storage.flatten(), value_type(kind), f"{path}[]")
    if is_fixed(kind):
        return fixed_tensors(values, valid, kind)
    shapes = np.tile(np.array(shape, np.int32), (int(valid.sum()), 1))
    return varying_tensors(values, shapes, valid, kind)


def _conform_list(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    items = conform(array.flatten(), kind.value_type, f"{path}[]")
    lengths = pc.list_value_length(array).drop_null().to_numpy()
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return lists_of(items, lengths, valid, kind)


def _conform_leaf(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    try:
        plain = bare(plain_type(array.type, path))
    except SchemaError as error:
        raise Unfit(f"'{path}': {error.message}") from error
    fits = _are_integers(plain, kind) or (_is_number(plain) and pa.types.is_float64(kind))
    try:
        if not fits and not united(kind, plain, path, first_wins=False).equals(kind):
            raise Unfit.of(path, kind, str(plain))
        return array.cast(kind, safe=True)
    except Clash as clash:
        raise Unfit.of(clash.path, clash.one, str(clash.other)) from clash
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Unfit.of(path, kind, f"a value of {plain} that it cannot hold") from error


def _united_structs(
    one: pa.StructType, other: pa.StructType, path: str, first_wins: bool
) -> pa.DataType:
    fields = {field.name: field.type for field in one}
    for field in other:
        known = fields.get(field.name, pa.null())
        fields[field.name] = united(known, field.type, f"{path}.{field.name}", first_wins)
    return pa.struct(list(fields.items()))


def _list_of(items: pa.DataType, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the kind of list that holds both kinds."""
    fixed = pa.types.is_fixed_size_list
    if fixed(one) and fixed(other) and one.list_size == other.list_size:
        return pa.list_(items, one.list_size)
    large = pa.types.is_large_list(one) or pa.types.is_large_list(other)
    return pa.large_list(items) if large else pa.list_(items)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds all values of two types that are not nested, or None."""
    if _is_number(one) and _is_number(other):
        return _common_number(one, other)
    if _is_text(one) and _is_text(other):
        return pa.large_string()
    if _is_bytes(one) and _is_bytes(other):
        large = pa.types.is_large_binary(one) or pa.types.is_large_binary(other)
        return pa.large_binary() if large else pa.binary()
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return _common_decimal(one, other)
    if pa.types.is_date(one) and pa.types.is_date(other):
        return pa.date64()
    return _common_time(one, other)


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if _are_integers(one, other):
        signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
        if all(signed) or not any(signed):
            return one if one.bit_width > other.bit_width else other
        bits = max(k.bit_width * (1 if s else 2) for k, s in zip((one, other), signed, strict=True))
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)
    floats = [k for k in (one, other) if pa.types.is_floating(k)]
    digits = max(map(_digits, (one, other)))
    least = max(kind.bit_width for kind in floats)
    held = {16: (11, pa.float16()), 32: (24, pa.float32()), 64: (53, pa.float64())}
    return next(
        (kind for bits, (most, kind) in held.items() if bits >= least and most >= digits), None
    )


def _digits(kind: pa.DataType) -> int:
    """Return how many binary digits the integers of this type have; 0 for floats."""
    if pa.types.is_floating(kind):
        return 0
    return int(kind.bit_width) - int(pa.types.is_signed_integer(kind))


def _common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    wide = digits > 38 or pa.types.is_decimal256(one) or pa.types.is_decimal256(other)
    if digits > 76:
        return None
    return pa.decimal256(digits, scale) if wide else pa.decimal128(digits, scale)


def _common_time(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    checks = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
    if not any(check(one) and check(other) for check in checks):
        return None
    if pa.types.is_timestamp(one) and one.tz != other.tz:
        return None
    return max(one, other, key=lambda kind: _UNITS.index(kind.unit))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _are_integers(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(pa.types.is_integer(one) and pa.types.is_integer(other))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def _is_varying_list(kind: pa.DataType) -> bool:
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def _is_list(kind: pa.DataType) -> bool:
    return _is_varying_list(kind) or bool(pa.types.is_fixed_size_list(kind))
