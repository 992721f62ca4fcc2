"""Batches for the trainer; no other file imports `geodata.loader`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from geodata.loader import build_loader
from train.remote import ConfigError, GeodataConfig

RawBatch = dict[str, Tensor]
"""A batch as the loader makes it; its number of rows is the same on every rank."""


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
        if self.loader.steps_per_epoch < 1:
            raise ConfigError(f"no records in the {split} split of what this region may read")
        per_lane = section.global_batch // self.loader.lanes
        self.records_per_step = self.loader.lanes // world_size * per_lane
        """The fewest that a rank has in a step which no lane has run out of."""
        self._batches = self._endless()

    def __next__(self) -> RawBatch:
        return next(self._batches)

    def epoch_batches(self) -> Generator[RawBatch, None, None]:
        """Yield the rest of the epoch; what the loader draws at its start changes no generator."""
        batches = iter(self.loader)
        with torch.random.fork_rng(devices=[]):
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def _endless(self) -> Generator[RawBatch, None, None]:
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


def holds_out(config: GeodataConfig) -> bool:
    """Return whether the config keeps records out of training."""
    return config.loader.split.heldout > 0
