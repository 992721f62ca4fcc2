"""What a kind of model is taught: batches for it, its loss, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from train.config import TrainConfig
from train.data import Feed
from train.models import KINDS
from train.remote import ConfigError

IGNORED = -100
"""Label of a place without a target."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A rank's part of a step, or of that a micro-batch.

    `inputs` and `labels` have a row for every record that is run. `sample` int64 [B] holds the ids
    of the step, -1 for padding; B is the same on every rank.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor
    """-100 wherever nothing is to be learnt."""
    sample: Tensor
    samples: int
    """Real records."""
    targets: int
    """Losses that are summed."""
    volume: int
    """Tokens or images that were read."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch with inputs and labels on a device."""
        inputs = {name: part.to(device, non_blocking=True) for name, part in self.inputs.items()}
        return replace(self, inputs=inputs, labels=self.labels.to(device, non_blocking=True))

    def split(self, parts: int) -> list[Batch]:
        """Return at most `parts` micro-batches of equal size, within one row."""
        parts = min(parts, len(self.labels))
        labels = self.labels.tensor_split(parts)
        inputs = {name: part.tensor_split(parts) for name, part in self.inputs.items()}
        return [
            replace(self, inputs={name: cut[i] for name, cut in inputs.items()}, labels=labels[i])
            for i in range(parts)
        ]


class Task(Protocol):
    """One way of teaching."""

    unit: str
    """What a batch's volume counts: "tokens" or "images"."""

    @classmethod
    def of(cls, config: TrainConfig, feed: Feed) -> Task:
        """Return the task over a feed's batches; ConfigError if these do not fit it."""

    @property
    def targets_per_record(self) -> float:
        """Return how many losses a record has at most, or about."""

    def defaults(self) -> dict[str, Any]:
        """Return keys of a transformers config that the data settles."""

    def check(self, config: Any) -> None:
        """Raise ConfigError if a model of this transformers config cannot take the batches."""

    def example(self) -> dict[str, Tensor]:
        """Return what a model is given for a batch of one record."""

    def batch(self, raw: Mapping[str, Tensor]) -> Batch:
        """Return the loader's batch as this task reads it; at least one row."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses in training, from logits in fp32.

        A batch without a target gives 0 and zero gradients.
        """

    def tally(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return what an evaluation sums over batches and ranks, float64 [n]."""

    def report(self, sums: list[float]) -> dict[str, Any]:
        """Return the record of an evaluation."""


_TASKS = {
    "causal": "train.tasks.language:Causal",
    "masked": "train.tasks.language:Masked",
    "classification": "train.tasks.images:Classification",
}


def make_task(config: TrainConfig, feed: Feed) -> Task:
    """Return the task of the config's model; ConfigError if the data are not for it."""
    section = config.model
    kind = KINDS[section.kind]
    if section.norm != "batch" and not kind.batch_norm:
        raise ConfigError(f"train.model.norm: {section.kind} has no batch normalisation")
    module, _, name = _TASKS[kind.task].partition(":")
    made: type[Task] = getattr(import_module(module), name)
    return made.of(config, feed)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the sum of losses of fp32 logits [..., C] and labels [...], -100 left out."""
    return nn.functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


def rows_of(wanted: Tensor) -> Tensor | slice:
    """Return which rows of a batch to run: those wanted (bool [B]), or the first if none is.

    Processes exchange gradients in step, so a rank without a record runs a row of padding.
    """
    if wanted.all():
        return slice(None)
    rows = wanted.nonzero().flatten()
    return rows if len(rows) else torch.zeros(1, dtype=torch.int64)
