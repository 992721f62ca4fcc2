"""The columns of a Petastorm dataset: what their values become in Arrow, and how it is made."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
from petastorm import codecs

MOST_RECORD = (1 << 30) - 1
"""Bytes of the longest record."""

_TENSORS = (codecs.NdarrayCodec, codecs.CompressedNdarrayCodec)


class Unreadable(Exception):
    """What cannot be read; the text says why, without content."""


class Field:
    """A column: its Unischema field, the Arrow type that is sent, and its place among columns."""

    def __init__(self, field: Any, stored: pa.DataType | None):
        self.name: str = field.name
        self.field = field
        self.stored = stored
        self.dtype = _dtype(field.numpy_dtype)
        self.shape = tuple(field.shape or ())
        self.role, self.kind = self._role_and_kind()

    def _role_and_kind(self) -> tuple[str, pa.DataType]:
        if isinstance(self.field.codec, codecs.CompressedImageCodec):
            return "image", pa.binary()
        if isinstance(self.field.codec, _TENSORS):
            return self._tensor()
        if self.stored is None:
            return "plain", _partition_type(self.dtype)
        if self.shape or self.dtype is None or pa.types.is_nested(self.stored):
            return "plain", self.stored
        wanted = pa.from_numpy_dtype(self.dtype)
        number = pa.types.is_integer(self.stored) or pa.types.is_floating(self.stored)
        return "plain", wanted if number or pa.types.is_boolean(self.stored) else self.stored

    def _tensor(self) -> tuple[str, pa.DataType]:
        if self.dtype is None:
            return "strings", _nested(pa.string(), len(self.shape))
        item = pa.from_numpy_dtype(self.dtype)
        size = int(np.prod([n or 0 for n in self.shape], dtype=np.int64)) if self.shape else 0
        if size:
            return "fixed", pa.list_(item, size)
        shape = pa.list_(pa.int32())
        return "varying", pa.struct([("data", pa.list_(item)), ("shape", shape)])

    def to_json(self) -> dict[str, Any]:
        """Return what our process must know beside the type."""
        return {"name": self.name, "role": self.role, "shape": list(self.shape)}

    def decoded(self, value: Any) -> Any:
        """Return an encoded array as `pa.array` takes it; raise Unreadable if it is another."""
        try:
            self._check_size(value)
            array = np.asarray(self.field.codec.decode(self.field, value))
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"'{self.name}' cannot be decoded: {type(error).__name__}") from error
        if self.role == "strings":
            return _texts(array, self.name)
        assert self.dtype is not None
        if not np.can_cast(array.dtype, self.dtype, "safe"):
            raise Unreadable(f"'{self.name}' is {self.dtype} here, this record holds {array.dtype}")
        if not _complies(array.shape, self.shape):
            raise Unreadable(f"'{self.name}' has shape {self.shape} here, not {array.shape}")
        return array.astype(self.dtype, "C", copy=False)

    def _check_size(self, value: bytes) -> None:
        """Raise Unreadable for a compressed array that says that it is longer than a record."""
        if isinstance(self.field.codec, codecs.CompressedNdarrayCodec):
            with zipfile.ZipFile(io.BytesIO(value)) as content:
                if sum(member.file_size for member in content.infolist()) > MOST_RECORD:
                    raise Unreadable(f"'{self.name}' holds 1 GiB or more once it is decoded")

    def tensors(self, arrays: list[Any]) -> pa.Array:
        """Return arrays, or None for null, as a column."""
        there = [array for array in arrays if array is not None]
        flat = np.concatenate([a.reshape(-1) for a in there]) if there else np.empty(0, self.dtype)
        if self.role == "fixed":
            return self._of_fixed_shape(arrays, flat)
        lengths = [0 if array is None else array.size for array in arrays]
        shapes = [None if array is None else array.shape for array in arrays]
        data = pa.ListArray.from_arrays(_offsets(lengths), pa.array(flat))
        missing = pa.array([array is None for array in arrays], pa.bool_())
        parts = [data, pa.array(shapes, pa.list_(pa.int32()))]
        return pa.StructArray.from_arrays(parts, fields=list(self.kind), mask=missing)

    def _of_fixed_shape(self, arrays: list[Any], flat: Any) -> pa.Array:
        """Return arrays as lists of one size: those that are there, placed by `take`."""
        made = pa.FixedSizeListArray.from_arrays(pa.array(flat), self.kind.list_size)
        there = np.array([array is not None for array in arrays])
        return made.cast(self.kind).take(pa.array(np.cumsum(there) - 1, pa.int32(), mask=~there))


def _dtype(found: Any) -> np.dtype[Any] | None:
    """Return the type of numbers or booleans that a field has, or None."""
    try:
        dtype = np.dtype(found)
    except TypeError:
        return None
    return dtype.newbyteorder("=") if dtype.kind in "biuf" and dtype.itemsize <= 8 else None


def _nested(kind: pa.DataType, levels: int) -> pa.DataType:
    return pa.list_(_nested(kind, levels - 1)) if levels else kind


def _partition_type(dtype: np.dtype[Any] | None) -> pa.DataType:
    return pa.string() if dtype is None else pa.from_numpy_dtype(dtype)


def _offsets(lengths: list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _complies(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == found for size, found in zip(wanted, shape, strict=True)
    )


def _texts(array: Any, name: str) -> Any:
    if array.dtype.kind not in "US":
        raise Unreadable(f"'{name}' is an array of strings here, this record holds {array.dtype}")
    try:
        return (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).tolist()
    except UnicodeDecodeError as error:
        raise Unreadable(f"'{name}' is not UTF-8") from error
