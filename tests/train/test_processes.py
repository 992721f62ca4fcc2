"""Several processes under torchrun: same ids, same losses, signals, and lost ranks."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from train import durable

HELD_OUT = ("loader.split={heldout: 0.2}", "train.eval.every=10")
LONG = (*HELD_OUT, "train.steps=300")


def wait_for_step(project, step: int, run: str = "posts") -> None:
    """Return once the run's metrics hold `step`."""
    path = project.folder / "runs" / run / "metrics.jsonl"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {step} in time")


def workers_of(pid: int) -> list[int]:
    """Return the process ids of a launcher's workers, in the order of their ranks."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        pytest.skip("needs /proc")
    children = [c for t in tasks.iterdir() for c in (t / "children").read_text().split()]
    return sorted(int(child) for child in children)


def test_any_number_of_processes_trains_the_same_model(project):
    assert project.run("train.run_dir=runs/1") == 0
    for count in (2, 3, 4):
        done = project.spawn(f"train.run_dir=runs/{count}", "--nproc", str(count))
        assert done.returncode == 0, done.stderr
        project.assert_same(str(count), "1", tolerance=1e-4)
    sixth = project.metrics("4")[5]
    assert (sixth["samples"], sixth["epoch"]) == (1, 0)


def test_a_stopped_run_goes_on_with_another_number_of_processes(project):
    assert project.run(*LONG, "train.run_dir=runs/whole") == 0
    run = project.start(*LONG, "--nproc", "3", "train.accumulation=2")
    wait_for_step(project, 5)
    run.send_signal(signal.SIGTERM)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 75, told
    reached = project.metrics(kind="train")[-1]["step"]
    assert f"checkpoint {reached} written; continue with the same command" in told
    assert project.checkpoints() == [f"step-{reached:08}"]
    assert reached < 300

    run = project.start(*LONG, "--nproc", "2", "--json")
    wait_for_step(project, reached + 5)
    run.send_signal(signal.SIGINT)
    shown, told = run.communicate(timeout=120)
    assert run.returncode == 130, told
    assert json.loads(shown)["resumed_from"] == reached

    assert project.run(*LONG) == 0
    project.assert_same("posts", "whole", tolerance=1e-4)


def test_one_process_stops_on_notice(project):
    run = project.start(*LONG)
    wait_for_step(project, 3)
    run.send_signal(signal.SIGTERM)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 75, told
    assert "Traceback" not in told
    assert project.checkpoints()


def test_a_killed_rank_is_named_and_the_run_resumes(project):
    run = project.start(*LONG, "--nproc", "2", "train.checkpoint.every=4")
    wait_for_step(project, 6)
    os.kill(workers_of(run.pid)[1], signal.SIGKILL)
    _, told = run.communicate(timeout=120)
    assert run.returncode == 4, told
    assert "rank 1 was killed by SIGKILL" in told
    assert "Traceback" not in told
    assert project.run(*LONG) == 0
    assert [record["step"] for record in project.metrics(kind="train")] == list(range(1, 301))


def test_workers_save_when_their_launcher_is_gone(project):
    run = project.start(*LONG, "--nproc", "2")
    wait_for_step(project, 5)
    run.kill()
    run.communicate(timeout=60)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with durable.held(project.folder / "runs/posts/.lock") as free:
            if free:
                break
        time.sleep(0.1)
    reached = project.metrics(kind="train")[-1]["step"]
    assert 5 <= reached < 300
    assert project.checkpoints() == [f"step-{reached:08}"]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["train.lr=1"], 2, "train.lr: no such key"),
        (["--region", "mars"], 2, "'mars' is not one of the regions"),
        (["loader.lanes=2", "--nproc", "3"], 2, "2 lanes cannot serve 3 ranks"),
        (["train.optimizer.lr=1e30"], 1, "at step"),
    ],
)
def test_a_mistake_is_one_line(project, arguments, code, line):
    done = project.spawn("--nproc", "2", *arguments)
    assert done.returncode == code, done.stderr
    errors = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert line in errors[0]
    assert "Traceback" not in done.stderr
