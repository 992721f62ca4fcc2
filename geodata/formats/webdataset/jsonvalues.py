"""Arrow values as strict JSON, and back without loss.

Booleans, integers (uint64 too), strings, lists and structs are themselves; a map is a list of
[key, value] pairs. Floats are numbers, or "NaN", "Infinity", "-Infinity". Dates and timestamps are
ISO 8601 (UTC, "Z", where there is a zone), or the number Arrow stores beyond the years 1 to 9999;
times of day, durations and `date64` are that number always. Decimals are strings; binaries are
base64, as are intervals and decimals of a scale over their precision, by their bytes.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.lowering import Lowering, retype

Convert = Callable[[Any], Any]

_EPOCH = dt.datetime(1970, 1, 1)
_SECOND = dt.timedelta(seconds=1)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

dumps: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode
loads: Callable[[str], Any] = json.JSONDecoder().decode


class JsonColumn:
    """The JSON values of one column."""

    def __init__(self, field: pa.Field):
        self._field = field
        self._lowering = Lowering.of(field.type, casts=_storage_of, views=_view_of)
        self._encode = _encoder(field.type)
        self._decode = _decoder(field.type)

    def encode(self, array: pa.Array) -> list[Any]:
        """Return the values for `dumps`, None for null."""
        try:
            values = self._lowering.lower(array).to_pylist()
        except UnicodeDecodeError:
            raise SchemaError("a string that is not UTF-8", column=self._field.name) from None
        return _each(self._encode, values)

    def decode(self, values: list[Any]) -> pa.Array:
        """Return the array of what `json.loads` gave.

        A value that `encode` cannot have made raises ValueError, TypeError, KeyError,
        ArithmeticError or an Arrow error.
        """
        plain = pa.array(_each(self._decode, values), self._lowering.stored)
        return self._lowering.restore(plain)


def _storage_of(kind: pa.DataType) -> pa.DataType | None:
    is_extension = isinstance(kind, pa.BaseExtensionType)
    return retype(kind.storage_type, _storage_of) if is_extension else None


def _view_of(kind: pa.DataType) -> pa.DataType | None:
    """Return what Python is to see instead of `kind`, so that it loses nothing."""
    if pa.types.is_interval(kind) or _is_odd(kind):
        return pa.binary(kind.bit_width // 8)
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return None


def _each(convert: Convert | None, values: list[Any]) -> list[Any]:
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _encoder(kind: pa.DataType) -> Convert | None:
    """Return the function from a Python value to its JSON value; None where they are the same."""
    if pa.types.is_floating(kind):
        return _float_out
    if _is_bytes(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return str
    if pa.types.is_date32(kind):
        return _date_out
    if pa.types.is_timestamp(kind):
        return lambda value: _time_out(value, _DIGITS[kind.unit], "Z" if kind.tz else "")
    return _inside(kind, _encoder)


def _decoder(kind: pa.DataType) -> Convert | None:
    """Return the inverse of `_encoder`'s function."""
    if pa.types.is_floating(kind):
        return _half_in if pa.types.is_float16(kind) else _float_in
    if _is_bytes(kind):
        return lambda value: base64.b64decode(value, validate=True)
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_date32(kind):
        return _date_in
    if pa.types.is_timestamp(kind):
        return lambda value: _time_in(value, _DIGITS[kind.unit])
    return _inside(kind, _decoder)


def _inside(
    kind: pa.DataType, convert_of: Callable[[pa.DataType], Convert | None]
) -> Convert | None:
    """Return the function that converts what a nested value holds; None where nothing changes."""
    if isinstance(kind, pa.BaseExtensionType):
        return convert_of(kind.storage_type)
    if pa.types.is_map(kind):
        key, item = convert_of(kind.key_type), convert_of(kind.item_type)
        return lambda pairs: [(_one(key, k), _one(item, v)) for k, v in pairs]
    if pa.types.is_struct(kind):
        inner = {kind.field(i).name: convert_of(kind.field(i).type) for i in range(kind.num_fields)}
        if not any(inner.values()):
            return None
        return lambda value: {name: _one(inner[name], child) for name, child in value.items()}
    if pa.types.is_nested(kind):
        items = convert_of(kind.value_type)
        return None if items is None else lambda values: _each(items, values)
    return None


def _one(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_interval(kind)
        or _is_odd(kind)
    )


def _is_odd(kind: pa.DataType) -> bool:
    """Return whether `kind` is a decimal that Arrow cannot make from Python's."""
    return bool(pa.types.is_decimal(kind) and kind.scale > kind.precision)


def _float_out(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float_in(value: float | str) -> float:
    return _NONFINITE[value] if isinstance(value, str) else float(value)


def _half_in(value: float | str) -> np.float16:
    return np.float16(_float_in(value))


def _date_out(days: int) -> str | int:
    try:
        return (_EPOCH + dt.timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _date_in(value: str | int) -> int:
    if isinstance(value, int):
        return value
    return (dt.datetime.fromisoformat(value) - _EPOCH).days


def _time_out(value: int, digits: int, zone: str) -> str | int:
    seconds, rest = divmod(value, 10**digits)
    try:
        moment = (_EPOCH + seconds * _SECOND).isoformat()
    except OverflowError:
        return value
    return f"{moment}.{rest:0{digits}}{zone}" if digits else moment + zone


def _time_in(value: str | int, digits: int) -> int:
    if isinstance(value, int):
        return value
    seconds = (dt.datetime.fromisoformat(value[:19]) - _EPOCH) // _SECOND
    per_second: int = 10**digits
    return seconds * per_second + int(value[20 : 20 + digits] or 0)
