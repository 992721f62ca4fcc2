"""Small real datasets, and a way to run the trainer on them in this process or in others."""

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
from PIL import Image
from sklearn.datasets import load_digits

import geodata
import train
from geodata.config import load_config

ROOT = Path(train.__file__).parents[1]

WATCHED = Path(__file__).with_name("watched_rank.py")

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

TINY_BERT = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
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


PICTURES = {
    "here": "eu-central",
    "regions": {"eu-central": {"jurisdiction": "DE"}},
    "tagging": {
        "region": {"constant": "eu-central"},
        "rules": [{"when": {"region": "known"}, "tag": {"data_category": "NonPersonalData"}}],
    },
    "loader": {"global_batch": 24, "seed": 7, "image": {"size": 16}},
}

TINY_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}

SEVENS = 40
"""So many of the sevens are kept, that the classes be of several sizes."""


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a sharded dataset of scikit-learn's handwritten digits, 8 × 8 pixels."""
    folder = tmp_path_factory.mktemp("digits")
    found = load_digits()
    count = dict.fromkeys(range(10), 0)
    for image, digit in zip(found.images, found.target.tolist(), strict=True):
        count[digit] += 1
        if digit == 7 and count[digit] > SEVENS:
            continue
        path = folder / "raw" / f"{digit}" / f"{count[digit]:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype("uint8")).save(path)
    geodata.convert(folder / "raw", folder / "staged", workers=1)
    path = folder / "geodata.yaml"
    path.write_text(yaml.safe_dump(PICTURES | {"dataset": {"name": "digits", "root": "digits"}}))
    geodata.shard(str(folder / "staged"), config=load_config(path), workers=1)
    return folder / "digits"


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
        """Return the environment of a run in processes of its own."""
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

    def watch(self, *runs: list[str], processes: int = 2) -> list[tuple[dict, ...]]:
        """Make runs of several processes, one after the other; return what their ranks counted."""
        words = [word for run in runs for word in (*run, "--")]
        script = [
            "--standalone",
            "--nproc-per-node",
            f"{processes}",
            str(WATCHED),
            str(self.folder),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *script, *words],
            env=self.environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        files = [self.folder / f"{rank}.json" for rank in range(processes)]
        return list(zip(*(json.loads(file.read_text()) for file in files), strict=True))

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
def process(monkeypatch: pytest.MonkeyPatch):
    """Put back what a run changes in this process."""
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def project(dataset: Path, tmp_path: Path, process: None) -> Project:
    """Return a project that trains a GPT-2 on the texts."""
    config = CONFIG | {"dataset": {"name": "posts", "root": str(dataset)}, "train": TRAIN}
    return made(tmp_path, config)


@pytest.fixture
def masked(dataset: Path, tmp_path: Path, process: None) -> Project:
    """Return a project that trains a BERT on the texts."""
    loader = {**CONFIG["loader"], "text": {"length": 48, "masked": 0.3}}
    train = TRAIN | {"model": {"kind": "bert", "config": TINY_BERT}}
    config = CONFIG | {"dataset": {"name": "posts", "root": str(dataset)}}
    return made(tmp_path / "masked", config | {"loader": loader, "train": train})


@pytest.fixture
def pictures(digits: Path, tmp_path: Path, process: None) -> Project:
    """Return a project that trains a ResNet on the digits."""
    train = TRAIN | {"model": {"kind": "resnet", "config": TINY_RESNET, "norm": "group"}}
    config = PICTURES | {"dataset": {"name": "digits", "root": str(digits)}, "train": train}
    return made(tmp_path / "pictures", config)


def made(folder: Path, config: dict) -> Project:
    folder.mkdir(exist_ok=True)
    project = Project(folder)
    project.config.write_text(yaml.safe_dump(config))
    return project
