"""Be one rank under torchrun, make some runs, and count what they do.

    torchrun … watched_rank.py FOLDER CONFIG [OVERRIDE…] [-- CONFIG [OVERRIDE…]]…

With "overflow:N" among the overrides, rank 1's N-th forward pass gives logits so large that its
gradients overflow.

Writes FOLDER/RANK.json, an object for each run: forward passes in training, gradient reductions,
gatherings of numbers, digests of the model's parameters and buffers at the end, and of its buffers
after the last forward pass in training: the statistics that only this rank has seen.
"""

import hashlib
import itertools
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from train import parallel
from train.__main__ import main
from train.parallel import Cluster

wrap_model, gather, begin = Cluster.wrap, dist.all_gather, dist.init_process_group
overflow_at = 0
runs: list[dict] = []
models: list[DistributedDataParallel] = []


def wrap(cluster, model):
    made = wrap_model(cluster, model)
    made.register_comm_hook(None, reduce)
    made.register_forward_hook(passed)
    models.append(made)
    runs.append({"forwards": 0, "reductions": 0, "gathers": 0})
    return made


def reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    runs[-1]["reductions"] += bucket.is_last()
    return allreduce_hook(None, bucket)


def passed(model, _inputs, output):
    runs[-1]["forwards"] += 1
    runs[-1]["statistics"] = digest(model.buffers())
    if dist.get_rank() == 1 and runs[-1]["forwards"] == overflow_at:
        output.logits = output.logits * 1e30


def init_process_group(*arguments, **options):
    """Keep the group of the run before: torchrun's store is of one group."""
    if not dist.is_initialized():
        begin(*arguments, **options)


def all_gather(*arguments):
    runs[-1]["gathers"] += 1
    return gather(*arguments)


def digest(tensors) -> str:
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


def leave(code):
    runs[-1]["parameters"] = digest(models[-1].parameters())
    runs[-1]["buffers"] = digest(models[-1].buffers())
    sys.exit(code)


if __name__ == "__main__":
    end = parallel.leave
    Cluster.wrap, dist.all_gather, parallel.leave = wrap, all_gather, leave
    dist.init_process_group = init_process_group
    folder, *words = sys.argv[1:]
    for apart, arguments in itertools.groupby(words, lambda word: word == "--"):
        if not apart:
            given = list(arguments)
            overflow_at = sum(int(word[9:]) for word in given if word.startswith("overflow:"))
            try:
                main([word for word in given if not word.startswith("overflow:")])
            except SystemExit as stop:
                if stop.code:
                    end(stop.code)
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(runs))
    end(0)
