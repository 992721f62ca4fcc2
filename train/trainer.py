"""The loop: batches in; steps, evaluations and checkpoints out."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from train import checkpoint, data, durable, elastic, parallel, precision
from train.evaluation import Evaluation
from train.monitor import Console, RunLog, describe, finite
from train.remote import (
    STOPPED,
    ConfigError,
    GeodataConfig,
    GeodataError,
    admit_checkpoint,
    train_config,
    write_lineage,
)
from train.state import Plan, TrainState, check_unchanged
from train.steps import Notes, Step, Stepper

SCHEMA_VERSION = 1


class Diverged(GeodataError):
    """The loss or the gradients are no longer finite."""


class Trainer:
    """One process of one run; `run` is called once."""

    def __init__(self, config: GeodataConfig, *, region: str | None = None):
        self._whole = config
        self._config = train_config(config)
        if config.dataset is None:
            raise ConfigError("no dataset to train on", hint="Add dataset: {name: …, root: …}")
        self.run_dir = config.resolve(self._config.run_dir or f"runs/{config.dataset.name}")
        self._region = region
        self._notice = elastic.Notice()
        self._resumed_from: int | None = None
        self._last: dict[str, Any] = {}
        self._held_out: dict[str, Any] | None = None
        self._saved: Path | None = None

    def run(self) -> dict[str, Any]:
        """Train to the end or to a notice; return the summary, its `exit_code` 0, 75 or 130."""
        began = self._saved_at = time.monotonic()
        self._notice.listen()
        self._cluster = parallel.join(self._config.device, self._config.timeout)
        self._console = Console(self._cluster.first, self._config.log_every)
        number_format = precision.resolve(self._config.precision, self._cluster.device)
        self._config = self._config.model_copy(update={"precision": number_format})
        elastic.announce()
        with ExitStack() as stack:
            self._lock(stack)
            saved = self._latest()
            self._open_data(stack, saved)
            self._plan = Plan.of(self._whole, self._config, self._feed)
            if saved is not None:
                check_unchanged(saved, self._whole, self._config, self._plan.model_config)
            summary = self._finished(saved)
            if summary is None:
                self._prepare(saved, stack)
                summary = self._conclude(self._loop(), began)
            self._cluster.settle()
        return summary

    # Preparing

    def _lock(self, stack: ExitStack) -> None:
        self._checkpoints = checkpoint.Checkpoints(
            self.run_dir / "checkpoints", self._config.checkpoint.keep
        )
        if not self._cluster.first:
            return
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(durable.held(self.run_dir / ".lock"))
        except OSError as error:
            raise ConfigError(
                f"train.run_dir cannot be used: {error.strerror}", file=str(self.run_dir)
            ) from error
        if not free:
            raise ConfigError("another process is training here", file=str(self.run_dir))
        self._checkpoints.clean()

    def _open_data(self, stack: ExitStack, saved: checkpoint.Checkpoint | None) -> None:
        cluster = self._cluster
        version = saved.load("lineage.json")["version"] if saved else None

        def open_feed(split: Literal["train", "heldout"]) -> data.Feed:
            feed = data.Feed(
                self._whole,
                self._region,
                rank=cluster.rank,
                world_size=cluster.world_size,
                split=split,
                filters=self.run_dir / "filters",
                version=version,
            )
            stack.callback(feed.close)
            return feed

        self._feed = open_feed("train")
        self._held_out_feed = open_feed("heldout") if data.holds_out(self._whole) else None
        epochs = self._feed.loader.steps_per_epoch * (self._config.epochs or 1)
        self._total = self._console.total_steps = self._config.steps or epochs
        if cluster.first:
            admit_checkpoint(self._whole, self._feed.loader.lineage(), self.run_dir)

    def _latest(self) -> checkpoint.Checkpoint | None:
        found = self._checkpoints.latest(self._console.say) if self._cluster.first else None
        name = self._cluster.agree(found.path.name if found else None)
        return None if name is None else self._checkpoints.at(name)

    def _finished(self, saved: checkpoint.Checkpoint | None) -> dict[str, Any] | None:
        """Return the summary of a run that has nothing left to do."""
        path = self.run_dir / "summary.json"
        if saved is None or saved.step < self._total or not path.exists():
            return None
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if summary["steps"] != saved.step or summary["exit_code"] != 0:
            return None
        self._console.say(f"finished at step {saved.step:,}; raise train.steps to go on")
        return summary

    def _prepare(self, saved: checkpoint.Checkpoint | None, stack: ExitStack) -> None:
        cluster, config, plan = self._cluster, self._config, self._plan
        self._state = TrainState(self._whole, config, plan, self._feed, cluster, self._total)
        self._stepper = Stepper(
            config, self._state, plan.task, cluster, self._whole.loader.global_batch
        )
        feed, number_format = self._held_out_feed, self._state.number_format
        self._evaluation = (
            Evaluation(feed, plan.task, cluster, number_format, config.eval.steps) if feed else None
        )
        self._console.unit = plan.task.unit
        if saved is not None:
            self._state.restore(saved)
            self._saved, self._resumed_from = saved.path, saved.step
        if cluster.first:
            self._record_start(stack)

    def _record_start(self, stack: ExitStack) -> None:
        cluster, state = self._cluster, self._state
        facts = describe(world_size=cluster.world_size, device=str(cluster.device))
        durable.write(self.run_dir / "config.yaml", state.resolved.encode())
        durable.write(self.run_dir / "environment.json", _json(facts))
        write_lineage(self.run_dir / "lineage.json", self._feed.loader.lineage())
        self._log = RunLog(self.run_dir / "metrics.jsonl")
        self._last = self._log.rewind(state.step)
        stack.callback(self._log.close)
        start = f"resumed from step {state.step:,}" if self._saved else "started"
        self._console.say(
            f"{start} · {state.parameters / 1e6:.1f} M parameters · {state.number_format} · "
            f"{cluster.world_size} × {cluster.device.type} → {self.run_dir}"
        )

    # Training

    def _loop(self) -> int:
        """Train until the last step or a notice; return the exit code that the ranks agreed on."""
        stop = 0
        while not stop:
            if self._evaluation_due():
                stop = self._evaluate()
            if stop or self._state.step >= self._total:
                break
            step = self._train_step()
            stop = step.stop
            if step.late or self._save_due():
                self._save()
        if self._saved != self._checkpoints.path(self._state.step):
            self._save()
        return stop

    def _evaluation_due(self) -> bool:
        step, every = self._state.step, self._config.eval.every
        ends = step == 0 or step >= self._total
        return self._evaluation is not None and (ends or bool(every and step % every == 0))

    def _save_due(self) -> bool:
        step, every = self._state.step, self._config.checkpoint.every
        return step >= self._total or bool(every and step % every == 0)

    def _train_step(self) -> Step:
        began = time.perf_counter()
        batch = self._plan.task.batch(next(self._feed))
        waited = time.perf_counter() - began
        step = self._stepper.take(batch, self._notes(waited))
        self._check(step)
        self._state.step += 1
        if self._cluster.first:
            self._note_step(step, time.perf_counter() - began)
        return step

    def _notes(self, waited: float) -> Notes:
        code = self._notice.code or (STOPPED if self._cluster.orphaned() else 0)
        minutes = self._config.checkpoint.minutes or math.inf
        late = self._cluster.first and time.monotonic() - self._saved_at > 60 * minutes
        return Notes(code, late, waited, self._feed.order)

    def _check(self, step: Step) -> None:
        if not step.fault:
            return
        good = f"The last good checkpoint is {self._saved}" if self._saved else "None was saved"
        raise Diverged(
            f"{step.fault} at step {self._state.step + 1}",
            hint=f"{good}; a lower learning rate or a longer warm-up may help",
        )

    def _note_step(self, step: Step, seconds: float) -> None:
        unit, scale = self._plan.task.unit, self._state.loss_scale
        self._last = {
            "step": self._state.step,
            "epoch": self._feed.loader.epoch,
            "loss": step.mean_loss,
            "learning_rate": step.rate,
            "grad_norm": step.norm,
            "samples": int(step.samples),
            unit: int(step.volume),
            "targets": int(step.targets),
            "step_seconds": seconds,
            f"{unit}_per_second": step.volume / seconds,
            "data_wait_seconds": step.waited,
            "data_wait_share": step.waited / seconds,
            "peak_memory_bytes": _peak_memory(self._cluster.device),
            "sample_digest": _digest(step.ids),
        }
        if scale is not None:
            self._last |= {"skipped": step.skipped, "loss_scale": scale.scale}
        self._log.write("train", self._last)
        self._console.step(self._last)

    def _evaluate(self) -> int:
        """Evaluate on the held-out split; return the exit code of a notice that cut it short."""
        assert self._evaluation is not None
        found = self._evaluation.run(self._state.module, lambda: self._notice.code)
        if isinstance(found, int):
            return found
        self._held_out = {"step": self._state.step, **found}
        if self._cluster.first:
            self._log.write("eval", self._held_out)
            self._console.evaluation(self._held_out)
        return 0

    def _save(self) -> None:
        """Commit a checkpoint on the first rank; its failure is raised on all."""
        state, failure = self._state, None
        parts = state.capture()
        self._saved = self._checkpoints.path(state.step)
        if self._cluster.first:
            try:
                self._checkpoints.save(
                    parts,
                    step=state.step,
                    epoch=self._feed.loader.epoch,
                    world_size=self._cluster.world_size,
                )
            except checkpoint.CheckpointError as error:
                failure = error
        if failure := self._cluster.agree(failure):
            raise failure
        self._saved_at = time.monotonic()

    def _conclude(self, code: int, began: float) -> dict[str, Any]:
        """Write and return the summary of this start of the run."""
        alone = self._cluster.world_size == 1 and self._whole.loader.workers == 0
        tiers = self._feed.loader.cache_stats if alone else {}  # others count for themselves
        found = {
            "schema_version": SCHEMA_VERSION,
            "steps": self._state.step,
            "epoch": self._feed.loader.epoch,
            "loss": self._last.get("loss"),
            "eval": self._held_out,
            "run_dir": str(self.run_dir),
            "checkpoint": str(self._saved),
            "resumed_from": self._resumed_from,
            "cache": tiers or None,
            "seconds": round(time.monotonic() - began, 3),
            "exit_code": code,
        }
        summary: dict[str, Any] = finite(found)
        if self._cluster.first:
            durable.write(self.run_dir / "summary.json", _json(summary))
        self._console.cache(tiers)
        again = "; continue with the same command" if code else ""
        self._console.say(f"checkpoint {self._state.step:,} written{again}")
        return summary


def _digest(ids: Tensor) -> str:
    """Return the SHA-256 of a step's sample ids in the order of the lanes, padding left out."""
    flat = ids.flatten()
    return hashlib.sha256(flat[flat >= 0].cpu().numpy().astype("<i8").tobytes()).hexdigest()


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
