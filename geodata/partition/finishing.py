"""What becomes of a destination's records before they are written: the last step of `shard`.

It comes after partition, since it depends on the tag: images of personal data lose what cameras
add, and a sequence of tokens never holds documents of two regions or two tags. Tokens are counted
into the sidecars here, so that packing while loading is a pure function of what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from geodata.config import TaggingSection
from geodata.errors import ConfigError, GeodataError
from geodata.partition.sealing import Sealed, with_tokens
from geodata.prepare.images import image_columns, strip_columns
from geodata.prepare.packing import LENGTH, Packing
from geodata.prepare.tokens import TOKENS, Counting, Int64s, text_column
from geodata.schema import KEY
from geodata.tags import Tag

Exif = Literal["auto", "keep", "strip"]

UNSTRIPPED = (
    "Convert with --encode, or with --strip-exif --on-error skip; or shard with --exif keep"
)
"""How to go on where an image cannot be stripped."""

_BATCH_ROWS = 1 << 16
_IMAGE_BYTES = 8 << 20
"""About how much is held twice while images are stripped."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """What is asked for.

    `exif`: strip images, keep them as they are, or (auto) strip those that are personal data.
    """

    exif: Exif = "auto"
    packing: Packing | None = None
    counting: Counting | None = None

    def checked(self, schema: pa.Schema, tagging: TaggingSection) -> Finishing:
        """Return what there is to do with records of `schema`; ConfigError if it cannot be."""
        if self.packing is not None:
            _check_packing(self, schema, tagging)
        counting = self.counting
        if counting is not None:
            if not counting.column:
                texts = counting.tokenizer is not None
                column = text_column(schema, None) if texts else TOKENS
                counting = replace(counting, column=column)
            counting.check(schema)
        exif = self.exif if image_columns(schema) and self.packing is None else "keep"
        return replace(self, exif=exif, counting=counting)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the result, as plain JSON; what is not asked for is left out."""
        given: dict[str, Any] = {}
        if self.exif != "keep":
            given["exif"] = self.exif
        if self.packing is not None:
            given["pack"] = self.packing.to_json()
        if self.counting is not None:
            given["count"] = self.counting.to_json()
        return given

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what is written."""
        return schema if self.packing is None else self.packing.schema(schema)

    def report(self, done: Mapping[str, int]) -> dict[str, Any]:
        """Return what the version's report says of what was done, in sums over its shards."""
        said: dict[str, Any] = {}
        if done.get("stripped"):
            said["stripped"] = done["stripped"]
        if self.packing is not None:
            counts = {name: done[name] for name in ("documents", "sequences", "tokens")}
            said["packed"] = {**self.packing.to_json(), **counts}
        if self.counting is not None:
            said["counted"] = {**self.counting.to_json(), "tokens": done["tokens"]}
        return said


def _check_packing(asked: Finishing, schema: pa.Schema, tagging: TaggingSection) -> None:
    if tagging.subject is not None:
        raise ConfigError(
            "records that belong to a person are not packed: in a sequence with others, one could "
            "not be erased alone",
            hint="Shard with --count-tokens, and pack while loading",
        )
    if asked.counting is not None:
        raise ConfigError("--pack and --count-tokens exclude each other: all sequences are full")
    assert asked.packing is not None
    asked.packing.check(schema)


class Finisher:
    """Finishes the records of one destination, which has `tag`."""

    def __init__(self, asked: Finishing, tag: Tag, schema: pa.Schema):
        self._asked, self._schema = asked, schema
        self._strips = strips(asked.exif, tag)
        self._count = _counter(asked)
        self._counts: list[Int64s] = []
        self.done: dict[str, int] = {}
        """Sums: documents, and where asked for sequences, tokens and stripped images."""

    def batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield what is written of a destination's records, in their order."""
        self.done["documents"] = table.num_rows
        if self._asked.packing is not None:
            table = self._asked.packing.pack(table)
            self.done["sequences"] = table.num_rows
        rows = _BATCH_ROWS
        if self._strips:
            rows = max(_IMAGE_BYTES * table.num_rows // max(table.nbytes, 1), 1)
        for part in table.to_batches(max_chunksize=rows):
            batch = pa.RecordBatch.from_arrays(part.columns, schema=self._schema)
            if self._strips:
                batch = self._stripped(batch)
            if self._count is not None:
                counts = self._count(batch)
                self._counts.append(counts)
                self.done["tokens"] = self.done.get("tokens", 0) + int(counts.sum())
            yield batch

    def counted(self, shards: Sequence[Sealed]) -> list[Sealed]:
        """Return the destination's shards, with their tokens in the sidecars if asked for."""
        if self._asked.counting is None or not shards:
            return list(shards)
        counts = np.concatenate([*self._counts, np.empty(0, np.int64)])
        ends = np.cumsum([sum(sealed.shard.slots) for sealed in shards], dtype=np.int64)
        parts = np.split(counts, ends[:-1])
        return [with_tokens(sealed, part) for sealed, part in zip(shards, parts, strict=True)]

    def _stripped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made, count = without_extras(batch, UNSTRIPPED)
        self.done["stripped"] = self.done.get("stripped", 0) + count
        return made


def strips(exif: Exif, tag: Tag) -> bool:
    """Return whether images of records of a tag lose what cameras add."""
    return exif == "strip" or (exif == "auto" and tag.personal)


def without_extras(batch: pa.RecordBatch, hint: str) -> tuple[pa.RecordBatch, int]:
    """Return records whose images are stripped, and how many of these changed."""

    def failed(row: int, column: str, reason: str) -> None:
        raise GeodataError(
            f"what an image holds beside its picture cannot be taken out: {reason}",
            key=batch.column(KEY)[row].as_py(),
            column=column,
            hint=hint,
        )

    return strip_columns(batch, failed)


def _counter(asked: Finishing) -> Callable[[pa.RecordBatch], Int64s] | None:
    """Return what counts the tokens of each row that is written."""
    if asked.packing is not None:
        return lambda batch: batch.column(LENGTH).to_numpy().astype(np.int64)
    return None if asked.counting is None else asked.counting.opened()


def check_complete(
    asked: Finishing, done: Mapping[str, int], records: int, written: int, tokens: int
) -> None:
    """Raise unless each of `records` is written, or each of their `tokens` in a sequence."""
    documents = done["documents"] if asked.packing is not None else written
    if documents != records:
        raise GeodataError(f"{records} records in, but {documents} written")
    if asked.packing is None:
        return
    if done.get("sequences", 0) != written or done.get("tokens", 0) != tokens:
        raise GeodataError(f"{tokens} tokens in, but {done.get('tokens', 0)} written")
