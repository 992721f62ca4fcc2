"""Checkpoints: damaged ones are passed over, leftovers go, generators come back."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from train.checkpoint import Checkpoints, NewerCheckpoint, restore_rng, rng_state, seed_rng

CPU = torch.device("cpu")


def save(checkpoints: Checkpoints, step: int) -> None:
    parts = {"model.pt": {"w": torch.full((3,), float(step))}, "loader.json": {"slot": step}}
    checkpoints.save(parts, step=step, epoch=0, world_size=1)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints", keep=2)
    made.clean()
    return made


def test_the_newest_is_loaded_and_older_ones_are_pruned(checkpoints):
    for step in (5, 10, 100):
        save(checkpoints, step)
    assert names(checkpoints) == ["step-00000010", "step-00000100"]
    found = checkpoints.latest(pytest.fail)
    assert (found.step, found.load("loader.json")) == (100, {"slot": 100})
    assert torch.equal(found.load("model.pt")["w"], torch.full((3,), 100.0))


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "no state", "bad state"])
def test_a_damaged_one_is_set_aside_for_the_one_before(checkpoints, damage):
    save(checkpoints, 1)
    save(checkpoints, 2)
    file = checkpoints.path(2) / "model.pt"
    data = file.read_bytes()
    state = checkpoints.path(2) / "state.json"
    if damage == "flip":
        file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif damage == "cut":
        file.write_bytes(data[:-1])
    elif damage == "missing":
        file.unlink()
    elif damage == "no state":
        state.unlink()
    else:
        state.write_text("{}")
    told = []
    assert checkpoints.latest(told.append).step == 1
    assert len(told) == 1
    assert "step-00000002 is damaged" in told[0]
    assert names(checkpoints) == ["bad-step-00000002", "step-00000001"]
    save(checkpoints, 2)
    assert checkpoints.latest(pytest.fail).step == 2


def test_a_newer_format_is_refused_and_left_alone(checkpoints):
    save(checkpoints, 1)
    state = checkpoints.path(1) / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"format_version": 99}))
    with pytest.raises(NewerCheckpoint, match="format 99"):
        checkpoints.latest(pytest.fail)
    assert names(checkpoints) == ["step-00000001"]


def test_leftovers_of_killed_saves_are_removed(checkpoints):
    save(checkpoints, 1)
    for name in (".step-00000002.tmp", ".step-00000000.old"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.pt").write_bytes(b"half")
    checkpoints.clean()
    assert names(checkpoints) == ["step-00000001"]


def test_generators_come_back_from_plain_types(tmp_path):
    seed_rng(1, 2, 3)
    torch.save(rng_state(CPU), tmp_path / "rng.pt")
    expected = (torch.rand(4), random.random(), np.random.rand(4), np.random.standard_normal())
    seed_rng(4, 5, 6)
    restore_rng(torch.load(tmp_path / "rng.pt", weights_only=True), CPU)
    assert torch.equal(torch.rand(4), expected[0])
    assert random.random() == expected[1]
    assert np.array_equal(np.random.rand(4), expected[2])
    assert np.random.standard_normal() == expected[3]


def test_ranks_and_steps_have_generators_of_their_own():
    drawn = set()
    for arguments in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)):
        seed_rng(*arguments)
        drawn.add((torch.rand(()).item(), random.random(), np.random.rand()))
    assert len({t for t, _, _ in drawn}) == len({n for _, _, n in drawn}) == 4
