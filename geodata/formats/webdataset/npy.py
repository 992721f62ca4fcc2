"""Tensors as the content of .npy files (version 1.0, row-major), and back, many at once.

A fixed-shape tensor is written as it is stored; its permutation stays in the schema. Headers are
compared with the ones written here, never evaluated.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import fixed
from geodata.errors import SchemaError
from geodata.formats.slices import Slices, joined, spread
from geodata.schema import is_tensor

Int64s = npt.NDArray[np.int64]
Shape = tuple[int, ...]

HEADER_NBYTES = 128
"""How long a header is, about."""

_MAGIC = b"\x93NUMPY\x01\x00"
_PREFIX = len(_MAGIC) + 2
_SHAPE = re.compile(rb"'shape': \(([0-9, ]*)\)")


def holds(field: pa.Field) -> bool:
    """Return whether `field` is a tensor of numbers or booleans."""
    if not is_tensor(field):
        return False
    if isinstance(field.type, pa.FixedShapeTensorType):
        return _is_plain(field.type.value_type)
    kind = field.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    lists = names == ["data", "shape"] and pa.types.is_list(kind.field("data").type)
    return bool(
        lists
        and _is_plain(kind.field("data").type.value_type)
        and kind.field("shape").type == pa.list_(pa.int32())
    )


def encode(array: pa.Array, field: pa.Field) -> list[bytes | None]:
    """Return each tensor as a file's content, None for null.

    Raises SchemaError where a tensor has null elements or not as many as its shape says.
    """
    valid = array.is_valid()
    if isinstance(field.type, pa.FixedShapeTensorType):
        data, shapes = array.storage, [tuple(field.type.shape)] * len(array)
        lists = [data]
    else:
        lists = data, shape = array.flatten()
        shapes = [tuple(dims or ()) for dims in shape.to_pylist()]
    if any(not part.is_valid().equals(valid) or part.flatten().null_count for part in lists):
        raise SchemaError("a tensor with null elements", column=field.name)
    return _contents(data, shapes, valid.to_pylist(), field)


def decode(slices: Slices, kind: pa.DataType) -> pa.Array:
    """Return the tensors whose files these are; ValueError where one is no such file."""
    found = slices.found()
    nothing = np.zeros(len(found.sizes), np.int64)
    prefix = found.part(nothing, nothing + _PREFIX).gather()
    lengths = np.frombuffer(joined(prefix), np.uint8).reshape(-1, _PREFIX)[:, 8:].copy()
    start = _PREFIX + lengths.view("<u2").reshape(-1).astype(np.int64)
    value_type = _value_type(kind)
    headers = found.part(nothing, start).gather().to_pylist()
    shapes = [_shape_of(content, _descr(value_type)) for content in headers]
    values = found.part(start, found.sizes - start)
    return spread(_tensors(values, shapes, kind, value_type), slices.present)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _value_type(kind: pa.DataType) -> pa.DataType:
    fixed_shape = isinstance(kind, pa.FixedShapeTensorType)
    return kind.value_type if fixed_shape else kind.field("data").type.value_type


def _descr(value_type: pa.DataType) -> str:
    """Return NumPy's name of the type, little-endian."""
    if pa.types.is_boolean(value_type):
        return "|b1"
    signed = "i" if pa.types.is_signed_integer(value_type) else "u"
    letter = "f" if pa.types.is_floating(value_type) else signed
    width = value_type.bit_width // 8
    return f"{'|' if width == 1 else '<'}{letter}{width}"


@lru_cache(maxsize=4096)
def _header(descr: str, shape: Shape) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(_PREFIX + len(text) + 1) % 64) + "\n"
    return _MAGIC + struct.pack("<H", len(text)) + text.encode()


@lru_cache(maxsize=4096)
def _shape_of(content: bytes, descr: str) -> Shape:
    match = _SHAPE.search(content)
    shape = tuple(int(size) for size in match[1].split(b",") if size.strip()) if match else ()
    if content != _header(descr, shape):
        raise ValueError("no .npy file of the column's type")
    return shape


def _contents(
    data: pa.Array, shapes: list[Shape], valid: list[bool], field: pa.Field
) -> list[bytes | None]:
    """Return header and values of each valid list of `data`."""
    value_type = data.type.value_type
    values = data.values.cast(pa.uint8()) if pa.types.is_boolean(value_type) else data.values
    width, descr = values.type.bit_width // 8, _descr(value_type)
    raw = fixed(values).reshape(-1).data
    contents: list[bytes | None] = []
    for (start, stop), shape, there in zip(_bounds(data), shapes, valid, strict=True):
        if there and (prod(shape) != stop - start or min(shape, default=0) < 0):
            raise SchemaError("a tensor's shape does not fit its elements", column=field.name)
        content = raw[start * width : stop * width]
        contents.append(b"".join((_header(descr, shape), content)) if there else None)
    return contents


def _bounds(data: pa.Array) -> list[tuple[int, int]]:
    """Return where each list starts and stops in `data.values`."""
    if pa.types.is_fixed_size_list(data.type):
        size = data.type.list_size
        starts = range(data.offset * size, (data.offset + len(data)) * size, size)
        return [(start, start + size) for start in starts]
    offsets = data.offsets.to_pylist()
    return list(pairwise(offsets))


def _tensors(
    values: Slices, shapes: list[Shape], kind: pa.DataType, value_type: pa.DataType
) -> pa.Array:
    """Return the tensors with these values, all there."""
    width = np.dtype(_descr(value_type)).itemsize
    counts = np.array([prod(shape) for shape in shapes], np.int64)
    if (counts * width != values.sizes).any():
        raise ValueError("content does not fit its shape")
    flat = _flat(joined(values.gather()), value_type, int(counts.sum()))
    if isinstance(kind, pa.FixedShapeTensorType):
        if any(shape != tuple(kind.shape) for shape in shapes):
            raise ValueError("a tensor of another shape")
        storage = pa.Array.from_buffers(kind.storage_type, len(shapes), [None], children=[flat])
        return pa.ExtensionArray.from_storage(kind, storage)
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays(ends, flat, type=kind.field("data").type),
            pa.array([list(shape) for shape in shapes], kind.field("shape").type),
        ],
        fields=[kind.field("data"), kind.field("shape")],
    )


def _flat(data: pa.Buffer, value_type: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_boolean(value_type):
        return pa.array(np.frombuffer(data, np.uint8) != 0)
    return pa.Array.from_buffers(value_type, count, [None, data])
