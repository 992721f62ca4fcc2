"""Values as one can look at them: an image by its kind and size, a label by its name, a tensor by
its shape and range, text and bytes by their beginning.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.schema import KEY, SUBJECT, is_label, is_tensor, media_of

SHOWN_BYTES = 200
SHOWN_ITEMS = 8


def shown(batch: pa.RecordBatch, row: int, labels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a record as JSON values of bounded length; a subject that is null is left out."""
    one = batch.slice(row, 1)
    values = {
        field.name: _shown(field, array, labels.get(field.name, ()))
        for field, array in zip(one.schema, one, strict=True)
    }
    return {name: value for name, value in values.items() if name != SUBJECT or value is not None}


def image_facts(data: bytes) -> str:
    """Return an image's kind and size in pixels, as far as they are to be had."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            return f"{image.format} {image.width}×{image.height}, {len(data):,} bytes"
    except Exception:
        return f"{len(data):,} bytes"


def label_text(index: int, names: Sequence[str]) -> str:
    """Return a label's name and index."""
    return f"{names[index]} ({index})" if 0 <= index < len(names) else str(index)


def tensor_of(field: pa.Field, array: pa.Array) -> npt.NDArray[Any] | None:
    """Return the one tensor of an array as [*shape]; None if it is null or does not fit."""
    if not array.is_valid()[0].as_py():
        return None
    if isinstance(field.type, pa.FixedShapeTensorType):
        shape = tuple(field.type.shape)
        flat = array.storage.flatten()
    else:
        shape = tuple(array.field("shape")[0].as_py() or ())
        flat = array.field("data")[0].values
    try:
        return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(shape)
    except ValueError:
        return None


def tensor_text(tensor: npt.NDArray[Any]) -> str:
    """Return a tensor's type, shape, range, mean and first elements."""
    start = f"{tensor.dtype} {list(tensor.shape)}"
    if tensor.size == 0 or not np.issubdtype(tensor.dtype, np.number):
        return start
    flat = tensor.reshape(-1)
    first = " ".join(f"{value:.4g}" for value in flat[:SHOWN_ITEMS].tolist())
    more = "…" if flat.size > SHOWN_ITEMS else ""
    finite = flat[np.isfinite(flat)] if np.issubdtype(flat.dtype, np.floating) else flat
    if not finite.size:
        return f"{start}: {first}{more}"
    middle = float(finite.mean(dtype=np.float64))
    return (
        f"{start} from {finite.min():.4g} to {finite.max():.4g}, mean {middle:.4g}: {first}{more}"
    )


def _shown(field: pa.Field, array: pa.Array, names: Sequence[str]) -> Any:
    if field.name == KEY:
        return array[0].as_py()
    if is_tensor(field) and (tensor := tensor_of(field, array)) is not None:
        return tensor_text(tensor)
    value = _value(array)
    if isinstance(value, bytes) and media_of(field) == "image":
        return image_facts(value)
    if isinstance(value, int) and is_label(field):
        return label_text(value, names)
    return _short(value)


def _value(array: pa.Array) -> Any:
    """Return a value as Python's, or as text where Python has none for it."""
    try:
        return array[0].as_py()
    except (ValueError, OverflowError, ImportError):
        return str(array[0].cast(pa.string())) if _castable(array) else str(array[0])


def _castable(array: pa.Array) -> bool:
    try:
        array.cast(pa.string())
    except pa.ArrowException:
        return False
    return True


def _short(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes {value[:8].hex()}…" if len(value) > 8 else value.hex()
    if isinstance(value, str):
        return value if len(value) <= SHOWN_BYTES else value[: SHOWN_BYTES - 1] + "…"
    if isinstance(value, list):
        more = ["…"] if len(value) > SHOWN_ITEMS else []
        return [_short(item) for item in value[:SHOWN_ITEMS]] + more
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    plain = isinstance(value, (int, bool, type(None)))
    return value if plain or (isinstance(value, float) and math.isfinite(value)) else str(value)
