"""What a run is at a moment: model, optimizer, schedule, loss scale, generators, position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import yaml

from train import checkpoint, data, models, optim, precision
from train.config import MEANING, TrainConfig
from train.parallel import Cluster
from train.remote import ConfigError, GeodataConfig
from train.tasks import Task, make_task


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run teaches, and the transformers config of its model."""

    task: Task
    model_config: Any

    @classmethod
    def of(cls, whole: GeodataConfig, config: TrainConfig, feed: data.Feed) -> Plan:
        """Return the plan; ConfigError if model and data do not fit each other."""
        task = make_task(config, feed)
        found = models.model_config(config.model, whole.resolve("."), task.defaults())
        task.check(found)
        return cls(task, found)


class TrainState:
    """Built from the config, its precision resolved; `restore` goes where a checkpoint left off."""

    def __init__(
        self,
        whole: GeodataConfig,
        config: TrainConfig,
        plan: Plan,
        feed: data.Feed,
        cluster: Cluster,
        total_steps: int,
    ):
        self._config, self._feed, self._cluster = config, feed, cluster
        self.step = 0
        self.model_config = plan.model_config
        self.resolved = _resolved(whole, config)
        self.number_format = config.precision
        self.loss_scale = precision.LossScale() if self.number_format == "fp16" else None
        torch.manual_seed(config.seed)
        self.module = models.build_model(self.model_config, config.model.norm, plan.task.example())
        self.model = cluster.wrap(self.module)
        self.optimizer = optim.build_optimizer(self.module, config.optimizer)
        self.schedule = optim.build_schedule(self.optimizer, config.schedule, total_steps)
        checkpoint.seed_rng(config.seed, 0, cluster.rank)

    @property
    def parameters(self) -> int:
        """Return how many numbers the model learns."""
        return sum(p.numel() for p in self.module.parameters())

    def capture(self) -> dict[str, Any]:
        """Return the parts of a checkpoint on the first rank, an empty dict on the others.

        From then on every rank has the first one's buffers, which are the ones saved.
        """
        self._cluster.share_buffers(self.module)
        generators = self._cluster.gather(checkpoint.rng_state(self._cluster.device))
        if not self._cluster.first:
            return {}
        scale = {"loss_scale.json": self.loss_scale.state()} if self.loss_scale else {}
        return {
            "model.pt": self.module.state_dict(),
            "optimizer.pt": self.optimizer.state_dict(),
            "scheduler.pt": self.schedule.state_dict(),
            "rng.pt": dict(enumerate(generators)),
            "loader.json": self._feed.state(),
            "model.json": _plain(self.model_config),
            "lineage.json": self._feed.loader.lineage(),
            "config.yaml": self.resolved,
            **scale,
        }

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue where `saved` was written, at any world size.

        A rank that did not exist then gets generators seeded by (seed, step, rank).
        """
        self.step = saved.step
        self.module.load_state_dict(saved.load("model.pt"))
        self.optimizer.load_state_dict(saved.load("optimizer.pt"))
        optim.restore_schedule(self.schedule, saved.load("scheduler.pt"))
        if self.loss_scale is not None and saved.has("loss_scale.json"):
            self.loss_scale = precision.LossScale(**saved.load("loss_scale.json"))
        self._feed.restore(saved.load("loader.json"))
        generators, rank = saved.load("rng.pt"), self._cluster.rank
        if rank in generators:
            checkpoint.restore_rng(generators[rank], self._cluster.device)
        else:
            checkpoint.seed_rng(self._config.seed, saved.step, rank)


def check_unchanged(
    saved: checkpoint.Checkpoint, whole: GeodataConfig, config: TrainConfig, model_config: Any
) -> None:
    """Raise ConfigError if the config now describes another run than the one saved."""
    kept = yaml.safe_load(saved.load("config.yaml"))
    loader = type(whole.loader).model_validate(kept["loader"])
    for part in ("text", "image"):
        old, new = (_dumped(getattr(section, part)) for section in (loader, whole.loader))
        _refuse_change(f"loader.{part}", old, new)
    before = TrainConfig.model_validate(kept["train"]).model_dump(mode="json")
    now = config.model_dump(mode="json")
    if before["precision"] == "auto":  # as the first release kept it
        before["precision"] = now["precision"]
    before["model"]["config"] = saved.load("model.json")
    now["model"]["config"] = _plain(model_config)
    for part in MEANING:
        _refuse_change(f"train.{part}", before.get(part), now[part])


def _refuse_change(key: str, before: Any, now: Any) -> None:
    for name, old, new in _differences(key, before, now):
        raise ConfigError(
            f"{name} was {old} when this run began and is {new} now",
            hint="Set it back, or choose another train.run_dir",
        )


def _dumped(section: Any) -> dict[str, Any]:
    return section.model_dump(mode="json") if section is not None else {}


def _plain(model_config: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(model_config.to_json_string(use_diff=False))
    values.pop("transformers_version", None)
    return values


def _resolved(whole: GeodataConfig, config: TrainConfig) -> str:
    """Return the whole config as YAML, the trainer's defaults spelled out."""
    values = whole.model_dump(mode="json", by_alias=True, exclude_none=True)
    values["train"] = config.model_dump(mode="json")
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old, new) of the leaves that differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            yield from _differences(f"{key}.{name}", old.get(name), new.get(name))
    elif old != new:
        yield key, old, new
