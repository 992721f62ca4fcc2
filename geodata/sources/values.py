"""Python values as parsed from JSON → Arrow arrays, strictly.

`pa.array` drops the fraction of 1.5 for an int64 and fields that a struct lacks; here a value that
its column cannot hold without change is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from geodata.sources.batches import Unfit
from geodata.sources.observed import is_double

_NAMES = {bool: "bool", int: "int64", float: "double", str: "string", list: "list", dict: "struct"}
_NULL = type(None)


def array_of(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """Return the values as an array of type `kind`; raise Unfit for the first that does not fit."""
    if _fits(values, kind):
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    return pa.array([fitted(value, kind, path) for value in values], kind)


def _fits(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Return whether `pa.array` would take the values as they are, or refuse to."""
    if not set(map(type, values)) <= _accepted(kind) | {_NULL}:
        return False
    if pa.types.is_struct(kind):
        present = [value for value in values if value is not None]
        names = {field.name for field in kind}
        return set(chain.from_iterable(present)) <= names and all(
            _fits([value.get(field.name) for value in present], field.type) for field in kind
        )
    if pa.types.is_nested(kind):
        items = chain.from_iterable(value for value in values if value is not None)
        return _fits(list(items), kind.value_type)
    return True


def holds_infinity(array: pa.Array) -> bool:
    """Return whether a float anywhere in the array is infinite."""
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_inf(array)).as_py())
    if pa.types.is_struct(array.type):
        return any(map(holds_infinity, array.flatten()))
    return pa.types.is_nested(array.type) and holds_infinity(array.flatten())


def fitted(value: Any, kind: pa.DataType, path: str) -> Any:
    """Return the value as `pa.array` takes it for `kind`, equal to the one given; else Unfit."""
    if value is None:
        return None
    if type(value) not in _accepted(kind):
        raise Unfit.of(path, _name(kind), _NAMES[type(value)])
    if isinstance(value, dict):
        return _fitted_fields(value, kind, path)
    if isinstance(value, list):
        if pa.types.is_fixed_size_list(kind) and len(value) != kind.list_size:
            raise Unfit.of(path, kind, f"{len(value)} items")
        return [fitted(item, kind.value_type, f"{path}[]") for item in value]
    return _fitted_integer(value, kind, path) if type(value) is int else value


def _fitted_fields(value: dict[str, Any], kind: pa.DataType, path: str) -> dict[str, Any]:
    fields = {field.name: field.type for field in kind}
    for name in value:
        if name not in fields:
            raise Unfit(f"'{path}.{name}' is not in the schema")
    return {
        name: fitted(value.get(name), below, f"{path}.{name}") for name, below in fields.items()
    }


def _fitted_integer(value: int, kind: pa.DataType, path: str) -> int | float:
    if pa.types.is_floating(kind):
        if not is_double(value):
            raise Unfit.of(path, kind, "an integer that it cannot hold")
        return float(value)
    bits = kind.bit_width
    signed = pa.types.is_signed_integer(kind)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise Unfit.of(path, kind, "an integer out of its range")
    return value


def _accepted(kind: pa.DataType) -> set[type]:
    """Return the Python types of the values that a column of this type may hold."""
    if pa.types.is_boolean(kind):
        return {bool}
    if pa.types.is_integer(kind):
        return {int}
    if pa.types.is_float64(kind):
        return {float, int}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {str}
    if pa.types.is_struct(kind):
        return {dict}
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return {list} if any(check(kind) for check in lists) else set()


def _name(kind: pa.DataType) -> str:
    """Return the type's name; without what is inside, since that may be long."""
    if pa.types.is_struct(kind):
        return "struct"
    return "list" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else str(kind)
