"""Killed at random moments, fifty times each, the main job ends as if undisturbed.

`pytest -m soak -n 0 -s tests/soak` prints how often each was killed and how far it had come.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from posts import CONFIG, make_posts

from geodata.catalog import Catalog, locate
from geodata.config import load_config

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = 50

TRAIN = """
train:
  run_dir: runs/soak
  steps: 30
  model: {config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 64}}
  schedule: {warmup_steps: 3}
  checkpoint: {every: 4}
  eval: {every: 10}
"""


@pytest.fixture
def place(tmp_path):
    make_posts(tmp_path / "posts.jsonl", count=20_000)
    (tmp_path / "geodata.yaml").write_text(CONFIG + TRAIN)
    return tmp_path


def start(cwd, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(cwd, *arguments):
    """Run to the end undisturbed and return the seconds it took."""
    began = time.monotonic()
    child = start(cwd, *arguments)
    _out, told = child.communicate(timeout=600)
    assert child.returncode == 0, told
    return time.monotonic() - began


def kill_randomly(cwd, seconds, check, *arguments):
    """Kill at random moments until there were `KILLS` kills; `check` each finished run."""
    rng = random.Random(0)
    kills = runs = 0
    while kills < KILLS:
        child = start(cwd, *arguments)
        try:
            child.communicate(timeout=rng.uniform(0.05, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            kills += 1
            continue
        assert child.returncode == 0
        runs += 1
        check()
    finish(cwd, *arguments)
    check()
    print(
        f"\n{arguments[:2]}: {kills} kills, {runs + 1} finished runs, {seconds:.1f} s undisturbed"
    )


def lines(root, reference):
    config = load_config(root / "geodata.yaml")
    catalog = Catalog.at(locate(reference, config), "soak")
    index = catalog.index()
    return [s.to_line() for r in index.regions for s in catalog.shards(index, r)]


CONVERT = ("geodata.cli", "convert", "posts.jsonl", "data/raw", "--shard-size", "200kB")
SHARD = ("geodata.cli", "shard", "data/raw", "--shard-size", "100kB")


def test_convert(place):
    raw = place / "data/raw"
    seconds = finish(place, *CONVERT)
    expected = lines(place, str(raw))
    shutil.rmtree(raw)

    def check():
        assert lines(place, str(raw)) == expected
        shutil.rmtree(raw)

    kill_randomly(place, seconds, check, *CONVERT)


@pytest.mark.parametrize("form", ["parquet", "webdataset", "webdataset+xz"])
def test_shard(place, form):
    finish(place, *CONVERT)
    command = (*SHARD, "--format", form)
    seconds = finish(place, *command)
    expected = lines(place, "posts")
    shutil.rmtree(place / "data/posts")

    def check():
        assert lines(place, "posts") == expected
        shutil.rmtree(place / "data/posts")

    kill_randomly(place, seconds, check, *command)


@pytest.mark.parametrize("processes", [1, 2])
def test_train(place, processes):
    finish(place, *CONVERT)
    finish(place, *SHARD)
    run = place / "runs/soak"
    command = ("train", "geodata.yaml", "--nproc", str(processes))

    def outcome():
        kept = ("step", "loss", "sample_digest", "bits_per_byte")
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return [{name: record.get(name) for name in kept} for record in records]

    seconds = finish(place, *command)
    expected = outcome()
    assert len({r["sample_digest"] for r in expected}) > 25
    shutil.rmtree(run)

    def check():
        assert outcome() == expected
        shutil.rmtree(run)

    kill_randomly(place, seconds, check, *command)
