"""Evaluation on the held-out split, with exact denominators."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from train import data, precision
from train.parallel import Cluster
from train.tasks import Batch, Task


class Evaluation:
    """Evaluates on all ranks, each time over the same records."""

    def __init__(
        self,
        feed: data.Feed,
        task: Task,
        cluster: Cluster,
        number_format: str,
        steps: int | None,
    ):
        self._feed, self._task, self._cluster = feed, task, cluster
        self._format, self._steps = number_format, steps
        self._start = feed.state()

    def run(self, model: nn.Module, stopping: Callable[[], int]) -> dict[str, Any] | int:
        """Return the record of an evaluation, or the exit code of a notice that cut it short.

        The record holds what the task reports, samples and seconds. Every rank evaluates the
        first one's buffers.
        """
        began = time.perf_counter()
        self._feed.restore(self._start)
        self._cluster.share_buffers(model)
        totals: Tensor | None = None
        model.eval()
        try:
            with closing(self._feed.epoch_batches()) as batches:
                for raw in islice(batches, self._steps):
                    found = self._batch(model, self._task.batch(raw), stopping())
                    totals = found if totals is None else totals + found
                    if code := int(found[-self._cluster.world_size :].amax()):
                        return code
        finally:
            model.train()
        assert totals is not None
        *sums, samples = totals[: -self._cluster.world_size].tolist()
        seconds = time.perf_counter() - began
        return {**self._task.report(sums), "samples": int(samples), "seconds": seconds}

    @torch.inference_mode()
    def _batch(self, model: nn.Module, batch: Batch, code: int) -> Tensor:
        """Return over all ranks what the task counts, then samples, then each one's exit code."""
        device, rank = self._cluster.device, self._cluster.rank
        with precision.autocast(self._format, device):
            tally = self._task.tally(model, batch.to(device))
        codes = [code if one == rank else 0 for one in range(self._cluster.world_size)]
        counts = torch.tensor([batch.samples, *codes], dtype=torch.float64, device=device)
        return self._cluster.sum(torch.cat([tally, counts]))
