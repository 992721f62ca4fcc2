"""The tree behind `layout`: a node for each node of a type, which knows its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import fixed, ragged
from geodata.formats.layout.parts import (
    OFFSETS,
    VALID,
    VALUES,
    Array,
    Found,
    Int64s,
    Part,
    bitmap,
    bounds,
    buffer,
    escape,
    get,
    plain,
    sums,
)

MOST_EMPTY = 1 << 24
"""Items of a column that take no byte, at most: a damaged offset could claim any number."""

Mask = npt.NDArray[np.bool_]
Validity: TypeAlias = pa.Buffer | None


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a node stands: its values' name, the name of its validity, and whether it has one."""

    name: str
    mark: str
    nullable: bool = True

    def child(self, step: str, *, nullable: bool = True) -> Spot:
        return Spot(f"{self.name}/{step}", f"{self.name}/{step}", nullable)

    def items(self) -> Spot:
        return Spot(self.name, f"{self.mark}:item")


class Node:
    """A node of the type tree. Subclasses say what lies below its validity."""

    def __init__(self, kind: pa.DataType, spot: Spot):
        self.kind = kind
        self._valid = Part(f"{spot.mark}:{VALID}", VALID, np.dtype(np.bool_))
        self._nullable = spot.nullable

    def parts(self) -> Iterator[Part]:
        """Yield each part that there may be."""
        if self._nullable:
            yield self._valid
        yield from self._parts()

    def flatten(self, array: pa.Array, shown: Mask | None, found: dict[str, Array]) -> None:
        """Add the parts of `array`; what is not `shown` (None: all is) lies under a null."""
        alive = shown
        if array.null_count:
            valid = array.is_valid().cast(pa.uint8()).to_numpy().view(np.bool_)
            alive = valid if shown is None else valid & shown
            marked = valid if shown is None else valid | ~shown
            if not marked.all():
                found[self._valid.name] = marked
        self._flatten(array, alive, found)

    def build(self, found: Found, length: int) -> pa.Array:
        """Return the array with these parts; ValueError where they do not fit."""
        validity = None
        if self._nullable and self._valid.name in found:
            validity = bitmap(get(found, self._valid, length))
        return self._build(found, length, validity)

    def nbytes(self, found: Found, length: int) -> Int64s:
        """Return the bytes of each value, without its validity."""
        raise NotImplementedError

    def _parts(self) -> Iterator[Part]:
        raise NotImplementedError

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        raise NotImplementedError

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        raise NotImplementedError


class _Null(Node):
    """All null: no parts, not even a validity."""

    def parts(self) -> Iterator[Part]:
        yield from ()

    def flatten(self, array: pa.Array, shown: Mask | None, found: dict[str, Array]) -> None:
        pass

    def build(self, found: Found, length: int) -> pa.Array:  # noqa: ARG002
        return pa.Array.from_buffers(self.kind, length, [None])

    def nbytes(self, found: Found, length: int) -> Int64s:  # noqa: ARG002
        return np.zeros(length, np.int64)


class _Fixed(Node):
    """Values of a fixed number of bits."""

    def __init__(self, kind: pa.DataType, spot: Spot):
        super().__init__(kind, spot)
        self._values = Part(spot.name, VALUES, *plain(kind))
        self._is_bool = pa.types.is_boolean(kind)

    def nbytes(self, found: Found, length: int) -> Int64s:  # noqa: ARG002
        return np.full(length, self._values.nbytes, np.int64)

    def _parts(self) -> Iterator[Part]:
        yield self._values

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        flat = array.cast(pa.uint8()).fill_null(0) if self._is_bool else array
        values = fixed(flat).view(self._values.dtype).reshape(len(array), *self._values.shape)
        if alive is not None:
            alive = alive.reshape(-1, *[1] * len(self._values.shape))
            values = np.where(alive, values, self._values.dtype.type(0))
        found[self._values.name] = values

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        values = get(found, self._values, length)
        data = bitmap(values) if self._is_bool else buffer(values)
        return pa.Array.from_buffers(self.kind, length, [validity, data])


class _Ragged(Node):
    """Strings and binaries: offsets and all bytes."""

    def __init__(self, kind: pa.DataType, spot: Spot):
        super().__init__(kind, spot)
        self._offsets = _offsets_part(spot)
        self._data = Part(f"{spot.name}/data", VALUES, np.dtype(np.uint8), level=self._offsets.name)
        self._wide = kind in (pa.large_string(), pa.large_binary())
        self._is_text = kind in (pa.string(), pa.large_string())

    def nbytes(self, found: Found, length: int) -> Int64s:  # noqa: ARG002
        return np.diff(found[self._offsets.name]) + self._offsets.nbytes

    def _parts(self) -> Iterator[Part]:
        yield self._offsets
        yield self._data

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        offsets, data = ragged(array)
        ends = offsets - offsets[0] if offsets[0] else offsets
        if alive is not None:
            ends = sums(np.where(alive, np.diff(offsets), 0))
            if ends[-1] != offsets[-1] - offsets[0]:
                offsets, data = ragged(array.filter(pa.array(alive)))
        found[self._offsets.name] = ends
        found[self._data.name] = data[offsets[0] : offsets[-1]]

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        offsets, count = bounds(get(found, self._offsets, length + 1), self._wide)
        data = buffer(get(found, self._data, count))
        array = pa.Array.from_buffers(self.kind, length, [validity, offsets, data])
        if self._is_text:
            array.validate(full=True)
        return array


class _List(Node):
    """Lists, and maps as lists of their entries: offsets and all items."""

    def __init__(self, kind: pa.DataType, spot: Spot):
        super().__init__(kind, spot)
        self._offsets = _offsets_part(spot)
        self._wide = pa.types.is_large_list(kind)
        if pa.types.is_map(kind):
            key = node_of(kind.key_type, spot.child("key", nullable=False))
            value = node_of(kind.item_type, spot.child("value"))
            entry = pa.struct([kind.key_field, kind.item_field])
            self._item: Node = _Struct(entry, Spot("", "", nullable=False), [key, value])
        else:
            self._item = node_of(kind.value_type, spot.child("item"))

    def nbytes(self, found: Found, length: int) -> Int64s:  # noqa: ARG002
        offsets = found[self._offsets.name]
        ends = sums(self._item.nbytes(found, int(offsets[-1])))
        return np.diff(ends[offsets]) + self._offsets.nbytes

    def _parts(self) -> Iterator[Part]:
        yield self._offsets
        for part in self._item.parts():
            yield part if part.level else replace(part, level=self._offsets.name)

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        offsets = array.offsets.cast(pa.int64()).to_numpy()
        lengths = np.diff(offsets) if alive is None else np.where(alive, np.diff(offsets), 0)
        ends = sums(lengths)
        if ends[-1] == offsets[-1] - offsets[0]:
            items = array.values.slice(int(offsets[0]), int(ends[-1]))
        else:
            places = np.arange(ends[-1]) + np.repeat(offsets[:-1] - ends[:-1], lengths)
            items = array.values.take(pa.array(places))
        found[self._offsets.name] = ends
        self._item.flatten(items, None, found)

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        offsets, count = bounds(get(found, self._offsets, length + 1), self._wide)
        if count > MOST_EMPTY and not any(prod(part.shape) for part in self._item.parts()):
            raise ValueError("more items than can be without a byte")
        items = self._item.build(found, count)
        return pa.Array.from_buffers(self.kind, length, [validity, offsets], children=[items])


class _FixedList(Node):
    """Lists of a fixed size: all items under the same name, in `shape` where they are values."""

    def __init__(self, kind: pa.DataType, spot: Spot, shape: tuple[int, ...]):
        super().__init__(kind, spot)
        self._size = prod(shape)
        self._item = node_of(kind.value_type, spot.items())
        self._flat = next((part for part in self._item.parts() if part.name == spot.name), None)
        if self._flat:
            shape = (*shape, *self._flat.shape)
            self._shaped = Part(spot.name, VALUES, self._flat.dtype, shape)

    def nbytes(self, found: Found, length: int) -> Int64s:
        items = self._item.nbytes(found, length * self._size)
        total: Int64s = items.reshape(length, self._size).sum(axis=1)
        return total

    def _parts(self) -> Iterator[Part]:
        for part in self._item.parts():
            if part == self._flat:
                yield self._shaped
            else:
                yield part if part.level else replace(part, per=part.per * self._size)

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        items = array.values.slice(array.offset * self._size, len(array) * self._size)
        self._item.flatten(items, None if alive is None else np.repeat(alive, self._size), found)
        if self._flat:
            shape = (len(array), *self._shaped.shape)
            found[self._flat.name] = found[self._flat.name].reshape(shape)

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        count = length * self._size
        if self._flat:
            values = get(found, self._shaped, length)
            found = {**found, self._flat.name: values.reshape(count, *self._flat.shape)}
        items = self._item.build(found, count)
        return pa.Array.from_buffers(self.kind, length, [validity], children=[items])


class _Struct(Node):
    """Structs: the parts of each field."""

    def __init__(self, kind: pa.DataType, spot: Spot, fields: list[Node]):
        super().__init__(kind, spot)
        self._fields = fields

    def nbytes(self, found: Found, length: int) -> Int64s:
        total = np.full(length, len(self._fields), np.int64)
        for field in self._fields:
            total += field.nbytes(found, length)
        return total

    def _parts(self) -> Iterator[Part]:
        for field in self._fields:
            yield from field.parts()

    def _flatten(self, array: pa.Array, alive: Mask | None, found: dict[str, Array]) -> None:
        for number, field in enumerate(self._fields):
            field.flatten(array.field(number), alive, found)

    def _build(self, found: Found, length: int, validity: Validity) -> pa.Array:
        children = [field.build(found, length) for field in self._fields]
        return pa.Array.from_buffers(self.kind, length, [validity], children=children)


class _Extension(Node):
    """An extension type: the parts of its storage."""

    def __init__(self, kind: pa.DataType, storage: Node):
        self.kind, self._storage = kind, storage

    def parts(self) -> Iterator[Part]:
        return self._storage.parts()

    def flatten(self, array: pa.Array, shown: Mask | None, found: dict[str, Array]) -> None:
        self._storage.flatten(array.storage, shown, found)

    def build(self, found: Found, length: int) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.kind, self._storage.build(found, length))

    def nbytes(self, found: Found, length: int) -> Int64s:
        return self._storage.nbytes(found, length)


def node_of(kind: pa.DataType, spot: Spot) -> Node:
    if isinstance(kind, pa.FixedShapeTensorType):
        return _Extension(kind, _FixedList(kind.storage_type, spot, tuple(kind.shape)))
    if isinstance(kind, pa.BaseExtensionType):
        return _Extension(kind, node_of(kind.storage_type, spot))
    if pa.types.is_null(kind):
        return _Null(kind, spot)
    if pa.types.is_struct(kind):
        steps = _steps([kind.field(i).name for i in range(kind.num_fields)])
        fields = [node_of(kind.field(i).type, spot.child(step)) for i, step in enumerate(steps)]
        return _Struct(kind, spot, fields)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _List(kind, spot)
    if pa.types.is_fixed_size_list(kind):
        return _FixedList(kind, spot, (kind.list_size,))
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _Ragged(kind, spot)
    return _Fixed(kind, spot)


def _steps(names: list[str]) -> list[str]:
    """Return the fields' names as parts have them, each once."""
    return [
        f"{escape(name)}:{names[:i].count(name)}" if name in names[:i] else escape(name)
        for i, name in enumerate(names)
    ]


def _offsets_part(spot: Spot) -> Part:
    return Part(f"{spot.name}/offsets", OFFSETS, np.dtype("<i8"))
