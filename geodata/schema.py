"""Arrow schema ↔ the dataset's schema.

A record is its columns plus two system columns: `__key__` (the original name, unique; null only in
a tombstone) and `__subject__` (keyed pseudonym of the data subject, or null). What Arrow has no
type for stands in field metadata:

    geodata.media   "image", "audio" or "text": encoded bytes or text with a file of its own in tars
    geodata.label   "1": an index into the dataset's stored label map of that name
    geodata.tensor  "varying": struct<data: list<T>, shape: list<int32>>, row-major
    geodata.origin  "1": struct<file: string, row: int64>, where in its source a record stood
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from geodata.errors import ManifestError, SchemaError

KEY = "__key__"
SUBJECT = "__subject__"
SYSTEM = (KEY, SUBJECT)

_INDEX_NAME = re.compile(r"__(index_level_\d+|null_dask_index)__")

_MEDIA, _LABEL, _TENSOR = b"geodata.media", b"geodata.label", b"geodata.tensor"
_ORIGIN = b"geodata.origin"


def media_of(field: pa.Field) -> str | None:
    """Return "image", "audio", "text" or None."""
    value = (field.metadata or {}).get(_MEDIA)
    return value.decode() if value else None


def is_label(field: pa.Field) -> bool:
    """Return whether the integers of `field` index a label map."""
    return (field.metadata or {}).get(_LABEL) == b"1"


def is_tensor(field: pa.Field) -> bool:
    """Return whether `field` holds tensors, of fixed or of varying shape."""
    varying = (field.metadata or {}).get(_TENSOR) == b"varying"
    return varying or isinstance(field.type, pa.FixedShapeTensorType)


def media_field(name: str, kind: str) -> pa.Field:
    """Return a nullable field for encoded media (`binary`) or for text (`string`)."""
    stored = pa.string() if kind == "text" else pa.binary()
    return pa.field(name, stored, metadata={_MEDIA: kind.encode()})


def label_field(name: str) -> pa.Field:
    """Return a nullable int64 field whose values index the label map `name`."""
    return pa.field(name, pa.int64(), metadata={_LABEL: b"1"})


def tensor_field(name: str, value_type: pa.DataType) -> pa.Field:
    """Return a field for row-major tensors of varying shape."""
    stored = pa.struct([("data", pa.list_(value_type)), ("shape", pa.list_(pa.int32()))])
    return pa.field(name, stored, metadata={_TENSOR: b"varying"})


def origin_field(name: str) -> pa.Field:
    """Return a field for where records stood in their source: file, and row (null: all of it)."""
    stored = pa.struct([("file", pa.string()), ("row", pa.int64())])
    return pa.field(name, stored, metadata={_ORIGIN: b"1"})


def is_origin(field: pa.Field) -> bool:
    """Return whether `field` says where records stood in their source."""
    return (field.metadata or {}).get(_ORIGIN) == b"1"


def data_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields that a source fills from its records: no system columns, no origin."""
    return [field for field in schema if field.name not in SYSTEM and not is_origin(field)]


def plain_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return `kind` with dictionaries decoded and views made plain; refuse what no format holds."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type, path)
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        raise SchemaError(f"type {kind} cannot be stored", column=path, hint="Flatten it first")
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i), path) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type, path), plain_type(kind.item_type, path))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, path), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field, path))
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field, path))
    return kind


def _plain_field(field: pa.Field, path: str) -> pa.Field:
    return field.with_type(plain_type(field.type, f"{path}.{field.name}"))


def is_reserved(name: str) -> bool:
    """Return whether a name in double underscores is ours; those of pandas' indexes are not."""
    return name.startswith("__") and name.endswith("__") and not _INDEX_NAME.fullmatch(name)


def dataset_schema(columns: pa.Schema) -> pa.Schema:
    """Return the stored schema of a source's columns: system columns first, all nullable.

    Raises SchemaError for a duplicate or reserved name and for a type that cannot be stored.
    """
    names = [field.name for field in columns if field.name not in SYSTEM]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError("two columns have one name", column=name)
        if is_reserved(name):
            raise SchemaError("names in double underscores are reserved", column=name)
    kept = [
        field.with_type(plain_type(field.type, field.name)).with_nullable(True)
        for field in columns
        if field.name not in SYSTEM
    ]
    return pa.schema([pa.field(KEY, pa.string()), pa.field(SUBJECT, pa.string()), *kept])


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with exactly the columns of `schema`: missing ones null, casts lossless.

    Raises SchemaError naming the column and both types.
    """
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(index)
        if array.type != field.type:
            array = _cast(array, field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return array.cast(field.type, safe=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{array.type} does not fit {field.type} without loss", column=field.name
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"{array.type} cannot become {field.type}", column=field.name) from error


def to_json(schema: pa.Schema) -> dict[str, Any]:
    """Return the schema as JSON: `fields` for people, `ipc` (base64) as the exact definition."""
    listed = [{"name": field.name, "type": str(field.type), **_metadata(field)} for field in schema]
    return {"fields": listed, "ipc": base64.b64encode(schema.serialize().to_pybytes()).decode()}


def from_json(data: Mapping[str, Any]) -> pa.Schema:
    """Return the schema that `to_json` wrote; ManifestError if it is damaged."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["ipc"])))
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise ManifestError("the stored schema is damaged") from error
    if to_json(schema)["fields"] != data.get("fields"):
        raise ManifestError("the stored schema contradicts its own list of fields")
    return schema


def _metadata(field: pa.Field) -> dict[str, str]:
    known = {k: v for k, v in (field.metadata or {}).items() if k.startswith(b"geodata.")}
    return {k.decode().removeprefix("geodata."): v.decode() for k, v in known.items()}
