"""Columns brought to the types that the user declares, every value unchanged.

What proves it: integers, floats and times are cast back and are the same; text is the number's own
spelling (`007` is no int32), reads exactly as the float, or is a time or decimal as ISO and Arrow
write it; bytes are UTF-8. A record with a value that would change is refused. `image`, `audio` and
`text` declare what a column of bytes or text holds.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError, SchemaError
from geodata.prepare.base import Preparing, Refuse
from geodata.prepare.typenames import parse_type
from geodata.schema import data_fields, is_label, media_field

MEDIA = ("image", "audio", "text")

_FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class Changed(Exception):
    """A value would not be the same in the other type."""


class DeclaredTypes:
    """The step of the columns whose types are declared."""

    def __init__(self, preparing: Preparing):
        self._types = dict(preparing.types)

    @classmethod
    def asked(cls, preparing: Preparing) -> bool:
        """Return whether any type is declared."""
        return bool(preparing.types)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with the declared types.

        Raises ConfigError for a column or type that there is not, SchemaError for a type that the
        column's can never become.
        """
        known = [field.name for field in data_fields(schema)]
        for name in self._types:
            if name not in known:
                raise ConfigError(
                    f"--schema declares '{name}', which is no column of the source",
                    hint=f"There are {', '.join(known)}",
                )
        return pa.schema([self._declared(field) for field in schema], schema.metadata)

    def apply(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Return the rows whose values are the same in the declared types."""
        wanted = self.schema(batch.schema)
        lost: dict[int, str] = {}
        for name in self._types:
            column, kind = batch.column(name), wanted.field(name).type
            for row in faults(column, kind):
                lost.setdefault(row, name)
        for row, name in sorted(lost.items()):
            reason = f"'{name}' cannot become {wanted.field(name).type} without change"
            refuse(row, reason, _raw(batch.column(name)[row].as_py()))
        if lost:
            kept = [row for row in range(batch.num_rows) if row not in lost]
            batch = batch.take(pa.array(kept, pa.int64()))
        arrays = [exactly(a, f.type) for a, f in zip(batch.columns, wanted, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def identity(self) -> str:
        """Return nothing: `Preparing` says all."""
        return "columns"

    def _declared(self, field: pa.Field) -> pa.Field:
        text = self._types.get(field.name)
        if text is None:
            return field
        kind = _media_type(field, text) if text in MEDIA else parse_type(text)
        check_becomes(field.type, kind, field.name)
        if text in MEDIA:
            return media_field(field.name, text).with_type(kind)
        same = kind.equals(field.type) or (is_label(field) and pa.types.is_integer(kind))
        return pa.field(field.name, kind, metadata=field.metadata if same else None)


def exactly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array as `kind`; Changed if one of its values would be another."""
    if array.type.equals(kind):
        return array
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        return _struct(array, kind)
    if _is_list(array.type) and _is_list(kind):
        return _list(array, kind)
    try:
        made = _cast(array, kind)
        if not _is_same(array, made):
            raise Changed
    except _FAILURES as error:
        raise Changed from error
    return made


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast safely; an integer becomes a decimal by way of one that surely holds it."""
    if pa.types.is_integer(array.type) and pa.types.is_decimal(kind):
        array = array.cast(pa.decimal256(min(20 + max(kind.scale, 0), 76), kind.scale))
    return array.cast(kind, safe=True)


def faults(array: pa.Array, kind: pa.DataType, first: int = 0) -> Iterator[int]:
    """Yield the rows, counted from `first`, whose values would change; halving finds them."""
    try:
        exactly(array, kind)
    except Changed:
        if len(array) == 1:
            yield first
            return
        half = len(array) // 2
        yield from faults(array.slice(0, half), kind, first)
        yield from faults(array.slice(half), kind, first + half)


def _struct(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    below = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [
        exactly(below[field.name], field.type)
        if field.name in below
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _list(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a list of any sort as another; a list of fixed size wants that many items of each."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    if pa.types.is_fixed_size_list(array.type):
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    items = exactly(array.flatten(), kind.value_type)
    fixed = pa.types.is_fixed_size_list(kind)
    if fixed and set(lengths[array.is_valid().to_numpy(zero_copy_only=False)]) - {kind.list_size}:
        raise Changed
    large = fixed or pa.types.is_large_list(kind)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    made, field = (
        (pa.LargeListArray, pa.large_list(kind.value_field))
        if large
        else (pa.ListArray, pa.list_(kind.value_field))
    )
    width = pa.int64() if large else pa.int32()
    listed = made.from_arrays(pa.array(offsets, width), items, type=field, mask=array.is_null())
    return listed.cast(kind) if fixed else listed


def _is_same(array: pa.Array, made: pa.Array) -> bool:
    """Return whether a cast array says what the original said."""
    if not _is_text(array.type) or _is_text(made.type) or pa.types.is_integer(made.type):
        return _are_equal(array, made.cast(array.type))
    if pa.types.is_floating(made.type):
        return all(map(_reads_as, array.to_pylist(), made.to_numpy(zero_copy_only=False)))
    return True


def _are_equal(one: pa.Array, other: pa.Array) -> bool:
    """Return whether two arrays hold the same; NaN is NaN, and -0.0 is not 0.0."""
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    left, right = (np.asarray(a.to_numpy(zero_copy_only=False)) for a in (one, other))
    signs = (np.signbit(left) == np.signbit(right)) | np.isnan(left)
    return bool(np.array_equal(left, right, equal_nan=True) and signs.all())


def _reads_as(text: str | None, value: np.floating[Any]) -> bool:
    """Return whether the shortest spelling of a float is the same number as the text."""
    if text is None:
        return True
    try:
        written, read = decimal.Decimal(text), decimal.Decimal(str(value))
    except decimal.InvalidOperation:
        return False
    return written == read or (written.is_nan() and read.is_nan())


def _media_type(field: pa.Field, media: str) -> pa.DataType:
    """Return the type of a column declared as media: of its own width, bytes or text."""
    wide = field.type in (pa.large_string(), pa.large_binary())
    if media == "text":
        return pa.large_string() if wide else pa.string()
    if _is_text(field.type):
        raise SchemaError(f"{field.type} is no {media}: files of it are bytes", column=field.name)
    return pa.large_binary() if wide else pa.binary()


def check_becomes(one: pa.DataType, other: pa.DataType, path: str) -> None:
    """Raise SchemaError if no value of a type can become one of another."""
    if pa.types.is_null(one) or one.equals(other):
        return
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        for field in one:
            if other.get_field_index(field.name) < 0:
                raise SchemaError(f"the declared struct lacks '{field.name}'", column=path)
            check_becomes(field.type, other.field(field.name).type, f"{path}.{field.name}")
        return
    if _is_list(one) and _is_list(other):
        check_becomes(one.value_type, other.value_type, f"{path}[]")
        return
    if _moves_clock(one, other):
        raise SchemaError(
            f"{one} cannot become {other}", column=path, hint="Times without a zone are of UTC"
        )
    try:
        _cast(pa.array([], one), other)
    except _FAILURES as error:
        raise SchemaError(f"{one} cannot become {other}", column=path) from error


def _moves_clock(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a timestamp would get or lose a zone other than UTC."""
    if not (pa.types.is_timestamp(one) and pa.types.is_timestamp(other)):
        return False
    return (one.tz is None) != (other.tz is None) and "UTC" not in (one.tz, other.tz)


def _raw(value: object) -> bytes:
    """Return the original bytes of a value that is text or bytes; of others there are none."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return value if isinstance(value, bytes) else b""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)
