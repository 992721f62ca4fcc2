"""Batches for the trainer; no other file imports `geodata.loader`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from geodata.loader import build_loader
from train.remote import ConfigError, GeodataConfig

BYTE_VALUES = 256
"""Token ids below this are bytes where tokens are bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A rank's part of a step: tokens and labels int64 [B, T], sample ids int64 [B].

    B is the same on every rank. Labels are not shifted, and -100 wherever nothing is to be
    learnt; an id of -1 is padding.
    """

    tokens: Tensor
    labels: Tensor
    sample: Tensor
    samples: int

    def to(self, device: torch.device) -> Batch:
        """Return the batch with tokens and labels on a device."""
        tokens = self.tokens.to(device, non_blocking=True)
        labels = self.labels.to(device, non_blocking=True)
        return Batch(tokens, labels, self.sample, self.samples)

    def split(self, parts: int) -> list[tuple[Tensor, Tensor]]:
        """Return (tokens, labels) of at most `parts` micro-batches of equal size."""
        parts = min(parts, len(self.tokens))
        tokens, labels = self.tokens.tensor_split(parts), self.labels.tensor_split(parts)
        return list(zip(tokens, labels, strict=True))


class Feed:
    """A rank's endless stream of batches, epoch after epoch.

    `filters` is the folder in which the run keeps which rows belong to the split; `version` is the
    dataset's that it began with, if the config pins none.
    """

    def __init__(
        self,
        config: GeodataConfig,
        region: str | None,
        rank: int,
        world_size: int,
        split: Literal["train", "heldout"],
        filters: Path,
        version: str | None,
    ):
        section = config.loader
        pinned = section.model_copy(update={"version": section.version or version})
        self.loader = build_loader(
            config.model_copy(update={"loader": pinned}),
            region=region,
            dp_rank=rank,
            dp_size=world_size,
            split=split,
            filters=filters,
        )
        if self.loader.text is None:
            raise ConfigError("the dataset has no text", hint="Set loader.text.column")
        if self.loader.steps_per_epoch < 1:
            raise ConfigError(f"no records in the {split} split of what this region may read")
        self.length = self.loader.text.length
        self.tokens_are_bytes = self.loader.text.tokenizer == "bytes"
        self._batches = self._endless()

    def __next__(self) -> Batch:
        return next(self._batches)

    def epoch_batches(self) -> Generator[Batch, None, None]:
        """Yield the rest of the epoch; what the loader draws at its start changes no generator."""
        batches = iter(self.loader)
        with torch.random.fork_rng(devices=[]):
            first = next(batches, None)
        if first is not None:
            yield _batch(first)
            yield from map(_batch, batches)

    def _endless(self) -> Generator[Batch, None, None]:
        while True:
            yield from self.epoch_batches()

    @property
    def order(self) -> int:
        """Return the first 48 bits of the digest of the order, in which ranks must agree."""
        return int(self.loader.order_digest[:12], 16)

    def state(self) -> dict[str, Any]:
        """Return the position after the last batch, and the shards left out, as plain JSON."""
        return {"state": self.loader.state_dict(), "excluded": list(self.loader.excluded)}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go to a saved position."""
        self.loader.load_state_dict(saved["state"], excluded=saved["excluded"])

    def close(self) -> None:
        """Stop the loader's workers."""
        self._batches.close()
        self.loader.close()


def _batch(raw: dict[str, Tensor]) -> Batch:
    real = raw["weight"] > 0
    labels = raw["labels"].masked_fill(~real[:, None], -100)
    return Batch(raw["tokens"], labels, raw["sample"], int(real.sum()))


def holds_out(config: GeodataConfig) -> bool:
    """Return whether the config keeps records out of training."""
    return config.loader.split.heldout > 0
