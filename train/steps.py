"""One optimizer step over all ranks: micro-batches, what the ranks share, and the update.

The ranks exchange gradients once, in their last micro-batch, and then their numbers: sums, norms
and notices. All read the same table, so all take a step, or all leave it out.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from train import norms, optim, precision
from train.config import TrainConfig
from train.parallel import Cluster
from train.remote import ConfigError
from train.state import TrainState
from train.tasks import Batch, Task


@dataclass(frozen=True, slots=True)
class Notes:
    """What a rank has to say beside its gradients.

    `stop` is an exit code or 0, `late` whether a timed save is due, `waited` seconds for the data,
    `order` the digest of the data's order, in which all ranks must agree.
    """

    stop: int
    late: bool
    waited: float
    order: int


@dataclass(frozen=True, slots=True)
class Step:
    """What became of a step: loss to volume are sums over the ranks, stop to waited maxima."""

    loss: float
    targets: float
    samples: float
    volume: float
    stop: int
    late: bool
    waited: float
    norm: float
    """Of the gradients of the mean loss, before clipping."""
    ids: Tensor
    """Sample ids int64 [world, B]."""
    rate: float
    """The learning rate."""
    skipped: bool = False
    """Whether it overflowed fp16 and left everything but the loss scale as it was."""
    fault: str = ""
    """Why the run cannot go on."""

    @property
    def finite(self) -> bool:
        """Return whether the loss and the gradients of all ranks were finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)

    @property
    def mean_loss(self) -> float:
        """Return the loss a target."""
        return self.loss / max(1.0, self.targets)


class Stepper:
    """Takes the steps of a run.

    A loss is a sum; in fp16 its gradients are scaled as those of the mean over the targets that a
    global batch has at most: the same number at any number of ranks and micro-batches.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: TrainState,
        task: Task,
        cluster: Cluster,
        global_batch: int,
    ):
        self._config, self._state, self._task, self._cluster = config, state, task, cluster
        self._nominal = task.targets_per_record * global_batch
        self._statistics = norms.statistics(state.module)

    def take(self, batch: Batch, notes: Notes) -> Step:
        """Train on this rank's batch, together with the other ranks."""
        scale = self._state.loss_scale
        factor = scale.scale / self._nominal if scale else 1.0
        statistics = [one.clone() for one in self._statistics] if scale else []
        loss = self._accumulate(batch.to(self._cluster.device), factor)
        step = self._share(loss, batch, notes)
        if step.finite:
            step = self._update(step, factor)
        elif scale is None:
            what = "gradients" if math.isfinite(step.loss) else "loss"
            bad = step.norm if what == "gradients" else step.loss
            step = replace(step, fault=f"the {what} became {bad}")
        else:
            for one, before in zip(self._statistics, statistics, strict=True):
                one.copy_(before)
            step = replace(step, skipped=True)
        self._state.optimizer.zero_grad()
        return step if scale is None else self._rescale(scale, step)

    def _accumulate(self, batch: Batch, factor: float) -> Tensor:
        """Add the gradients of the summed loss, times `factor`; return that sum, float64.

        The ranks exchange gradients once, in the last micro-batch; they may have several each.
        """
        device = self._cluster.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        parts = batch.split(self._config.accumulation)
        for i, part in enumerate(parts, 1):
            with self._apart(i < len(parts)):
                with precision.autocast(self._state.number_format, device):
                    loss = self._task.loss(self._state.model, part)
                (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _apart(self, apart: bool) -> AbstractContextManager[object]:
        """Return a context in which the ranks keep their gradients to themselves."""
        if apart and isinstance(self._state.model, DistributedDataParallel):
            return self._state.model.no_sync()
        return nullcontext()

    def _share(self, loss: Tensor, batch: Batch, notes: Notes) -> Step:
        """Sum up the ranks' rows by one collective; the one moment a step waits for a GPU.

        The ranks' gradients are equal by then, and so are their norms; the first one's is taken,
        unless that of any is not finite.
        """
        norm = optim.gradient_norm(self._state.module.parameters())
        facts = [batch.targets, batch.samples, batch.volume, *astuple(notes)]
        plain = torch.tensor(facts, dtype=torch.float64, device=loss.device)
        row = torch.cat([torch.stack([norm.double(), loss]), plain])
        table, ids = self._cluster.exchange(row, batch.sample)
        table = table.cpu()
        found, orders = table[:, 0], table[:, -1]
        if not (orders == orders[0]).all():
            raise ConfigError(
                "the ranks do not read the same records",
                hint="Give all of them one config, one policy and one version of the dataset",
            )
        loss_sum, targets, samples, volume = table[:, 1:5].sum(0).tolist()
        stop, late, waited = table[:, 5:8].amax(0).tolist()
        return Step(
            loss=loss_sum,
            targets=targets,
            samples=samples,
            volume=volume,
            stop=int(stop),
            late=bool(late),
            waited=waited,
            norm=found[found.isfinite().int().argmin()].item(),
            ids=ids,
            rate=self._state.optimizer.param_groups[0]["lr"],
        )

    def _update(self, step: Step, factor: float) -> Step:
        """Make the gradients those of the mean loss over all targets, clip, and step.

        The ranks' gradients of summed losses arrive averaged, hence the world size.
        """
        state = self._state
        scale = self._cluster.world_size / max(1.0, step.targets) / factor
        parameters = state.module.parameters()
        norm = optim.scale_and_clip(parameters, step.norm, scale, self._config.clip)
        state.optimizer.step()
        state.schedule.step()
        return replace(step, norm=norm)

    def _rescale(self, scale: precision.LossScale, step: Step) -> Step:
        """Fit the loss scale to a step; it is at fault if too many overflowed in a row."""
        scale.update(not step.skipped)
        if scale.skipped < self._config.max_skips:
            return step
        return replace(step, fault=f"{scale.skipped} steps in a row overflowed fp16")
