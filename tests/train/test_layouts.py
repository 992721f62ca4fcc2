"""Images and masked text train the same model on any number of processes and micro-batches.

The last step of an epoch has one record: in it all ranks but one run a row of padding.
"""

from __future__ import annotations

import json
import shutil

import pytest

FEW = ("loader.split={heldout: 0.9}", "train.eval={every: 6, steps: 3}")
"""169 images are left to train on: 7 steps of 24, and one of a single image."""


@pytest.fixture
def cases(pictures, masked):
    """Return projects and options by the name of what is trained."""
    norms = {n: (pictures, (*FEW, f"train.model.norm={n}")) for n in ("group", "frozen")}
    return {**norms, "bert": (masked, ("loader.split={heldout: 0.1}", *FEW[1:]))}


def test_any_layout_trains_the_same_model(cases, pictures):
    """Train in one process, one with micro-batches, three and four with such, two stopped."""
    three = "train.accumulation=3"
    for name, (project, options) in cases.items():
        assert project.run(*options, f"train.run_dir=runs/{name}-1") == 0
        assert project.run(*options, f"train.run_dir=runs/{name}-1x3", three) == 0
    for count, extra in ((2, "train.checkpoint={every: 5, keep: 9}"), (3, three), (4, three)):
        runs = [
            [str(project.config), *options, f"train.run_dir=runs/{name}-{count}", extra]
            for name, (project, options) in cases.items()
        ]
        pictures.watch(*runs, processes=count)
    for name, (project, options) in cases.items():
        for layout in ("1x3", "2", "3", "4"):
            assert_close(project, f"{name}-{layout}", f"{name}-1")
        go_back_to_five(project, f"{name}-2", options)
        assert_close(project, f"{name}-2", f"{name}-1")
    lonely = pictures.metrics("group-3", kind="train")[7]
    assert (lonely["samples"], lonely["targets"], lonely["epoch"]) == (1, 1, 0)


def go_back_to_five(project, run: str, options: tuple[str, ...]) -> None:
    """Go on in this process from step 5 of a run of two."""
    folder = project.folder / "runs" / run
    for step in (10, 12):
        shutil.rmtree(folder / "checkpoints" / f"step-{step:08}")
    assert project.run(*options, f"train.run_dir=runs/{run}") == 0
    assert json.loads((folder / "summary.json").read_text())["resumed_from"] == 5


def assert_close(project, run: str, expected: str) -> None:
    """Compare two runs: same ids; losses, norms and measures within 1e-4."""
    project.assert_same(run, expected, tolerance=1e-4)
    for one, other in zip(project.metrics(run), project.metrics(expected), strict=True):
        for key in {"loss", "grad_norm", "targets", "accuracy", "predicted", "images"} & {*other}:
            assert one[key] == pytest.approx(other[key], rel=1e-4), (key, one["step"])


def test_a_step_of_four_micro_batches_reduces_once(project, masked, pictures):
    few = ("train.accumulation=4", "train.steps=5")
    runs = [[str(one.config), *few] for one in (project, masked, pictures)]
    batch = (*FEW, "train.model.norm=batch", "train.run_dir=runs/batch")
    found = project.watch(*runs, [str(pictures.config), *batch])
    for one, other in found[:3]:
        assert one["forwards"] == other["forwards"] == 5 * 4
        assert one["reductions"] == other["reductions"] == 5
        assert one["gathers"] == other["gathers"] == 5
        assert one["parameters"] == other["parameters"]
    check_statistics(pictures, *found[3], batch)


def check_statistics(pictures, one: dict, other: dict, options: tuple[str, ...]) -> None:
    """Check that a run of two processes saved and judged the statistics of the first."""
    assert one["parameters"] == other["parameters"]
    assert one["buffers"] == other["buffers"] == one["statistics"] != other["statistics"]
    judged = pictures.metrics("batch", kind="eval")[-1]
    (pictures.folder / "runs/batch/summary.json").unlink()
    assert pictures.run(*options) == 0
    again = pictures.metrics("batch", kind="eval")[-1]
    assert again["step"] == judged["step"] == 12
    assert again["loss"] == pytest.approx(judged["loss"], rel=1e-6)
    assert again["classes"] == judged["classes"]
