"""The canonical bytes of Arrow values: how large a row is, and the digest of a shard's content.

The digest is the same for the same values in the same order, whatever the format, the batch
boundaries, the slicing, or the bytes hidden under nulls. Each leaf of the type tree feeds streams
of its own (validity, lengths, values), so boundaries cannot matter. All NaNs count as one value;
-0.0 differs from 0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import SchemaError

Int64s = npt.NDArray[np.int64]


class ContentHasher:
    """Digest of a sequence of record batches of one schema."""

    def __init__(self, schema: pa.Schema):
        self._schema = schema
        self._streams: dict[str, hashlib._Hash] = {}

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of `batch`, whose schema must equal the hasher's."""
        if not batch.schema.equals(self._schema):
            raise SchemaError("a batch has another schema than its shard")
        for field, array in zip(self._schema, batch.columns, strict=True):
            for path, data in _streams(field.name, array):
                self._streams.setdefault(path, hashlib.sha256()).update(data)

    def hexdigest(self) -> str:
        """Return the digest of all rows so far, schema included."""
        whole = hashlib.sha256(str([(f.name, str(f.type)) for f in self._schema]).encode())
        for path in sorted(self._streams):
            whole.update(path.encode() + b"\0" + self._streams[path].digest())
        return whole.hexdigest()


def _streams(path: str, array: pa.Array) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yield (stream name, bytes) of an array: validity, lengths and values, nulls blanked."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _streams(path, array.storage)
        return
    yield f"{path}/valid", _valid(array).tobytes()
    if pa.types.is_null(kind):
        return
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            yield from _streams(f"{path}/{field.name}", child)
    elif pa.types.is_nested(kind):
        yield f"{path}/lengths", _lengths(array).tobytes()
        items = _items(array)
        yield from _streams(f"{path}/items", items)
    elif _is_ragged(kind):
        lengths = _lengths(array)
        yield f"{path}/lengths", lengths.tobytes()
        yield f"{path}/bytes", _ragged_bytes(array.drop_null())
    else:
        yield f"{path}/values", _values(array)


def _valid(array: pa.Array) -> npt.NDArray[np.uint8]:
    valid: npt.NDArray[np.uint8] = pc.is_valid(array).cast(pa.uint8()).to_numpy()
    return valid


def _is_ragged(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _lengths(array: pa.Array) -> Int64s:
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return _valid(array).astype(np.int64) * kind.list_size
    if pa.types.is_map(kind):
        width, buffer = np.int32, array.buffers()[1]
    elif pa.types.is_nested(kind):
        width = np.int64 if pa.types.is_large_list(kind) else np.int32
        buffer = array.buffers()[1]
    else:
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        width, buffer = np.int64 if large else np.int32, array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), np.int64)
    offsets = np.frombuffer(buffer, width)[array.offset : array.offset + len(array) + 1]
    lengths: Int64s = np.diff(offsets.astype(np.int64)) * _valid(array)
    return lengths


def _items(array: pa.Array) -> pa.Array:
    """Return the child values of a list-like array, without those under nulls."""
    kind = array.type
    valid = array.drop_null()
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        as_list = pa.Array.from_buffers(
            pa.list_(entries),
            len(valid),
            valid.buffers()[:2],
            valid.null_count,
            valid.offset,
            [
                pa.StructArray.from_arrays(
                    [_whole(valid.keys, valid), _whole(valid.items, valid)],
                    fields=[kind.key_field, kind.item_field],
                )
            ],
        )
        return as_list.flatten()
    return valid.flatten()


def _whole(child: pa.Array, _parent: pa.Array) -> pa.Array:
    return child


def _ragged_bytes(array: pa.Array) -> memoryview | bytes:
    """Return the concatenated bytes of a string or binary array without nulls."""
    if len(array) == 0 or array.buffers()[2] is None:
        return b""
    large = array.type in (pa.large_string(), pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    start, stop = offsets[array.offset], offsets[array.offset + len(array)]
    return memoryview(array.buffers()[2])[int(start) : int(stop)]


def _values(array: pa.Array) -> bytes:
    """Return fixed-width values as little-endian bytes: nulls zero, NaNs alike."""
    kind = array.type
    if pa.types.is_boolean(kind):
        filled: bytes = pc.fill_null(array, False).cast(pa.uint8()).to_numpy().tobytes()
        return filled
    width = kind.byte_width
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    rows = raw[array.offset * width : (array.offset + len(array)) * width]
    rows = rows.reshape(len(array), width).copy()
    if pa.types.is_floating(kind):
        floats = rows.view({2: np.float16, 4: np.float32, 8: np.float64}[width])
        floats[np.isnan(floats)] = np.nan
    rows[_valid(array) == 0] = 0
    return rows.tobytes()


def row_nbytes(batch: pa.RecordBatch) -> Int64s:
    """Return the uncompressed Arrow bytes of each row: values, offsets and validity bytes."""
    total = np.zeros(batch.num_rows, np.int64)
    for array in batch.columns:
        total += _array_nbytes(array)
    return total


def _array_nbytes(array: pa.Array) -> Int64s:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _array_nbytes(array.storage)
    ones = np.ones(len(array), np.int64)
    if pa.types.is_null(kind):
        return ones
    if pa.types.is_struct(kind):
        return sum((_array_nbytes(child) for child in array.flatten()), ones)
    if pa.types.is_nested(kind):
        lengths = _lengths(array)
        inner = np.concatenate([[0], np.cumsum(_array_nbytes(_items(array)))])
        ends = np.cumsum(lengths)
        nested: Int64s = inner[ends] - inner[ends - lengths] + 5
        return nested
    if _is_ragged(kind):
        return _lengths(array) + 5
    return ones * (1 if pa.types.is_boolean(kind) else kind.byte_width) + 1
