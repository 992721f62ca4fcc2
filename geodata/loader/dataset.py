"""One step → one batch: a torch map-style dataset of an epoch, indexed by lane slot.

Whole steps are dealt to workers, so workers, their speed and their buffers cannot change what a
step holds. An instance is of one epoch; it is picklable and opens nothing before its first item.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import types
from torch.utils.data import Dataset

from geodata.config import ImageSection, TextSection
from geodata.errors import ConfigError, CorruptShard, GeodataError
from geodata.loader.images import ImageDecoder
from geodata.loader.seeds import Seeds
from geodata.loader.text import IGNORED, Integers, Tokenizer, crop_starts, mask, sequences
from geodata.order import EpochOrder, sample_ids
from geodata.reader import Reader
from geodata.schema import KEY, is_label, media_of

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Batch = dict[str, torch.Tensor]

RESERVED = frozenset({"tokens", "labels", "attention_mask", "image", "weight", "sample"})
"""Names that a batch has of its own."""

SKIPPED = "__skipped__"
"""In a batch from a worker: how many bad records it left out."""

log = logging.getLogger("geodata.loader")


@dataclass(slots=True)
class Columns:
    """What becomes a tensor, and how."""

    text: TextSection | None = None
    tokenizer: Tokenizer | None = None
    decoder: ImageDecoder | None = None
    numbers: list[str] = field(default_factory=list)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Of the columns to read, in the order of `names`."""

    @property
    def names(self) -> list[str]:
        """Return the columns to read."""
        text = [self.text.column] if self.text else []
        image = [self.decoder.section.column] if self.decoder else []
        return [KEY, *text, *image, *self.numbers]


def choose_columns(
    schema: pa.Schema,
    wanted: Sequence[str] | None,
    text: TextSection | None,
    image: ImageSection | None,
) -> tuple[TextSection | None, ImageSection | None, list[str]]:
    """Return the text, the image and the number columns to decode, by config and schema."""
    missing = [name for name in wanted or () if name not in schema.names]
    missing += [part.column for part in (text, image) if part and part.column not in schema.names]
    if missing:
        raise ConfigError(
            f"the dataset has no column '{missing[0]}'", hint=f"It has {', '.join(schema.names)}"
        )
    for part, kinds in ((text, "text"), (image, "an image")):
        if part is not None and not _holds(schema.field(part.column).type, kinds):
            kind = schema.field(part.column).type
            raise ConfigError(f"column '{part.column}' is {kind}, not {kinds}")
    fields = [f for f in schema if wanted is None or f.name in wanted]
    if text is None and image is None:
        named = {media_of(field): field.name for field in reversed(fields)}
        text = TextSection(column=named["text"]) if "text" in named else None
        image = ImageSection(column=named["image"]) if "image" in named else None
    numbers = _numeric(fields, wanted is not None)
    used = {part.column for part in (text, image) if part is not None} | set(numbers)
    lost = [name for name in wanted or () if name not in used]
    if lost:
        raise ConfigError(
            f"column '{lost[0]}' is {schema.field(lost[0]).type}, which is no tensor",
            hint="loader.columns names numbers, the text and the image",
        )
    return text, image, numbers


def _holds(kind: pa.DataType, what: str) -> bool:
    if what == "text":
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _numeric(fields: Sequence[pa.Field], chosen: bool) -> list[str]:
    """Return the names of number columns; one that a batch uses itself cannot be had."""
    numbers = [
        field.name
        for field in fields
        if types.is_integer(field.type)
        or types.is_floating(field.type)
        or types.is_boolean(field.type)
    ]
    hidden = sorted(RESERVED & set(numbers))
    if hidden and chosen:
        raise ConfigError(
            f"column '{hidden[0]}' has the name of a part of every batch", hint="Rename it"
        )
    if hidden:
        log.warning("columns left out, since every batch has these names: %s", ", ".join(hidden))
    return [name for name in numbers if name not in RESERVED]


@dataclass(slots=True, eq=False)
class StepDataset(Dataset[Batch | GeodataError]):
    """The steps of one epoch for one rank: item s is the step that begins at slot s of each lane.

    `denied` are the numbers of shards that have been denied since the epoch began.

    Batches have `slots` = lanes of the rank × slots per lane, padded to `batch_size` rows with
    weight 0, the same on every rank.
    """

    reader: Reader
    order: EpochOrder
    columns: Columns
    lanes: Sequence[int]
    per_lane: int
    batch_size: int
    denied: Int64s
    skip_bad: bool

    def starts(self, slot: int) -> range:
        """Return the items from `slot` to the end of the epoch."""
        return range(slot, self.order.lane_slots, self.per_lane)

    def __getitem__(self, start: int) -> Batch | GeodataError:
        """Return the batch of a step; an error comes back as a value, whole, from any process."""
        try:
            return self._batch(start)
        except GeodataError as error:
            return error

    def _batch(self, start: int) -> Batch:
        shard, row = self.order.slots(self.lanes, start, start + self.per_lane)
        shard = np.pad(shard, (0, self.batch_size - len(shard)), constant_values=-1)
        row = np.pad(row, (0, self.batch_size - len(row)), constant_values=-1)
        ids = self.order.ids
        real = (shard >= 0) & ~np.isin(shard, self.denied)
        sample = np.full(len(row), -1, np.int64)
        for number in np.unique(shard[real]):
            own = shard == number
            sample[own] = sample_ids(ids[number], row[own])
        rows = self._rows(ids, shard[real], row[real])
        weight = np.zeros(len(row), np.float32)
        weight[real] = rows.column(KEY).is_valid().to_numpy(zero_copy_only=False)
        batch: Batch = {}
        origin = [(ids[s], int(r)) for s, r in zip(shard[real], row[real], strict=True)]
        self._decode(batch, rows, real, weight, sample, origin)
        sample[weight == 0] = -1
        batch["weight"] = torch.from_numpy(weight)
        batch["sample"] = torch.from_numpy(sample)
        return batch

    def _rows(self, ids: Sequence[str], shard: Int64s, row: Int64s) -> pa.RecordBatch:
        if len(shard):
            return self.reader.rows(ids, shard, row, self.columns.names)
        schema = self.columns.schema
        return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)

    def _decode(
        self,
        batch: Batch,
        rows: pa.RecordBatch,
        real: Bools,
        weight: npt.NDArray[np.float32],
        sample: Int64s,
        origin: Sequence[tuple[str, int]],
    ) -> None:
        """Fill the batch from the real rows, which come from `origin`; the others are padding."""
        place, columns = np.flatnonzero(real), self.columns
        if columns.text is not None and columns.tokenizer is not None:
            texts = rows.column(columns.text.column)
            batch.update(self._texts(columns.text, columns.tokenizer, texts, place, sample))
        if columns.decoder is not None:
            images = self._images(columns.decoder, rows, place, weight, sample, origin)
            batch["image"] = images
            batch[SKIPPED] = torch.tensor(int(rows.column(KEY).is_valid().sum().as_py() or 0))
            batch[SKIPPED] -= int((weight > 0).sum())
        for name in columns.numbers:
            empty = IGNORED if is_label(columns.schema.field(name)) else 0
            batch[name] = _numbers(rows.column(name), place, len(real), empty)

    def _texts(
        self,
        section: TextSection,
        tokenizer: Tokenizer,
        column: pa.Array,
        place: Int64s,
        sample: Int64s,
    ) -> Batch:
        texts: list[Integers] = [np.zeros(0, np.int64)] * len(sample)
        for at, ids in zip(place, tokenizer.encode(column), strict=True):
            texts[at] = ids
        seeds = self._seeds(sample)
        starts = crop_starts(seeds) if section.crop == "random" else None
        tokens, labels = sequences(texts, tokenizer, section.length, starts)
        if section.masked:
            return mask(tokens, labels, tokenizer, section.masked, seeds)
        return {"tokens": tokens, "labels": labels}

    def _seeds(self, sample: Int64s) -> Seeds:
        return Seeds(sample, self.order.seed, self.order.epoch)

    def _images(
        self,
        decoder: ImageDecoder,
        rows: pa.RecordBatch,
        place: Int64s,
        weight: npt.NDArray[np.float32],
        sample: Int64s,
        origin: Sequence[tuple[str, int]],
    ) -> torch.Tensor:
        def bad(row: int, reason: str) -> None:
            if not self.skip_bad:
                shard, number = origin[row]
                raise CorruptShard(reason, shard=shard, row=number)
            weight[place[row]] = 0

        there = rows.column(KEY).is_valid().to_pylist()
        seeds = self._seeds(sample[place])
        column = rows.column(decoder.section.column)
        return decoder(column, there, seeds, bad, place.tolist(), len(weight))


def _numbers(column: pa.Array, place: Int64s, count: int, empty: int) -> torch.Tensor:
    """Return numbers as a tensor [count]; nulls and padding are `empty`."""
    kind = column.type
    filled = column.fill_null(pa.scalar(bool(empty) if types.is_boolean(kind) else empty, kind))
    found = np.asarray(filled.to_numpy(zero_copy_only=False))
    out = np.full(count, empty, found.dtype)
    out[place] = found
    return torch.from_numpy(out)
