"""fp16: the loss scale, and steps that overflow."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial

import pytest
import torch
from torch import nn

from train import precision
from train.checkpoint import Checkpoints
from train.parallel import Cluster
from train.precision import LossScale, resolve
from train.remote import ConfigError

FP16 = "train.precision=fp16"


@pytest.fixture
def too_large(monkeypatch):
    """Begin at a scale with which the first steps overflow."""
    monkeypatch.setattr(precision, "LossScale", partial(LossScale, scale=2.0**24))


def load(project, step: int, name: str, run: str = "posts"):
    folder = project.folder / "runs" / run / "checkpoints"
    return Checkpoints(folder, 9).at(f"step-{step:08}").load(name)


@pytest.mark.parametrize("seed", range(5))
def test_the_scale_moves_as_torchs(monkeypatch, seed):
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 3)
    ours = LossScale()
    theirs = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=3)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    rng = random.Random(seed)
    for _ in range(40):
        finite = rng.random() < 0.75
        theirs.scale(weight.sum()).backward()
        if not finite:
            weight.grad[1] = float("inf")
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(finite)
        assert ours.scale == theirs.get_scale()
        assert ours.good == theirs._get_growth_tracker()


def test_the_scale_has_bounds(monkeypatch):
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 1)
    scale = LossScale()
    for _ in range(30):
        scale.update(True)
    assert scale.scale == 2**24
    for count in range(1, 41):
        scale.update(False)
        assert scale.skipped == count
    assert scale.scale == 1
    scale.update(True)
    assert (scale.scale, scale.skipped) == (2, 0)


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [((6, 1), "fp32"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_auto_takes_what_the_gpu_has(monkeypatch, capability, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert resolve("auto", torch.device("cuda")) == chosen
    assert resolve("fp16", torch.device("cuda")) == "fp16"
    if chosen != "bf16":
        with pytest.raises(ConfigError, match="no bf16"):
            resolve("bf16", torch.device("cuda"))
    assert resolve("auto", torch.device("cpu")) == "fp32"


@pytest.mark.parametrize("kind", ["project", "masked", "pictures"])
def test_fp16_learns_what_fp32_does(kind, request):
    project = request.getfixturevalue(kind)
    assert project.run("train.run_dir=runs/fp32") == 0
    assert project.run(FP16, "train.run_dir=runs/fp16", "train.accumulation=2") == 0
    half, full = project.metrics("fp16"), project.metrics("fp32")
    assert [record["skipped"] for record in half] == [False] * 12
    assert {record["loss_scale"] for record in half} == {65536.0}
    assert "loss_scale" not in full[0]
    assert half[0]["grad_norm"] == pytest.approx(full[0]["grad_norm"], rel=0.01)
    for one, other in zip(half, full, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.05)
        assert one["sample_digest"] == other["sample_digest"]
    assert half[-1]["loss"] < half[0]["loss"] - 0.1


def test_a_step_that_overflows_changes_the_scale_alone(project, too_large, capsys):
    every = "train.checkpoint={every: 1, keep: 20}"
    assert project.run(every, "train.run_dir=runs/fp32") == 0
    assert project.run(FP16, every) == 0
    steps, plain = project.metrics(), project.metrics("fp32")
    skips = [record["skipped"] for record in steps]
    count = skips.index(False)
    assert count >= 3
    assert [r["loss_scale"] for r in steps] == [
        2.0 ** (24 - sum(skips[: n + 1])) for n in range(12)
    ]
    assert [r["sample_digest"] for r in steps] == [r["sample_digest"] for r in plain]
    rates = [r["learning_rate"] for r in steps if not r["skipped"]]
    assert rates == [r["learning_rate"] for r in plain[: len(rates)]]
    assert all(r["grad_norm"] is None and r["loss"] is not None for r in steps if r["skipped"])
    first, last = load(project, 1, "model.pt"), load(project, count, "model.pt")
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert load(project, count, "optimizer.pt")["state"] == {}
    assert load(project, count, "scheduler.pt") == load(project, 1, "scheduler.pt")
    taken = load(project, count + 1, "model.pt")
    assert any(not torch.equal(first[name], taken[name]) for name in first)
    assert f"{sum(skips[:10])} skipped at scale" in capsys.readouterr().err


def test_statistics_of_images_do_not_see_a_skipped_step(pictures, too_large):
    every = "train.checkpoint={every: 1, keep: 20}"
    assert pictures.run(FP16, every, "train.model.norm=batch", "train.steps=3") == 0
    assert all(record["skipped"] for record in pictures.metrics("digits"))
    found = load(pictures, 3, "model.pt", "digits")
    means = {name: value for name, value in found.items() if name.endswith("running_mean")}
    counts = [value for name, value in found.items() if name.endswith("num_batches_tracked")]
    assert means
    assert not any(value.any() for value in means.values())
    assert not any(counts)


def test_too_many_in_a_row_end_the_run(project, too_large, capsys):
    assert project.run(FP16, "train.max_skips=3", "train.checkpoint.every=1") == 1
    (told,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert "3 steps in a row overflowed fp16 at step 3" in told
    assert "The last good checkpoint is" in told
    assert "step-00000002" in told
    assert [record["skipped"] for record in project.metrics()] == [True, True]
    assert project.run(FP16, "train.max_skips=3", "train.checkpoint.every=1") == 1
    assert "overflowed fp16 at step 3" in capsys.readouterr().err


@pytest.mark.parametrize("reached", [2, 9])
def test_the_scale_comes_back(project, too_large, reached):
    assert project.run(FP16, "train.run_dir=runs/whole") == 0
    assert project.run(FP16, f"train.checkpoint={{every: {reached}, keep: 9}}") == 0
    folder = project.folder / "runs/posts/checkpoints"
    for path in sorted(folder.iterdir())[1:]:
        shutil.rmtree(path)
    assert project.run(FP16) == 0
    project.assert_same("posts", "whole")
    scales = [[r["loss_scale"] for r in project.metrics(run)] for run in ("posts", "whole")]
    assert scales[0] == scales[1]


def test_a_checkpoint_without_a_scale_begins_anew(project):
    assert project.run(FP16, "train.steps=2", "train.schedule.warmup_steps=0") == 0
    folder = project.folder / "runs/posts/checkpoints/step-00000002"
    (folder / "loss_scale.json").unlink()
    state = json.loads((folder / "state.json").read_text())
    del state["files"]["loss_scale.json"]
    (folder / "state.json").write_text(json.dumps(state))
    assert project.run(FP16, "train.steps=4", "train.schedule.warmup_steps=0") == 0
    assert [record["loss_scale"] for record in project.metrics()] == [65536.0] * 4


def test_one_rank_that_overflows_holds_back_all(project):
    config = str(project.config)
    run = [config, FP16, "train.steps=5", "overflow:3", "train.run_dir=runs/fp16"]
    ((one, other),) = project.watch(run)
    assert one["parameters"] == other["parameters"]
    steps = project.metrics("fp16")
    assert [record["skipped"] for record in steps] == [False, False, True, False, False]
    assert [record["loss_scale"] for record in steps] == [65536.0] * 2 + [32768.0] * 3
    assert steps[3]["learning_rate"] == steps[2]["learning_rate"]


@pytest.mark.parametrize(("number_format", "code"), [("fp16", 0), ("fp32", 1)])
def test_a_rank_is_believed_that_its_gradients_overflowed(
    project, capsys, monkeypatch, number_format, code
):
    """Give one rank another norm than the first, as no reduction should."""
    exchange, calls = Cluster.exchange, []

    def disagree(cluster, values, ids):
        calls.append(1)
        table, rows = exchange(cluster, values, ids)
        other = table.clone()
        if len(calls) == 3:
            other[:, 0] = float("inf")
        return torch.cat([table, other]), torch.cat([rows, rows])

    monkeypatch.setattr(Cluster, "exchange", disagree)
    assert project.run(f"train.precision={number_format}", "train.steps=5") == code
    steps = project.metrics()
    if number_format == "fp16":
        assert [r["skipped"] for r in steps] == [False, False, True, False, False]
    else:
        assert "the gradients became inf at step 3" in capsys.readouterr().err
        assert len(steps) == 2


def test_auto_means_on_resume_what_it_meant_at_the_start(project, monkeypatch, capsys):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(precision, "resolve", lambda wanted, _device: "fp16")
        assert project.run("train.steps=2") == 0
    assert project.run("train.steps=4") == 2
    told = capsys.readouterr().err
    assert "train.precision was fp16 when this run began and is fp32 now" in told
    assert project.run("train.steps=4", FP16) == 0


def test_a_summary_is_json_whatever_the_numbers(project, capsys):
    from train.monitor import finite
    from train.trainer import _json

    found = finite({"loss": float("inf"), "eval": {"loss": float("nan"), "samples": 3}})
    assert found == {"loss": None, "eval": {"loss": None, "samples": 3}}
    with pytest.raises(ValueError, match="JSON"):
        _json({"loss": float("nan")})
