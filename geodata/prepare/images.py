"""Images verified, shrunk, written anew, or freed of what cameras and editors add.

An image that nothing is asked of keeps its bytes. Columns `width` and `height`, where there are,
follow those that are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError
from geodata.prepare.base import QUALITY, Preparing, Refuse
from geodata.prepare.exif import CannotStrip, stripped
from geodata.prepare.pixels import (
    Refused,
    Rewritten,
    Writing,
    check,
    dimensions,
    require_codecs,
    rewritten,
)
from geodata.schema import media_of

SIZES = ("width", "height")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An image's bytes, and its dimensions if they are other ones now."""

    data: bytes
    size: tuple[int, int] | None = None


class PreparedImages:
    """The step of all image columns."""

    def __init__(self, preparing: Preparing):
        self._verify, self._side = preparing.verify, preparing.max_side
        self._anew = preparing.encode is not None
        self._strip = preparing.exif == "strip"
        quality = QUALITY if preparing.quality is None else preparing.quality
        self._writing = Writing(preparing.max_side, preparing.encode, quality, not self._strip)
        if self._verify or self._side or self._anew:
            require_codecs()

    @classmethod
    def asked(cls, preparing: Preparing) -> bool:
        """Return whether anything is asked of images."""
        wanted = preparing.verify or preparing.max_side or preparing.encode
        return bool(wanted) or preparing.exif == "strip"

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema as it is; ConfigError if it has no image column."""
        if not image_columns(schema):
            raise ConfigError(
                "the source has no column of images",
                hint="Declare one with --schema: a file with the line `COLUMN: image`",
            )
        return schema

    def apply(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Return the rows all of whose images can be prepared."""
        columns = image_columns(batch.schema)
        kept, rows = [], []
        given = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        for row, values in enumerate(given):
            made: list[_Prepared | None] = []
            try:
                for value in values:
                    made.append(None if value is None else self._prepared(value))
            except (Refused, CannotStrip) as error:
                refuse(row, str(error), values[len(made)])
            else:
                kept.append(row)
                rows.append(made)
        if len(kept) < batch.num_rows:
            batch = batch.take(pa.array(kept, pa.int64()))
        return _replaced(batch, {name: [row[i] for row in rows] for i, name in enumerate(columns)})

    def identity(self) -> str:
        """Return nothing: `Preparing` says all."""
        return "images"

    def _prepared(self, data: bytes) -> _Prepared:
        long = self._side is not None and max(dimensions(data)) > self._side
        if self._anew or long:
            made: Rewritten = rewritten(data, self._writing)
            return _Prepared(made.data, (made.width, made.height))
        if self._verify:
            check(data)
        return _Prepared(stripped(data) if self._strip else data)


def image_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that hold encoded images."""
    return [field.name for field in schema if media_of(field) == "image"]


def strip_columns(
    batch: pa.RecordBatch, failed: Callable[[int, str, str], None]
) -> tuple[pa.RecordBatch, int]:
    """Return a batch whose images are stripped, and how many of them changed.

    `failed(row, column, reason)` is told of one that cannot be stripped, and must raise.
    """
    changed = 0
    for name in image_columns(batch.schema):
        place = batch.schema.get_field_index(name)
        field, values = batch.schema.field(place), batch.column(place).to_pylist()
        before = list(values)
        for row, value in enumerate(before):
            try:
                values[row] = None if value is None else stripped(value)
            except CannotStrip as error:
                failed(row, name, str(error))
        other = sum(new is not old for new, old in zip(values, before, strict=True))
        if other:
            batch = batch.set_column(place, field, pa.array(values, field.type))
        changed += other
    return batch, changed


def _replaced(batch: pa.RecordBatch, made: dict[str, list[_Prepared | None]]) -> pa.RecordBatch:
    """Return the batch with these images, and with their dimensions if it is one column."""
    for name, images in made.items():
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        values = [None if image is None else image.data for image in images]
        batch = batch.set_column(place, field, pa.array(values, field.type))
    if len(made) != 1:
        return batch
    (images,) = made.values()
    sizes = [image.size if image is not None else None for image in images]
    for axis, name in enumerate(SIZES):
        batch = _resized(batch, name, [size and size[axis] for size in sizes])
    return batch


def _resized(batch: pa.RecordBatch, name: str, lengths: Sequence[int | None]) -> pa.RecordBatch:
    """Return the batch with these lengths in an integer column, where they are known."""
    place = batch.schema.get_field_index(name)
    if place < 0 or not pa.types.is_integer(batch.schema.field(place).type):
        return batch
    field = batch.schema.field(place)
    known = pa.array(np.array([length is not None for length in lengths], bool))
    given = pa.array(lengths, field.type)
    return batch.set_column(place, field, pc.if_else(known, given, batch.column(place)))
