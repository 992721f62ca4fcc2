"""Killed at any moment, a run started again ends as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NURSERY = Path(__file__).with_name("nursery.py")

SMALL = (
    "train.steps=4",
    "train.checkpoint={every: 2, keep: 1}",
    "loader.split={heldout: 0.2}",
    "train.eval={every: 2, steps: 1}",
    "train.model.config.resid_pdrop=0.1",
)


def rehearse(project, plan: str) -> dict:
    """Kill runs by the plan; return the nursery's account."""
    command = [sys.executable, str(NURSERY), str(project.config), plan, *SMALL]
    done = subprocess.run(
        command, env=project.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", [1, 2])
def test_killed_at_every_point(project, part):
    found = rehearse(project, f"{part}/2")
    assert found["points"] > 80
    assert found["killed"] == found["runs"] >= found["points"] // 2
    assert found["different"] == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_soak_killed_at_fifty_random_moments(project):
    found = rehearse(project, "random:50")
    assert found["runs"] == 50
    assert found["killed"] >= 40
    assert found["different"] == []
