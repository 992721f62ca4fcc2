"""Loss on the held-out split, with exact denominators."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from train import data, models, precision
from train.parallel import Cluster


class Evaluation:
    """Evaluates on all ranks, each time over the same records."""

    def __init__(self, feed: data.Feed, cluster: Cluster, number_format: str, steps: int | None):
        self._feed, self._cluster, self._format = feed, cluster, number_format
        self._steps = steps
        self._start = feed.state()

    def run(self, model: nn.Module, stopping: Callable[[], int]) -> dict[str, Any] | int:
        """Return the record of an evaluation, or the exit code of a notice that cut it short.

        The record holds loss (nats a token), bits_per_byte (where tokens are bytes: all the bits
        of the text, ends of records included, over its bytes), tokens, samples and seconds.
        """
        began = time.perf_counter()
        self._feed.restore(self._start)
        totals = torch.zeros(4, dtype=torch.float64, device=self._cluster.device)
        model.eval()
        try:
            with closing(self._feed.epoch_batches()) as batches:
                for batch in islice(batches, self._steps):
                    *sums, code = self._batch(model, batch, stopping()).tolist()
                    if code:
                        return int(code)
                    totals += torch.tensor(sums, dtype=torch.float64, device=totals.device)
        finally:
            model.train()
        return self._record(totals.tolist(), time.perf_counter() - began)

    @torch.inference_mode()
    def _batch(self, model: nn.Module, batch: data.Batch, code: int) -> Tensor:
        """Return [nll, targets, bytes, samples, exit code] over all ranks."""
        device = self._cluster.device
        here = batch.to(device)
        with precision.autocast(self._format, device):
            loss = models.token_loss(model, here.tokens, here.labels)
        following = here.labels[:, 1:]
        n_bytes = ((following >= 0) & (following < data.BYTE_VALUES)).sum()
        counts = torch.tensor([batch.samples, code], dtype=torch.float64, device=device)
        sums = torch.stack([loss.double(), models.targets(here.labels).double(), n_bytes.double()])
        return self._cluster.sum(torch.cat([sums, counts]))

    def _record(self, totals: list[float], seconds: float) -> dict[str, Any]:
        nll, tokens, n_bytes, samples = totals
        bits = nll / math.log(2) / max(1.0, n_bytes)
        return {
            "loss": nll / max(1.0, tokens),
            **({"bits_per_byte": bits} if self._feed.tokens_are_bytes else {}),
            "tokens": int(tokens),
            "samples": int(samples),
            "seconds": seconds,
        }
