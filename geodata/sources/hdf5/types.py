"""HDF5 values → Arrow arrays.

Numbers and booleans keep their type; complex numbers get a last axis of two, real and imaginary. An
enumeration becomes the names of its values (in tensors: its integers). Text of fixed length loses
its padding. Opaque values, and `uint8` of varying length, are bytes; other values of varying length
are lists. A compound is a struct. Rows of several axes are tensors where they are numbers, else
lists of lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.sources.tensors import lists_of, tensor_type, varying_tensors

Array = npt.NDArray[Any]

NUMBER, COMPLEX, TIME, ENUM = "number", "complex", "time", "enumeration"
TEXT, BYTES, LIST, STRUCT = "text", "bytes", "list", "struct"
"""The forms of an element."""

_MAGIC = {
    b"\xff\xd8\xff": "image",
    b"\x89PNG\r\n\x1a\n": "image",
    b"GIF87a": "image",
    b"GIF89a": "image",
    b"BM": "image",
    b"II*\0": "image",
    b"MM\0*": "image",
    b"fLaC": "audio",
    b"OggS": "audio",
    b"ID3": "audio",
}
_RIFF = {b"WEBP": "image", b"WAVE": "audio"}


class Refused(Exception):
    """Content that records cannot be made of; the text says why, `hint` what to do."""

    def __init__(self, reason: str, hint: str):
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Element:
    """One value as HDF5 stores it: what it is, and the Arrow type of one.

    `item` is that of a list, `fields` those of a struct, `names` the names by value of an
    enumeration; `trim` takes the padding off a text of fixed length.
    """

    form: str
    dtype: np.dtype[Any]
    type: pa.DataType
    shape: tuple[int, ...] = ()
    item: Element | None = None
    fields: tuple[tuple[str, Element], ...] = ()
    names: dict[int, str] = field(default_factory=dict)
    trim: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A dataset of the file: its path in dots and in the file, its shape, one value of it.

    `width` is the bytes of a value, or of its place where its length varies; `chunk` is how many
    rows are stored together.
    """

    name: str
    path: bytes
    shape: tuple[int, ...]
    element: Element
    width: int
    chunk: int

    @property
    def row_nbytes(self) -> int:
        """Return the bytes of one index of the first axis."""
        return self.width * prod(self.shape[1:])


def type_of(element: Element, shape: tuple[int, ...] = ()) -> pa.DataType:
    """Return the Arrow type of values of a row of this shape."""
    shape += element.shape
    if element.form == COMPLEX:
        return _tensor(element.type, (*shape, 2))
    if element.form == NUMBER or (element.form == ENUM and shape):
        return _tensor(element.type, shape) if shape else element.type
    kind = _flat_type(element)
    for _ in shape:
        kind = pa.list_(kind)
    return kind


def array_of(values: Array, element: Element) -> pa.Array:
    """Return rows as an Arrow array of the type that `type_of` says; `values`, (rows, ...).

    Texts may not be UTF-8 and enumerations hold values without names: `validate(full=True)` tells.
    """
    if element.form == COMPLEX:
        values = np.ascontiguousarray(values)
        parts = values.view(values.real.dtype).reshape(*values.shape, 2)
        return array_of(parts, replace(element, form=NUMBER, shape=()))
    shape = values.shape[1:]
    if element.form == NUMBER or (element.form == ENUM and shape):
        flat = np.ascontiguousarray(values).reshape(-1)
        numbers = pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
        return _tensors(numbers, len(values), shape) if shape else numbers
    array = _flat(values.reshape(-1), element)
    for place in reversed(range(len(shape))):
        count = int(np.prod(values.shape[: place + 1]))
        lengths, valid = np.full(count, shape[place]), np.ones(count, bool)
        array = lists_of(array, lengths, valid, pa.list_(array.type))
    return array


def media_kind(head: bytes) -> str:
    """Return "image", "audio" or "other", by the first bytes of a value."""
    if head.startswith(b"RIFF"):
        return _RIFF.get(head[8:12], "other")
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "other")


def _tensor(kind: pa.DataType, shape: tuple[int, ...]) -> pa.DataType:
    if 0 in shape:
        return tensor_type(kind, pa.fixed_shape_tensor(kind, list(shape)))
    return pa.fixed_shape_tensor(kind, list(shape))


def _tensors(numbers: pa.Array, rows: int, shape: tuple[int, ...]) -> pa.Array:
    kind = _tensor(numbers.type, shape)
    if 0 in shape:
        shapes = np.tile(np.array(shape, np.int32), (rows, 1))
        return varying_tensors(numbers, shapes, np.ones(rows, bool), kind)
    lists = pa.FixedSizeListArray.from_arrays(numbers, int(np.prod(shape)))
    return pa.ExtensionArray.from_storage(kind, lists.cast(kind.storage_type))


def _flat_type(element: Element) -> pa.DataType:
    if element.form == LIST and element.item is not None:
        return pa.list_(type_of(element.item))
    if element.form == STRUCT:
        return pa.struct([(name, type_of(below)) for name, below in element.fields])
    return pa.string() if element.form == ENUM else element.type


def _flat(values: Array, element: Element) -> pa.Array:
    """Return values of one axis."""
    if element.form == ENUM:
        return _names(values, element.names)
    if element.form == TEXT:
        texts = [value if isinstance(value, bytes) else None for value in values.tolist()]
        trim = element.trim
        if trim is not None:
            texts = [trim(text) if text else text for text in texts]
        return pa.array(texts, pa.binary()).view(pa.string())
    if element.form == BYTES:
        found = [v.tobytes() if isinstance(v, np.ndarray) else bytes(v) for v in values]
        return pa.array(found, pa.binary())
    if element.form == LIST and element.item is not None:
        return _lists(values, element.item)
    if element.form == STRUCT:
        below = [array_of(values[name], inner) for name, inner in element.fields]
        return pa.StructArray.from_arrays(below, [name for name, _ in element.fields])
    return pa.array(values, element.type)


def _names(values: Array, names: dict[int, str]) -> pa.Array:
    """Return the names of values; one without a name gets an index that no dictionary has."""
    known = np.array(sorted(names), np.int64)
    texts = pa.array([names[value] for value in known.tolist()], pa.string())
    wanted = values.astype(np.int64)
    places = np.searchsorted(known, wanted).astype(np.int32)
    found = known[np.minimum(places, len(known) - 1)] == wanted
    places[~found] = len(known)
    return pa.DictionaryArray.from_arrays(pa.array(places), texts, safe=False)


def _lists(values: Array, item: Element) -> pa.Array:
    found = [v if isinstance(v, np.ndarray) else None for v in values]
    lengths = np.array([0 if v is None else len(v) for v in found], np.int64)
    parts = [v for v in found if v is not None and len(v)]
    items = array_of(np.concatenate(parts) if parts else np.zeros(0, item.dtype), item)
    return lists_of(items, lengths, np.ones(len(values), bool), pa.list_(items.type))
