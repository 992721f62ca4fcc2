"""The canonical bytes of Arrow values: how large a row is, and the digest of a shard's content.

The digest is the same for the same values in the same order, whatever the format, the batch
boundaries, the slicing, or the bytes hidden under nulls. Each node of the type tree feeds streams
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

from geodata.digests import PREFIX, Hash, new_hash, text_of
from geodata.errors import SchemaError

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_FLOATS = {16: np.float16, 32: np.float32, 64: np.float64}


class ContentHasher:
    """Digest of a sequence of record batches of one schema, of the kind of the digest `like`."""

    def __init__(self, schema: pa.Schema, like: str = PREFIX):
        check_types(schema)
        self._schema, self._like = schema, like
        self._names = [[field.name, _type_name(field.type)] for field in schema]
        self._streams: dict[str, Hash] = {}

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of `batch`, whose schema must equal the hasher's."""
        if not batch.schema.equals(self._schema):
            raise SchemaError("a batch has another schema than its shard")
        for number, array in enumerate(batch.columns):
            for path, data in _streams(str(number), array):
                if data.size:
                    if path not in self._streams:
                        self._streams[path] = new_hash(self._like)
                    self._streams[path].update(memoryview(data.data).cast("B"))

    def hexdigest(self) -> str:
        """Return the digest of all rows so far, and of the columns' names and types."""
        whole = new_hash(self._like)
        whole.update(memoryview(repr(self._names).encode()))
        for path in sorted(self._streams):
            whole.update(memoryview(path.encode() + b"\0" + self._streams[path].digest()))
        return text_of(whole, self._like)


def check_types(schema: pa.Schema) -> None:
    """Refuse types without canonical bytes: union, run-end, and what is to be decoded first."""
    for field in schema:
        try:
            _type_name(field.type)
        except SchemaError as error:
            raise SchemaError(error.message, hint=error.hint, column=field.name) from None


def row_digests(batch: pa.RecordBatch) -> Bytes:
    """Return a 128-bit digest (BLAKE2b) of the values of each row, shape (rows, 16).

    Of two rows of one schema it is equal if all their values are; NaNs are, null and empty are not.
    """
    each = np.arange(batch.num_rows + 1)
    even: list[Bytes] = []
    others: list[tuple[memoryview, list[int]]] = []
    for array in batch.columns:
        for data, width, bounds in _row_parts(array, each):
            if bounds is each:
                even.append(data.reshape(batch.num_rows, width))
            else:
                others.append((data.data, (bounds * width).tolist()))
    made = bytearray()
    for row, start in enumerate(np.hstack(even)) if batch.num_rows else ():
        digest = hashlib.blake2b(start, digest_size=16)
        for view, ends in others:
            digest.update(view[ends[row] : ends[row + 1]])
        made += digest.digest()
    return np.frombuffer(bytes(made), np.uint8).reshape(-1, 16)


def row_nbytes(batch: pa.RecordBatch) -> Int64s:
    """Return the uncompressed Arrow bytes of each row, with one byte a column for validity."""
    total = np.full(batch.num_rows, batch.num_columns, np.int64)
    for array in batch.columns:
        total += array_nbytes(array)
    return total


def array_nbytes(array: pa.Array) -> Int64s:
    """Return the uncompressed bytes of each value and its offsets, without validity."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return array_nbytes(array.storage)
    if pa.types.is_struct(kind):
        return sum((array_nbytes(child) for child in array.flatten()), _each(array, 0))
    if pa.types.is_nested(kind):
        return _list_nbytes(_as_list(array))
    if _is_ragged(kind):
        return _lengths(array) + _offset_width(kind)
    return _each(array, 0 if pa.types.is_null(kind) else (kind.bit_width + 7) // 8)


def ragged(array: pa.Array) -> tuple[Int64s, Bytes]:
    """Return where each value of a string or binary array starts, n + 1 offsets, and all bytes."""
    wide = array.type in (pa.large_string(), pa.large_binary())
    _, starts, data = array.buffers()
    if len(array) == 0 or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    width = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(starts, width, len(array) + 1, array.offset * width.itemsize)
    return offsets.astype(np.int64, copy=False), np.frombuffer(data, np.uint8)


def fixed(array: pa.Array) -> Bytes:
    """Return the bytes of a fixed-width array, shape (rows, width); anything under nulls."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None or width == 0:
        return np.zeros((len(array), width), np.uint8)
    flat = np.frombuffer(data, np.uint8, len(array) * width, array.offset * width)
    return flat.reshape(len(array), width)


def _streams(path: str, array: pa.Array) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Yield (stream, data) of an array: its validity, then lengths, values and children."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _streams(path, array.storage)
        return
    yield f"{path} valid", _valid(array)
    if pa.types.is_struct(kind):
        for number, child in enumerate(array.flatten()):
            yield from _streams(f"{path}/{number}", child)
    elif pa.types.is_nested(kind):
        lists = _as_list(array)
        yield f"{path} lengths", _lengths(lists)
        yield from _streams(f"{path}/0", lists.flatten())
    elif _is_ragged(kind):
        yield f"{path} lengths", _lengths(array)
        offsets, data = ragged(array.drop_null() if array.null_count else array)
        yield f"{path} bytes", data[offsets[0] : offsets[-1]]
    elif not pa.types.is_null(kind):
        yield f"{path} values", _values(array)


def _row_parts(array: pa.Array, bounds: Int64s) -> Iterator[tuple[Bytes, int, Int64s]]:
    """Yield (bytes, bytes of an element, bounds) for an array's validity, lengths and values.

    Row i holds the elements from `bounds[i]` to `bounds[i + 1]`; where it has one element of every
    array above, the bounds are those given.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _row_parts(array.storage, bounds)
        return
    yield _valid(array), 1, bounds
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _row_parts(child, bounds)
    elif pa.types.is_nested(kind):
        lists = _as_list(array)
        yield _lengths(lists).view(np.uint8), 8, bounds
        yield from _row_parts(lists.flatten(), _ends(_lengths(lists))[bounds])
    elif _is_ragged(kind):
        yield _lengths(array).view(np.uint8), 8, bounds
        offsets, data = ragged(array.drop_null() if array.null_count else array)
        yield data[offsets[0] : offsets[-1]], 1, _ends(_lengths(array))[bounds]
    elif not pa.types.is_null(kind):
        flat = np.ascontiguousarray(_values(array)).reshape(-1).view(np.uint8)
        yield flat, flat.size // max(len(array), 1), bounds


def _ends(lengths: Int64s) -> Int64s:
    """Return where each of some runs starts, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _list_nbytes(lists: pa.Array) -> Int64s:
    inner = np.concatenate([[0], np.cumsum(array_nbytes(lists.flatten()))])
    ends = np.cumsum(_lengths(lists))
    starts = np.concatenate([[0], ends[:-1]])
    nbytes: Int64s = inner[ends] - inner[starts] + _offset_width(lists.type)
    return nbytes


def _each(array: pa.Array, nbytes: int) -> Int64s:
    return np.full(len(array), nbytes, np.int64)


def _valid(array: pa.Array) -> Bytes:
    valid: Bytes = array.is_valid().cast(pa.uint8()).to_numpy()
    return valid


def _is_ragged(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_interval(kind)
    )


def _offset_width(kind: pa.DataType) -> int:
    large = pa.types.is_large_list(kind) or kind in (pa.large_string(), pa.large_binary())
    return 8 if large else 4


def _as_list(array: pa.Array) -> pa.Array:
    """Return a list-like array as one that `flatten` knows: a map as a list of its entries."""
    if pa.types.is_map(array.type):
        entry = pa.struct([array.type.key_field, array.type.item_field])
        return array.view(pa.list_(pa.field("entries", entry, nullable=False)))
    return array


def _lengths(array: pa.Array) -> Int64s:
    """Return the length of each list, string or binary; 0 for null."""
    count = pc.binary_length if _is_ragged(array.type) else pc.list_value_length
    lengths: Int64s = count(array).cast(pa.int64()).fill_null(0).to_numpy()
    return lengths


def _values(array: pa.Array) -> npt.NDArray[np.generic]:
    """Return fixed-width values: zero under nulls, NaNs alike, a boolean as one byte."""
    if pa.types.is_boolean(array.type):
        flags: Bytes = array.fill_null(False).cast(pa.uint8()).to_numpy()
        return flags
    rows = fixed(array)
    if array.null_count:
        rows = np.where(_valid(array)[:, None] == 1, rows, np.uint8(0))
    if not pa.types.is_floating(array.type):
        return rows
    floats = rows.view(_FLOATS[array.type.bit_width])
    return np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)


def _type_name(kind: pa.DataType) -> str:
    """Return a type's name: without nullability, metadata, or names of list items."""
    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind.extension_name}({_type_name(kind.storage_type)})"
    if pa.types.is_struct(kind):
        fields = [(kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields)]
        return f"struct{[[name, _type_name(child)] for name, child in fields]}"
    if pa.types.is_map(kind):
        return f"map({_type_name(kind.key_type)}, {_type_name(kind.item_type)})"
    if isinstance(kind, _LISTS):
        large = "large_" if pa.types.is_large_list(kind) else ""
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else ""
        return f"{large}list[{size}]({_type_name(kind.value_type)})"
    if _is_ragged(kind) or pa.types.is_null(kind) or _is_fixed(kind):
        return str(kind)
    raise SchemaError(f"type {kind} cannot be stored", hint="Flatten or decode it first")
