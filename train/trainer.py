"""The loop: batches in; steps, evaluations and checkpoints out."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import sys
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from train import checkpoint, data, durable, elastic, models, optim, parallel, precision
from train.evaluation import Evaluation
from train.monitor import Console, RunLog, describe
from train.remote import (
    STOPPED,
    ConfigError,
    GeodataConfig,
    GeodataError,
    admit_checkpoint,
    train_config,
    write_lineage,
)
from train.state import TrainState, check_unchanged, plan_model

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
        elastic.announce()
        with ExitStack() as stack:
            self._lock(stack)
            saved = self._latest()
            self._open_data(stack, saved)
            self._model_config = plan_model(self._whole, self._config, self._feed)
            if saved is not None:
                check_unchanged(saved, self._config, self._model_config)
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
        cluster = self._cluster
        self._format = precision.resolve(self._config.precision, cluster.device)
        self._state = TrainState(
            self._whole, self._config, self._model_config, self._feed, cluster, self._total
        )
        feed, steps = self._held_out_feed, self._config.eval.steps
        self._evaluation = Evaluation(feed, cluster, self._format, steps) if feed else None
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
            f"{start} · {state.parameters / 1e6:.1f} M parameters · {self._format} · "
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
            stop, late = self._train_step()
            if late or self._save_due():
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

    def _train_step(self) -> tuple[int, bool]:
        """Take one step; return (exit code of a notice or 0, whether a timed save is due)."""
        began = time.perf_counter()
        batch = next(self._feed)
        waited = time.perf_counter() - began
        loss, targets = self._accumulate(batch.to(self._cluster.device))
        table, ids = self._exchange(loss, targets, batch, waited)
        rate = self._state.optimizer.param_groups[0]["lr"]
        norm = self._update(table[:, 1].sum())
        totals = _Totals.of(table, norm)
        if not totals.agreed:
            raise ConfigError(
                "the ranks do not read the same records",
                hint="Give all of them one config, one policy and one version of the dataset",
            )
        self._check_finite(totals)
        self._state.step += 1
        if self._cluster.first:
            self._note_step(totals, ids, rate, time.perf_counter() - began)
        return totals.stop, totals.late

    def _accumulate(self, batch: data.Batch) -> tuple[Tensor, Tensor]:
        """Add the gradients of the summed loss; return that sum and the number of targets.

        The ranks exchange gradients once, in the last micro-batch.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._cluster.device)
        parts = batch.split(self._config.accumulation)
        for i, (tokens, labels) in enumerate(parts, 1):
            with self._apart(i < len(parts)):
                with precision.autocast(self._format, self._cluster.device):
                    loss = models.token_loss(self._state.model, tokens, labels)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total, models.targets(batch.labels)

    def _apart(self, apart: bool) -> AbstractContextManager[object]:
        """Return a context in which the ranks keep their gradients to themselves."""
        if apart and isinstance(self._state.model, DistributedDataParallel):
            return self._state.model.no_sync()
        return nullcontext()

    def _exchange(
        self, loss: Tensor, targets: Tensor, batch: data.Batch, waited: float
    ) -> tuple[Tensor, Tensor]:
        """Share this step between the ranks: rows as `_Totals` reads them, and sample ids."""
        code = self._notice.code or (STOPPED if self._cluster.orphaned() else 0)
        minutes = self._config.checkpoint.minutes or math.inf
        late = self._cluster.first and time.monotonic() - self._saved_at > 60 * minutes
        facts = [batch.samples, code, late, waited, self._feed.order]
        plain = torch.tensor(facts, dtype=torch.float64, device=loss.device)
        row = torch.cat([torch.stack([loss, targets.double()]), plain])
        return self._cluster.exchange(row, batch.sample)

    def _update(self, targets: Tensor) -> Tensor:
        """Make the gradients those of the mean loss over all targets, clip, and step.

        The ranks' gradients of summed losses arrive averaged, hence the world size.
        """
        state, limit = self._state, self._config.clip
        scale = (self._cluster.world_size / targets.clamp(min=1)).float()
        norm = optim.scale_and_clip(state.module.parameters(), scale, limit)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.schedule.step()
        return norm

    def _check_finite(self, totals: _Totals) -> None:
        if math.isfinite(totals.loss) and math.isfinite(totals.norm):
            return
        what = "gradients" if math.isfinite(totals.loss) else "loss"
        good = f"The last good checkpoint is {self._saved}" if self._saved else "None was saved"
        raise Diverged(
            f"the {what} became {totals.norm if what == 'gradients' else totals.loss} "
            f"at step {self._state.step + 1}",
            hint=f"{good}; a lower learning rate or a longer warm-up may help",
        )

    def _note_step(self, totals: _Totals, ids: Tensor, rate: float, seconds: float) -> None:
        tokens = int(totals.targets)
        self._last = {
            "step": self._state.step,
            "epoch": self._feed.loader.epoch,
            "loss": totals.loss / max(1, tokens),
            "learning_rate": rate,
            "grad_norm": totals.norm,
            "samples": int(totals.samples),
            "tokens": tokens,
            "step_seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "data_wait_seconds": totals.waited,
            "data_wait_share": totals.waited / seconds,
            "peak_memory_bytes": _peak_memory(self._cluster.device),
            "sample_digest": _digest(ids),
        }
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
        summary = {
            "schema_version": SCHEMA_VERSION,
            "steps": self._state.step,
            "epoch": self._feed.loader.epoch,
            "loss": self._last.get("loss"),
            "eval": self._held_out,
            "run_dir": str(self.run_dir),
            "checkpoint": str(self._saved),
            "resumed_from": self._resumed_from,
            "seconds": round(time.monotonic() - began, 3),
            "exit_code": code,
        }
        if self._cluster.first:
            durable.write(self.run_dir / "summary.json", _json(summary))
        again = "; continue with the same command" if code else ""
        self._console.say(f"checkpoint {self._state.step:,} written{again}")
        return summary


@dataclass(frozen=True, slots=True)
class _Totals:
    """A step over all ranks: sums of loss, targets and samples; the others are maxima.

    `agreed` says whether the ranks have one order of the data.
    """

    loss: float
    targets: float
    samples: float
    stop: int
    late: bool
    waited: float
    agreed: bool
    norm: float

    @classmethod
    def of(cls, table: Tensor, norm: Tensor) -> _Totals:
        """Read the ranks' rows and the gradient norm: the one moment a step waits for a GPU."""
        agreed = (table[:, 6] == table[0, 6]).all().double()
        parts = [table[:, :3].sum(0), table[:, 3:6].amax(0), torch.stack([agreed, norm.double()])]
        loss, targets, samples, stop, late, waited, same, length = torch.cat(parts).tolist()
        return cls(loss, targets, samples, int(stop), bool(late), waited, bool(same), length)


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
    return (json.dumps(value, indent=2) + "\n").encode()
