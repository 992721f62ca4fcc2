"""One step → one batch: a torch map-style dataset of an epoch, indexed by lane slot.

Whole steps are dealt to workers, so workers, their speed and their buffers cannot change what a
step holds. An instance is of one epoch; it is picklable and opens nothing before its first item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import types
from torch.utils.data import Dataset

from geodata.config import ImageSection, TextSection
from geodata.errors import ConfigError, CorruptShard, GeodataError
from geodata.loader.decode import ImageDecoder, Integers, Tokenizer, crop_starts, sequences
from geodata.order import EpochOrder, sample_ids
from geodata.reader import Reader
from geodata.schema import KEY, media_of

Int64s = npt.NDArray[np.int64]
Batch = dict[str, torch.Tensor]


@dataclass(slots=True)
class Columns:
    """What becomes a tensor, and how."""

    text: TextSection | None = None
    tokenizer: Tokenizer | None = None
    decoder: ImageDecoder | None = None
    numbers: list[str] = field(default_factory=list)

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
    fields = [f for f in schema if wanted is None or f.name in wanted]
    if text is None and image is None:
        named = {media_of(field): field.name for field in reversed(fields)}
        text = TextSection(column=named["text"]) if "text" in named else None
        image = ImageSection(column=named["image"]) if "image" in named else None
    numbers = [
        f.name
        for f in fields
        if types.is_integer(f.type) or types.is_floating(f.type) or types.is_boolean(f.type)
    ]
    return text, image, numbers


@dataclass(slots=True, eq=False)
class StepDataset(Dataset[Batch | GeodataError]):
    """The steps of one epoch for one rank: item s is the step that begins at slot s of each lane.

    Batches have `slots` = lanes of the rank × slots per lane, padded to `batch_size` rows with
    weight 0, the same on every rank.
    """

    reader: Reader
    order: EpochOrder
    columns: Columns
    lanes: Sequence[int]
    per_lane: int
    batch_size: int
    denied: frozenset[str]
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
        names = [self.order.shards[s].shard_id if s >= 0 else "" for s in shard]
        real = np.array([bool(name) and name not in self.denied for name in names])
        batch: Batch = {}
        weight = real.astype(np.float32)
        sample = np.full(len(row), -1, np.int64)
        for name in dict.fromkeys(n for n, r in zip(names, real, strict=True) if r):
            own = np.array([n == name for n in names])
            sample[own] = sample_ids(name, row[own])
        rows = self._rows(names, row, real)
        keys = rows.column(KEY)
        gone = np.ones(len(row), bool)
        gone[np.flatnonzero(real)] = keys.is_null().to_numpy(zero_copy_only=False)
        weight[gone] = 0
        sample[gone] = -1
        self._decode(batch, rows, real, weight, sample)
        batch["weight"] = torch.from_numpy(weight)
        batch["sample"] = torch.from_numpy(sample)
        return batch

    def _rows(self, names: Sequence[str], row: Int64s, real: npt.NDArray[np.bool_]) -> Any:
        chosen = [name for name, r in zip(names, real, strict=True) if r]
        if not chosen:
            first = self.order.shards[0].shard_id
            return self.reader.unit(first, 0, self.columns.names).slice(0, 0)
        return self.reader.rows(chosen, row[real], self.columns.names)

    def _decode(
        self,
        batch: Batch,
        rows: pa.RecordBatch,
        real: npt.NDArray[np.bool_],
        weight: npt.NDArray[np.float32],
        sample: Int64s,
    ) -> None:
        """Fill the batch from the real rows; the other rows are padding."""
        place = np.flatnonzero(real)
        columns = self.columns
        if columns.text is not None and columns.tokenizer is not None:
            found = columns.tokenizer.encode(rows.column(columns.text.column))
            texts: list[Integers] = [np.zeros(0, np.int64)] * len(real)
            for at, ids in zip(place, found, strict=True):
                texts[at] = ids
            random = columns.text.crop == "random"
            starts = crop_starts(sample, self.order.seed, self.order.epoch) if random else None
            batch["tokens"], batch["labels"] = sequences(
                texts, columns.tokenizer, columns.text, starts
            )
        if columns.decoder is not None:
            batch["image"] = self._images(columns.decoder, rows, place, weight)
        for name in columns.numbers:
            batch[name] = _numbers(rows.column(name), place, len(real))

    def _images(
        self,
        decoder: ImageDecoder,
        rows: pa.RecordBatch,
        place: Int64s,
        weight: npt.NDArray[np.float32],
    ) -> torch.Tensor:
        section = decoder.section

        def bad(row: int, error: CorruptShard) -> None:
            if not self.skip_bad:
                raise error
            weight[place[row]] = 0

        decoded = decoder(rows.column(section.column), rows.column(KEY).to_pylist(), bad)
        images = torch.zeros((len(weight), 3, section.size, section.size), dtype=torch.uint8)
        images[torch.from_numpy(place)] = decoded
        return images


def _numbers(column: pa.Array, place: Int64s, count: int) -> torch.Tensor:
    """Return numbers as a tensor [count]; nulls and padding are 0."""
    values = column.fill_null(False if types.is_boolean(column.type) else 0)
    found = torch.from_numpy(np.array(values.to_numpy(zero_copy_only=False)))
    out = torch.zeros(count, dtype=found.dtype)
    out[torch.from_numpy(place)] = found
    return out
