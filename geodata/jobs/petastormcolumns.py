"""Columns as Petastorm stores them, so that its readers give the values back.

Scalars stay as they are; what its reader cannot take is brought to what it can: float16 to float32,
instants to UTC without a zone, times of day to text, structs, maps and nested lists to JSON.
Tensors and lists of numbers, booleans or strings are NumPy files, decoded by its NdarrayCodec.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import SchemaError
from geodata.formats.webdataset import npy
from geodata.schema import is_tensor, media_of, tensor_field

_LEAVE_OUT = "Leave the column out with --columns"
NDARRAY, IMAGE = "NdarrayCodec", "CompressedImageCodec"
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Petastorm dataset: its type in Parquet and in the Unischema, and the way there.

    `dtype` names a type of NumPy's, or Decimal, object, bytes (NumPy's lose NULs at their end, on
    their way out of a process). Without `shape` it depends on the values' rank.
    Where there are nulls it may be `nullable`: Petastorm turns no NaT into NumPy's.
    """

    name: str
    stored: pa.DataType
    dtype: str
    encode: Callable[[pa.Array], pa.Array]
    shape: Shape | None = ()
    codec: str | None = None
    nullable: str | None = None

    def to_json(self, rank: int, nulls: bool) -> dict[str, Any]:
        """Return the column as the process that writes the Unischema takes it."""
        shape = [None] * rank if self.shape is None else list(self.shape)
        dtype = (self.nullable if nulls else None) or self.dtype
        return {"name": self.name, "dtype": dtype, "shape": shape, "codec": self.codec}


def column_of(field: pa.Field, decode_images: bool) -> Column:
    """Return how a column is stored; SchemaError if its name or type cannot be.

    With `decode_images` Petastorm decodes images, which then have one or three channels.
    """
    name, kind = field.name, field.type
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        hint = "Leave it out with --columns: records become Python named tuples"
        raise SchemaError("Petastorm cannot name a column so", column=name, hint=hint)
    if media_of(field) == "image" and decode_images:
        return Column(name, pa.binary(), "uint8", _as(pa.binary()), (None, None, 3), IMAGE)
    if is_tensor(field):
        return _tensor(field)
    if _is_list(kind):
        return _list(name, kind)
    return _nested(name) if pa.types.is_nested(kind) else _scalar(name, kind)


def _scalar(name: str, kind: pa.DataType) -> Column:
    if pa.types.is_float16(kind):
        return Column(name, pa.float32(), "float32", _as(pa.float32()))
    if _is_number(kind):
        return Column(name, kind, _numpy_name(kind), _as(kind))
    if pa.types.is_decimal(kind):
        return Column(name, kind, "Decimal", _as(kind))
    if pa.types.is_timestamp(kind):
        plain = pa.timestamp(kind.unit)
        return Column(name, plain, "datetime64", _as(plain), nullable="object")
    if pa.types.is_date(kind):
        return Column(name, pa.date32(), "datetime64", _as(pa.date32()))
    if pa.types.is_duration(kind):
        return Column(name, kind, "timedelta64", _as(kind), nullable="object")
    if any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string)):
        return Column(name, kind, "str_", _as(kind))
    if any(check(kind) for check in (pa.types.is_time, pa.types.is_null)):
        return Column(name, pa.string(), "str_", _as(pa.string()))
    return Column(name, pa.binary(), "bytes", _as(pa.binary()))


def _tensor(field: pa.Field) -> Column:
    fixed = isinstance(field.type, pa.FixedShapeTensorType)
    item = field.type.value_type if fixed else field.type.field("data").type.value_type
    shape = tuple(field.type.shape) if fixed else None
    return Column(field.name, pa.binary(), _numpy_name(item), _files_of(field), shape, NDARRAY)


def _list(name: str, kind: pa.DataType) -> Column:
    item = kind.value_type
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    if _is_number(item):
        field = tensor_field(name, item)

        def encode(array: pa.Array) -> pa.Array:
            return _files_of(field)(_one_dimensional(array, field))

        return Column(name, pa.binary(), _numpy_name(item), encode, (size,), NDARRAY)
    if any(check(item) for check in (pa.types.is_string, pa.types.is_large_string)):
        return Column(name, pa.binary(), "str_", _string_files(name), (size,), NDARRAY)
    return _nested(name)


def _nested(name: str) -> Column:
    def encode(array: pa.Array) -> pa.Array:
        return pa.array([_json(value) for value in array.to_pylist()], pa.string())

    return Column(name, pa.string(), "str_", encode)


def _as(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what casts an array without loss."""
    return lambda array: array if array.type.equals(kind) else array.cast(kind)


def _files_of(field: pa.Field) -> Callable[[pa.Array], pa.Array]:
    """Return what makes each tensor of a column a NumPy file."""
    return lambda array: pa.array(npy.encode(array, field), pa.binary())


def _one_dimensional(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return lists as tensors of rank 1; SchemaError where one has a null inside."""
    data = array.cast(field.type.field("data").type)
    if data.flatten().null_count:
        raise SchemaError("NumPy has no null in a list", column=field.name, hint=_LEAVE_OUT)
    lengths = pc.list_value_length(data).to_pylist()
    shapes = pa.array([None if n is None else [n] for n in lengths], field.type.field("shape").type)
    return pa.StructArray.from_arrays([data, shapes], fields=list(field.type), mask=data.is_null())


def _string_files(name: str) -> Callable[[pa.Array], pa.Array]:
    def content(words: list[str | None] | None) -> bytes | None:
        if words is None:
            return None
        if any(word is None or word.endswith("\0") for word in words):
            what = "NumPy has no null in a list, and no NUL at the end of a string"
            raise SchemaError(what, column=name, hint=_LEAVE_OUT)
        file = BytesIO()
        np.save(file, np.array(words, np.str_), allow_pickle=False)
        return file.getvalue()

    return lambda array: pa.array([content(words) for words in array.to_pylist()], pa.binary())


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=_told)


def _told(value: Any) -> Any:
    """Return what JSON has no type for: bytes in base64, times in ISO 8601, decimals as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Decimal) else float(value)


def _numpy_name(kind: pa.DataType) -> str:
    name: str = np.dtype(kind.to_pandas_dtype()).name
    return "bool_" if name == "bool" else name


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def _is_list(kind: pa.DataType) -> bool:
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def ranks_of(array: pa.Array) -> set[int]:
    """Return the ranks of varying tensors."""
    shapes = pc.struct_field(array, "shape")
    lengths: Iterable[int | None] = pc.unique(pc.list_value_length(shapes)).to_pylist()
    return {length for length in lengths if length is not None}
