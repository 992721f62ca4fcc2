"""Image classification: one class of a label column for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from train.config import ImageSection, TrainConfig
from train.data import Feed
from train.models import KINDS
from train.remote import ConfigError
from train.tasks.base import IGNORED, Batch, cross_entropy, rows_of

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Classification:
    """Name the class of each image.

    Only images with a label are run: padding, and records without one, reach no statistics.
    """

    label: str
    names: list[str]
    size: int
    scaling: ImageSection
    smoothing: float

    unit: ClassVar[str] = "images"

    @classmethod
    def of(cls, config: TrainConfig, feed: Feed) -> Classification:
        """Return the task over a feed of images and labels."""
        kind, section = config.model.kind, feed.loader.image
        if section is None:
            raise ConfigError(
                f"{kind} classifies images, and the dataset has no images",
                hint="Set loader.image.column, or train.model.kind to gpt2 or bert",
            )
        label = label_column(config.model.label, feed.loader.labels)
        if KINDS[kind].batch_norm and config.model.norm == "batch":
            _check_rows(feed.records_per_step, config.accumulation)
        names = feed.loader.labels[label]
        return cls(label, names, section.size, config.image, config.label_smoothing)

    @property
    def targets_per_record(self) -> float:
        """Return the one loss that an image has."""
        return 1.0

    def defaults(self) -> dict[str, Any]:
        """Return the classes by name, and what the images are like."""
        return {
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: number for number, name in enumerate(self.names)},
            "num_channels": CHANNELS,
            "image_size": self.size,
        }

    def check(self, config: Any) -> None:
        """Raise ConfigError if a model has too few classes or takes other images."""
        if config.num_labels < len(self.names):
            raise ConfigError(
                f"train.model.config.num_labels: {config.num_labels} is below the "
                f"{len(self.names)} classes of '{self.label}'"
            )
        if config.num_channels != CHANNELS:
            raise ConfigError(
                f"train.model.config.num_channels: {config.num_channels}; images have {CHANNELS}"
            )
        if _sides(config, "image_size") not in ([], [self.size], [self.size] * 2):
            raise ConfigError(
                f"train.model.config.image_size: {config.image_size} is not loader.image.size, "
                f"{self.size}"
            )
        for side in _sides(config, "patch_size"):
            if side < 1 or self.size % side:
                raise ConfigError(
                    f"train.model.config.patch_size: {side} does not divide loader.image.size, "
                    f"{self.size}"
                )

    def example(self) -> dict[str, Tensor]:
        """Return a black image."""
        return {"pixel_values": torch.zeros(1, CHANNELS, self.size, self.size)}

    def batch(self, raw: Mapping[str, Tensor]) -> Batch:
        """Return the rows of images that have a label, pixels as uint8."""
        real = raw["weight"] > 0
        labels = raw[self.label].masked_fill(~real, IGNORED)
        rows = rows_of(labels >= 0)
        inputs = {"pixel_values": raw["image"][rows]}
        count = int((labels >= 0).sum())
        return Batch(inputs, labels[rows], raw["sample"], int(real.sum()), count, count)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the images' losses."""
        return cross_entropy(self._logits(model, batch), batch.labels, self.smoothing)

    def tally(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of losses, then the images of each class, then those named rightly."""
        logits, labels = self._logits(model, batch), batch.labels
        real, classes = labels >= 0, len(self.names)
        right = real & (logits.argmax(-1) == labels)
        counts = [torch.bincount(labels[chosen], minlength=classes) for chosen in (real, right)]
        return torch.cat([cross_entropy(logits, labels).double()[None], *counts])

    def report(self, sums: list[float]) -> dict[str, Any]:
        """Return loss, accuracy and balanced_accuracy, and what guessing would reach.

        Balanced accuracy is the mean recall of the classes that occur, so that of always naming
        one class is 1 / their number. `majority` is the accuracy of always naming the commonest.
        """
        nll, classes = sums[0], len(self.names)
        images, right = sums[1 : classes + 1], sums[classes + 1 :]
        count = max(1.0, sum(images))
        recalls = [one / of for one, of in zip(right, images, strict=True) if of]
        return {
            "loss": nll / count,
            "accuracy": sum(right) / count,
            "balanced_accuracy": sum(recalls) / max(1, len(recalls)),
            "majority": max(images) / count,
            "images": int(sum(images)),
            "classes": self._by_class(images, right),
        }

    def _by_class(self, images: Sequence[float], right: Sequence[float]) -> dict[str, Any]:
        """Return the images and the right answers of each class that occurs."""
        table = zip(self.names, images, right, strict=True)
        return {name: {"images": int(of), "right": int(one)} for name, of, one in table if of}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        scaled = scale_pixels(batch.inputs["pixel_values"], self.scaling)
        logits: Tensor = model(pixel_values=scaled).logits.float()
        return logits


def scale_pixels(images: Tensor, scaling: ImageSection) -> Tensor:
    """Return uint8 images [B, 3, H, W] as floats of the config's mean 0 and deviation 1."""
    channels = images.float().unbind(1)
    scaled = [
        (channel - 255 * mean) / (255 * std)
        for channel, mean, std in zip(channels, scaling.mean, scaling.std, strict=True)
    ]
    return torch.stack(scaled, dim=1)


def label_column(wanted: str | None, labels: Mapping[str, Sequence[str]]) -> str:
    """Return the column of classes: the config's, or the only one."""
    among = ", ".join(sorted(labels))
    if not labels:
        raise ConfigError(
            "the dataset has no column of labels to learn",
            hint="Convert a folder of images for each class; loader.columns must not leave it out",
        )
    if wanted is not None and wanted not in labels:
        raise ConfigError(
            f"train.model.label: '{wanted}' is no column of labels", hint=f"There is {among}"
        )
    if wanted is None and len(labels) > 1:
        raise ConfigError(
            f"the dataset has several columns of labels: {among}", hint="Set train.model.label"
        )
    return wanted or next(iter(labels))


def _check_rows(records: int, accumulation: int) -> None:
    """Refuse micro-batches of one image: there is nothing to take statistics of."""
    if records // accumulation < 2:
        raise ConfigError(
            f"a rank has {records} images a step, in {accumulation} micro-batches: batch "
            "normalisation needs two in each",
            hint="Raise loader.global_batch, lower train.accumulation or the number of processes, "
            "or set train.model.norm to group",
        )


def _sides(config: Any, key: str) -> list[int]:
    """Return a size of a config as a list: of one number, of a height and a width, or empty."""
    value = getattr(config, key, None)
    if value is None:
        return []
    return [int(side) for side in value] if isinstance(value, list | tuple) else [int(value)]
