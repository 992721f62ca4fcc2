"""What a step of preparation is, what the user may ask for, and the registry of the steps.

Steps stand between a source and its shards, in the order of the registry. Each turns a batch into
one of its own schema, row by row: a row stays or is refused with its reason, none is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Literal, Protocol

import pyarrow as pa

from geodata.errors import ConfigError

Refuse = Callable[[int, str, bytes], None]
"""Called with the row in the batch, the reason (one line, no content), and the original bytes."""


QUALITY = 90
"""Of lossy images that are written anew, unless another is asked for."""
_USUAL_QUALITY = ("quality", QUALITY)

_BINARY = ("parquet", "webdataset", "hdf5", "tfrecord", "arrow", "petastorm", "function")
TABLED = "media with a table"
"""What a source can be beside its kind: then its table may hold anything."""

_IMAGES = ("images", *_BINARY, TABLED)
_AUDIO = ("audio", *_BINARY, TABLED)
_TEXT = ("jsonl", "csv", "text", "audio", *_BINARY, TABLED)
USED_BY: dict[str, tuple[str, ...]] = {
    "verify": _IMAGES,
    "max_side": _IMAGES,
    "encode": _IMAGES,
    "quality": _IMAGES,
    "exif": _IMAGES,
    "tokenizer": _TEXT,
    "text_column": _TEXT,
    "rate": _AUDIO,
    "mono": _AUDIO,
}
"""The kinds of source that can hold what each field of `Preparing` is for; `types` are for all."""

_OPTIONS = {"verify": "--verify-images", "exif": "--strip-exif", "types": "--schema"}


@dataclass(frozen=True, slots=True)
class Preparing:
    """What the user asks for; part of the plan. All off by default: bytes stay as they are.

    Images: `verify` decodes each; `max_side` (pixels) shrinks larger ones; `encode` writes them
    anew, with `quality` (None: 90) where it is lossy; `exif` keeps or strips what cameras add.
    Text: `tokenizer` (a file of the tokenizers package) adds the column `tokens` made of
    `text_column`. Audio: `rate` (Hz) resamples, `mono` mixes down. `types` declares columns' types,
    as in Arrow. Raises ConfigError for what goes with another part that is not asked for.
    """

    verify: bool = False
    max_side: int | None = None
    encode: Literal["jpeg", "png", "webp"] | None = None
    quality: int | None = None
    exif: Literal["keep", "strip"] = "keep"
    tokenizer: str | None = None
    text_column: str | None = None
    rate: int | None = None
    mono: bool = False
    types: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.text_column is not None and self.tokenizer is None:
            raise ConfigError("--text-column is of a tokenizer", hint="Add --tokenizer FILE")
        if self.quality is not None and self.encode == "png":
            raise ConfigError("--quality is not for PNG, which loses nothing")
        if self.quality is not None and self.encode is None and self.max_side is None:
            raise ConfigError(
                "--quality is of images that are written anew", hint="Add --encode or --max-side"
            )

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, as plain JSON."""
        given = {name: getattr(self, name) for name in self._given()}
        return {name: value for name, value in given.items() if (name, value) != _USUAL_QUALITY}

    def options(self) -> list[str]:
        """Return the options of the command line that say so."""
        return [_option(name) for name in self._given()]

    def check(self, kind: str, *more: str) -> None:
        """Raise ConfigError for what a source of this kind cannot hold.

        `more` is what the source is beside it: TABLED.
        """
        for name in self._given():
            known = USED_BY.get(name)
            if known is not None and not {kind, *more} & {*known}:
                raise ConfigError.not_for(_option(name), kind, known)

    def _given(self) -> list[str]:
        """Return the names of the fields that say anything."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(AS_IS, f.name)]


def _option(name: str) -> str:
    return _OPTIONS.get(name) or f"--{name.replace('_', '-')}"


AS_IS = Preparing()
"""Nothing asked for."""


class Step(Protocol):
    """One kind of preparation; picklable, and opens what it needs in the process that uses it."""

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what `apply` makes of batches of `schema`.

        Raises ConfigError where the step finds nothing to do in it, SchemaError where it cannot.
        """

    def apply(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Return the rows that can be prepared, in order; `refuse` the others, one by one."""

    def identity(self) -> str:
        """Return what decides the result beside `Preparing`: the digest of a file that is read."""


STEPS: dict[str, str] = {
    "columns": "geodata.prepare.columns:DeclaredTypes",
    "images": "geodata.prepare.images:PreparedImages",
    "audio": "geodata.prepare.audio:PreparedAudio",
    "tokens": "geodata.prepare.tokens:Tokens",
}
"""In their order. Each has a class method `asked(Preparing) -> bool`."""


def steps_of(preparing: Preparing) -> list[Step]:
    """Return the steps that are asked for, loading their packages now."""
    if preparing == AS_IS:
        return []
    made: list[Step] = []
    for target in STEPS.values():
        module, _, attribute = target.partition(":")
        kind = getattr(import_module(module), attribute)
        if kind.asked(preparing):
            made.append(kind(preparing))
    return made


def prepared_schema(schema: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
    """Return the schema that the steps make of `schema`."""
    for step in steps:
        schema = step.schema(schema)
    return schema


def run_steps(batch: pa.RecordBatch, steps: Sequence[Step], refuse: Refuse) -> pa.RecordBatch:
    """Return what the steps make of a batch; `refuse` gets rows of the batch as given."""
    rows = list(range(batch.num_rows))
    for step in steps:
        lost: set[int] = set()

        def note(row: int, reason: str, raw: bytes, lost: set[int] = lost) -> None:
            lost.add(row)
            refuse(rows[row], reason, raw)  # noqa: B023

        batch = step.apply(batch, note)
        rows = [number for row, number in enumerate(rows) if row not in lost]
    return batch
