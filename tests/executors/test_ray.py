"""Tasks on a Ray cluster: the same results whatever is lost on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from posts import make_posts

pytest.importorskip("ray")


@pytest.mark.timeout(240)
def test_lost_workers_and_nodes_change_nothing(tmp_path):
    make_posts(tmp_path / "posts.jsonl", count=300, seed=3)
    script = Path(__file__).with_name("cluster_run.py")
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["workers"] == 2
    assert told["dying"] == [0, 1, 4, 9, 16, 25]
    assert told["passing"] == [0, 1, 4, 9]
    assert told["wrong"]["error"] == "SchemaError" and told["wrong"]["row"] == 7
    assert told["node lost"] == [n * n for n in range(10)]
    assert told["shards"] > 2 and told["equal"]


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    make_posts(tmp_path / "posts.jsonl", count=5, seed=3)
    command = "convert posts.jsonl raw --executor ray --ray-address 127.0.0.1:1 --json".split()
    run = subprocess.run(
        [sys.executable, "-m", "geodata.cli", *command],
        cwd=tmp_path,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 4, run.stderr[-3000:]
    assert json.loads(run.stdout)["message"].startswith("no Ray cluster at 127.0.0.1:1")


def test_an_address_is_for_ray_alone(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "geodata.cli", "convert", "x", "y", "--ray-address", "auto"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, "--executor ray" in run.stderr) == (2, True)
