"""Runs the trainer in forked children that are killed, and compares what the next run makes of it.

    python nursery.py CONFIG POINTS [OVERRIDE…]     POINTS: "n/of" every of-th point from the n-th
    python nursery.py CONFIG random:COUNT [OVERRIDE…]

Importing torch once and forking makes a run cost a fraction of a second. This process itself runs
no tensor operation before a fork and uses one thread. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: F401

import train.trainer  # noqa: F401
from train import durable
from train.__main__ import main

COMPARED = ("kind", "step", "loss", "sample_digest", "samples", "tokens", "epoch", "grad_norm")


def run(arguments: list[str], kill_at: int = 0, kill_after: float = 0.0) -> tuple[int, int]:
    """Run the command line in a child; return its wait status and how many points it passed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(arguments, kill_at, kill_after, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        count = len(pipe.read())
    return os.waitpid(pid, 0)[1], count


def child(arguments: list[str], kill_at: int, kill_after: float, pipe: int) -> None:
    def hook(_name: str) -> None:
        nonlocal kill_at
        os.write(pipe, b".")
        kill_at -= 1
        if kill_at == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    durable.on_point = hook
    if kill_after:
        threading.Timer(kill_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        main(arguments)
    except SystemExit as stop:
        os._exit(int(stop.code or 0))
    finally:
        os._exit(99)


def fate(folder: Path) -> dict:
    """Return what must not depend on kills: the metrics, and the last checkpoint's tensors."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [{key: json.loads(line).get(key) for key in COMPARED} for line in lines]
    checkpoints = folder / "checkpoints"
    names = sorted(path.name for path in checkpoints.iterdir())
    last = checkpoints / names[-1]
    model = torch.load(last / "model.pt", weights_only=True)
    rng = torch.load(last / "rng.pt", weights_only=True)[0]["torch"]
    return {"metrics": metrics, "names": names, "model": model, "rng": rng}


def same(one: dict, other: dict) -> bool:
    tensors = all(torch.equal(one["model"][k], other["model"][k]) for k in other["model"])
    plain = all(one[key] == other[key] for key in ("metrics", "names"))
    return plain and tensors and torch.equal(one["rng"], other["rng"])


def rehearse(config: str, plan: str, overrides: list[str]) -> dict:
    base = Path(config).parent / "runs"

    def arguments(name: str) -> list[str]:
        return [config, *overrides, f"train.run_dir={base / name}"]

    began = time.monotonic()
    status, points = run(arguments("whole"))
    seconds = time.monotonic() - began
    assert status == 0, status
    if plan.startswith("random:"):
        rng = random.Random(plan)
        kills = [{"kill_after": rng.uniform(0.02, seconds)} for _ in range(int(plan[7:]))]
    else:
        first, of = (int(x) for x in plan.split("/"))
        kills = [{"kill_at": at} for at in range(first, points + 1, of)]
    whole = fate(base / "whole")
    killed, different = 0, []
    for number, kill in enumerate(kills):
        name = f"kill-{number}"
        status, _ = run(arguments(name), **kill)
        killed += os.WIFSIGNALED(status)
        again, _ = run(arguments(name))
        if again != 0 or not same(fate(base / name), whole):
            different.append(kill)
        shutil.rmtree(base / name)
    return {"points": points, "runs": len(kills), "killed": killed, "different": different}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(rehearse(sys.argv[1], sys.argv[2], sys.argv[3:])))
