"""What the trainer uses of geodata beside the loader; no other file imports `geodata.remote`."""

from __future__ import annotations

from pathlib import Path

from geodata.remote import (
    INTERRUPTED,
    STOPPED,
    ConfigError,
    GeodataConfig,
    GeodataError,
    MissingExtra,
    admit_checkpoint,
    load_config,
    validate,
    write_lineage,
)
from train.config import Section, TrainConfig

__all__ = [
    "INTERRUPTED",
    "STOPPED",
    "ConfigError",
    "GeodataConfig",
    "GeodataError",
    "MissingExtra",
    "admit_checkpoint",
    "load_config",
    "train_config",
    "write_lineage",
]


class _Whole(Section):
    """Only so that a mistake is told under its full name."""

    train: TrainConfig


def train_config(config: GeodataConfig, path: Path | None = None) -> TrainConfig:
    """Return the `train:` section; ConfigError with the nearest valid key for a wrong one."""
    return validate(_Whole, {"train": config.train}, where=str(path or "")).train
