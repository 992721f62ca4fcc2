"""The processes of a run: their ranks and devices, data-parallel wrapping, and what they share.

The only file of the trainer, beside the command line, that reads the environment (torchrun's).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from train.remote import ConfigError


@dataclass(frozen=True, slots=True)
class Cluster:
    """This process among all of the run."""

    rank: int
    world_size: int
    device: torch.device
    parent: int
    """Process id of the torchrun agent; 0 in a run of one process."""

    @property
    def first(self) -> bool:
        """Return whether this process speaks and writes for all."""
        return self.rank == 0

    def orphaned(self) -> bool:
        """Return whether the agent that started this process is gone."""
        return self.parent != 0 and os.getppid() != self.parent

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model on its device; its gradients are averaged over the processes."""
        model = model.to(self.device)
        if self.world_size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the first one's buffers: the running statistics of normalisation.

        In training the wrapped model does so before the forward pass of each step.
        """
        if self.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of a tensor over the processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def exchange(self, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return every rank's numbers and sample ids, by one collective.

        `values` is float64 [n] on the device, `ids` int64 [b], b being the same on every rank.
        Returns float64 [world, n] and int64 [world, b].
        """
        if self.world_size == 1:
            return values[None], ids[None]
        row = torch.cat([values.view(torch.int64), ids.to(self.device)])
        rows = [torch.empty_like(row) for _ in range(self.world_size)]
        dist.all_gather(rows, row)
        table, n = torch.stack(rows), len(values)
        return table[:, :n].contiguous().view(torch.float64), table[:, n:]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's plain value on the first rank, an empty list elsewhere."""
        if self.world_size == 1:
            return [value]
        values = [None] * self.world_size if self.first else None
        dist.gather_object(value, values)
        return values or []

    def agree(self, value: Any) -> Any:
        """Return the first rank's plain value on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, device=self.device)
        return box[0]

    def settle(self) -> None:
        """Wait until every process has come this far."""
        if self.world_size > 1:
            dist.barrier()


def join(device: str, timeout: float) -> Cluster:
    """Take this process's place: torchrun's if it started us, else the only one.

    `timeout` bounds every collective, in seconds.
    """
    world_size = _number("WORLD_SIZE", 1)
    local_rank, local_size = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)
    chosen = _device(device, local_rank, local_size)
    parent = os.getppid() if under_torchrun() else 0
    if chosen.type == "cpu":
        _use_threads(local_size)
    if world_size > 1:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        bound = chosen if chosen.type == "cuda" else None
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), device_id=bound)
    return Cluster(rank(), world_size, chosen, parent)


def rank() -> int:
    """Return this process's rank, known before it joins."""
    return _number("RANK", 0)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _device(wanted: str, local_rank: int, local_size: int) -> torch.device:
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not found):
        return torch.device("cpu")
    if local_size > found:
        raise ConfigError(
            f"this machine has {found} GPUs and is to run processes on {local_size}",
            hint="Start at most one process a GPU, or set train.device to cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _use_threads(processes: int) -> None:
    """Give each process of this machine its share of the cores, and make results repeatable."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def under_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def error_file() -> Path | None:
    """Return the file in which torchrun looks for this worker's error, if it started us."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(name) if name else None


def prepare_agent(processes: int) -> None:
    """Set what torchrun and its workers need in this process's environment.

    The workers do not search the working directory, so a file of the user's called train.py
    cannot take our place; a checkout that is not installed is put on their path instead.
    """
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    root = Path(__file__).absolute().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def leave(code: int) -> NoReturn:
    """End a worker at once, without running destructors.

    The reducer's may wait, holding the interpreter's lock, for a thread that wants that lock.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def prepared_agent() -> bool:
    """Return whether the agent above us has the setting that elastic restarts need."""
    return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"


def is_lost_peer(error: Exception) -> bool:
    """Return whether a collective failed because another process is gone or too late."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )
