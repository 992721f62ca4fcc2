"""A small real dataset, and a way to run the trainer on it in this process or in others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import geodata
import train
from geodata.config import load_config

ROOT = Path(train.__file__).parents[1]

WORDS = "harbour copper lantern meadow thistle orbit velvet saffron ledger quartz ember willow"

CONFIG = {
    "here": "eu-central",
    "regions": {
        "eu-central": {"jurisdiction": "DE", "cache": {"nvme": "cache", "size": "64MiB"}},
        "us-east": {"jurisdiction": "US"},
    },
    "tagging": {
        "region": {
            "field": "country",
            "map": {"eu-central": ["DE", "FR"], "us-east": ["US"]},
        },
        "unknown": "eu-central",
        "rules": [
            {"when": {"field": "letter", "equals": True}, "tag": {"data_category": "PersonalData"}},
            {"when": {"region": "known"}, "tag": {"data_category": "NonPersonalData"}},
        ],
    },
    "loader": {"global_batch": 24, "seed": 7, "text": {"length": 48}},
}

TINY = {
    "n_layer": 1,
    "n_embd": 16,
    "n_head": 2,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}

TRAIN = {
    "steps": 12,
    "device": "cpu",
    "model": {"config": TINY},
    "optimizer": {"lr": 0.01},
    "schedule": {"warmup_steps": 3},
}

RECORDS = 129
"""Of these eu-central may read 121: in the sixth step of an epoch all lanes but one are empty."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a sharded dataset of short texts in two regions."""
    folder = tmp_path_factory.mktemp("dataset")
    words = WORDS.split()
    with (folder / "posts.jsonl").open("w") as file:
        for i in range(RECORDS):
            chosen = [words[(i * k + k) % len(words)] for k in range(1, 2 + i % 9)]
            country = ("DE", "US", "FR")[i % 3]
            record = {"text": " ".join(chosen), "country": country, "letter": i % 5 == 0}
            file.write(json.dumps(record) + "\n")
    geodata.convert(folder / "posts.jsonl", folder / "raw", workers=1)
    path = folder / "geodata.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"dataset": {"name": "posts", "root": "posts"}}))
    geodata.shard(str(folder / "raw"), config=load_config(path), workers=1)
    return folder / "posts"


@dataclass
class Project:
    """A folder with a config; every run is made by the real command line."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "geodata.yaml"

    def command(self, *arguments: str) -> list[str]:
        """Return the command of a run in processes of its own."""
        return [sys.executable, "-m", "train", str(self.config), *arguments]

    def environment(self) -> dict[str, str]:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
        }

    def spawn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end in processes of its own."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command without waiting for it."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> int:
        """Run the command in this process; return its exit code."""
        from train.__main__ import main

        with pytest.raises(SystemExit) as stop:
            main([str(self.config), *arguments])
        return int(stop.value.code or 0)

    def metrics(self, run: str = "posts", kind: str | None = None) -> list[dict]:
        """Return the lines of a run's metrics."""
        lines = (self.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [record for record in records if kind in (None, record["kind"])]

    def checkpoints(self, run: str = "posts") -> list[str]:
        """Return the names below a run's checkpoint folder, hidden ones too."""
        folder = self.folder / "runs" / run / "checkpoints"
        return sorted(path.name for path in folder.iterdir())

    def assert_same(self, run: str, other: str, tolerance: float = 0.0) -> None:
        """Compare two runs' metrics: same lines, ids and counts; losses within `tolerance`."""
        found, expected = self.metrics(run), self.metrics(other)
        assert [(r["kind"], r["step"]) for r in found] == [(r["kind"], r["step"]) for r in expected]
        for one, two in zip(found, expected, strict=True):
            assert one["loss"] == pytest.approx(two["loss"], abs=tolerance, rel=0), one["step"]
            for key in ("sample_digest", "samples", "tokens", "epoch", "learning_rate"):
                assert one.get(key) == two.get(key), (key, one["step"])


@pytest.fixture
def project(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a project over the dataset; what a run changes in this process is put back."""
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    config = CONFIG | {"dataset": {"name": "posts", "root": str(dataset)}, "train": TRAIN}
    made = Project(tmp_path)
    made.config.write_text(yaml.safe_dump(config))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield made
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
