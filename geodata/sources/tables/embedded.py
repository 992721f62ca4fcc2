"""Media as the Hugging Face datasets library stores them: a struct of the bytes and a path.

Where the schema's metadata name a column's feature Image or Audio, the bytes become the column, a
medium, and the path another beside it, NAME_path. A path is never followed: where the bytes are
null (a file that the rows only name), they stay so. Any other such struct stays a struct.
"""

from __future__ import annotations

import json

import pyarrow as pa

from geodata.schema import media_field

_MEDIA = {"Image": "image", "Audio": "audio"}


def embedded_media(schema: pa.Schema) -> dict[str, str]:
    """Return the columns that hold embedded media, and of which kind."""
    features = _features(schema)
    return {
        field.name: _MEDIA[features[field.name]]
        for field in schema
        if features.get(field.name) in _MEDIA
        and _is_embedded(field.type)
        and f"{field.name}_path" not in schema.names
    }


def unpacked(batch: pa.RecordBatch, media: dict[str, str]) -> pa.RecordBatch:
    """Return the batch with these columns as bytes and path; `batch` has passed `validate()`."""
    if not media:
        return batch
    arrays: list[pa.Array] = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        arrays += array.flatten() if name in media else [array]
    return pa.RecordBatch.from_arrays(arrays, schema=unpacked_schema(batch.schema, media))


def unpacked_schema(schema: pa.Schema, media: dict[str, str]) -> pa.Schema:
    """Return the schema of what `unpacked` makes."""
    fields = []
    for field in schema:
        if field.name in media:
            content, path = field.type
            medium = media_field(field.name, media[field.name])
            fields += [medium.with_type(content.type), pa.field(f"{field.name}_path", path.type)]
        else:
            fields.append(field)
    return pa.schema(fields)


def _features(schema: pa.Schema) -> dict[str, str]:
    """Return the feature of each column that the library's metadata name."""
    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = told["info"]["features"].items()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return {}
    return {name: str(told.get("_type")) for name, told in features if isinstance(told, dict)}


def _is_embedded(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["bytes", "path"]
        and kind.field("bytes").type in (pa.binary(), pa.large_binary())
        and kind.field("path").type in (pa.string(), pa.large_string())
    )
