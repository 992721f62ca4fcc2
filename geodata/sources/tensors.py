"""Tensors that files hold: of one shape where all agree on it, else each with a shape of its own.

A fixed shape is Arrow's own type; `geodata.schema.tensor_field` says how varying ones are stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.schema import tensor_field


def is_fixed(kind: pa.DataType) -> bool:
    """Return whether the type is that of tensors of one shape, their values in row-major order."""
    if not isinstance(kind, pa.FixedShapeTensorType):
        return False
    order = kind.permutation
    return order is None or list(order) == sorted(order)


def is_varying(kind: pa.DataType) -> bool:
    """Return whether the type could be that of tensors of varying shape."""
    return bool(
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["data", "shape"]
        and pa.types.is_list(kind.field("data").type)
        and kind.field("shape").type == pa.list_(pa.int32())
    )


def are_tensors(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether both types hold tensors and one of them surely does."""
    kinds = (one, other)
    return any(map(is_fixed, kinds)) and all(is_fixed(k) or is_varying(k) for k in kinds)


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a tensor's values."""
    return kind.value_type if is_fixed(kind) else kind.field("data").type.value_type


def tensor_type(values: pa.DataType, *kinds: pa.DataType) -> pa.DataType:
    """Return the type of tensors of `values` with the shapes that all `kinds` have."""
    shapes = {tuple(kind.shape) if is_fixed(kind) else None for kind in kinds}
    (shape, *others) = shapes
    if others or not shape or 0 in shape:
        return tensor_field("tensor", values).type
    return pa.fixed_shape_tensor(values, list(shape))


def fixed_tensors(values: pa.Array, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Return tensors of fixed shape from the values of those that are not null."""
    lists = pa.FixedSizeListArray.from_arrays(values, kind.storage_type.list_size)
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    spread = lists if valid.all() else lists.take(places)
    return pa.ExtensionArray.from_storage(kind, spread.cast(kind.storage_type))


def varying_tensors(
    values: pa.Array, shapes: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """Return tensors of varying shape; `shapes`, (tensors, dimensions), are of those not null."""
    ranks = np.full(len(shapes), shapes.shape[1])
    sizes = np.prod(shapes, axis=1, dtype=np.int64)
    parts = [
        lists_of(pa.array(flat) if isinstance(flat, np.ndarray) else flat, lengths, valid, field)
        for flat, lengths, field in zip(
            (values, shapes.reshape(-1)), (sizes, ranks), (f.type for f in kind), strict=True
        )
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(~valid))


def lists_of(
    items: pa.Array,
    lengths: npt.NDArray[Any],
    valid: npt.NDArray[np.bool_],
    kind: pa.DataType,
) -> pa.Array:
    """Return lists of type `kind` from their items and the lengths of those that are not null."""
    large = pa.types.is_large_list(kind)
    width = np.int64 if large else np.int32
    offsets = np.zeros(len(valid) + 1, width)
    spread = np.zeros(len(valid), width)
    spread[valid] = lengths
    np.cumsum(spread, out=offsets[1:])
    made = pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(pa.array(offsets), items, type=kind, mask=pa.array(~valid))
