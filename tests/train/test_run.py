"""One process, from the command line to the run's folder."""

from __future__ import annotations

import hashlib
import json
import math
import shutil

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from geodata.loader import build_loader
from train.checkpoint import Checkpoints
from train.models import build_model
from train.remote import load_config

HELD_OUT = ("loader.split={heldout: 0.2}", "train.eval.every=5")


def test_a_run_learns_and_leaves_its_record(project, capsys):
    assert project.run(*HELD_OUT, "--json", "train.checkpoint.every=4") == 0
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    folder = project.folder / "runs" / "posts"
    assert summary["steps"] == 12
    assert summary["resumed_from"] is None
    assert summary["run_dir"] == str(folder)
    assert summary["checkpoint"] == str(folder / "checkpoints" / "step-00000012")
    steps, evals = project.metrics(kind="train"), project.metrics(kind="eval")
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert [record["step"] for record in evals] == [0, 5, 10, 12]
    assert summary["loss"] == steps[-1]["loss"] < steps[0]["loss"] - 0.3
    assert summary["eval"]["bits_per_byte"] == evals[-1]["bits_per_byte"]
    assert evals[-1]["bits_per_byte"] < evals[0]["bits_per_byte"]
    assert project.checkpoints() == ["step-00000004", "step-00000008", "step-00000012"]
    assert "step 10/12  loss" in shown.err
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["torch"]["version"] == torch.__version__
    assert "transformers" in environment["packages"]
    assert environment["world_size"] == 1
    lineage = json.loads((folder / "lineage.json").read_text())
    assert lineage["region"] == "eu-central"
    assert lineage["tag"]["kind"] == "derived"
    resolved = yaml.safe_load((folder / "config.yaml").read_text())
    assert resolved["train"]["optimizer"]["betas"] == [0.9, 0.95]
    assert resolved["loader"]["split"]["heldout"] == 0.2


def test_each_step_tells_the_loaders_ids(project):
    assert project.run("train.steps=8") == 0
    loader = build_loader(project.config, split="train")
    expected = []
    for _epoch in range(2):
        for batch in loader:
            real = batch["sample"][batch["sample"] >= 0]
            expected.append(hashlib.sha256(real.numpy().tobytes()).hexdigest())
    loader.close()
    steps = project.metrics(kind="train")
    assert [record["sample_digest"] for record in steps] == expected[:8]
    assert [record["epoch"] for record in steps] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert sum(record["samples"] for record in steps[:6]) == loader.records == 121


def test_evaluation_is_the_exact_mean_over_the_held_out_text(project):
    assert project.run(*HELD_OUT, "train.steps=5") == 0
    found = project.metrics(kind="eval")[-1]
    saved = Checkpoints(project.folder / "runs/posts/checkpoints", 1).at("step-00000005")
    from transformers import GPT2Config

    model = build_model(GPT2Config.from_dict(saved.load("model.json")))
    model.load_state_dict(saved.load("model.pt"))
    model.eval()
    loader = build_loader(load_config(project.config, HELD_OUT[:1]), split="heldout")
    nll, tokens, n_bytes = 0.0, 0, 0
    for batch in loader:
        for labels in batch["labels"]:
            text = labels[labels >= 0][None]
            if text.numel() > 1:
                logits = model(input_ids=text).logits[0, :-1]
                nll += cross_entropy(logits, text[0, 1:], reduction="sum").item()
                tokens += text.numel() - 1
                n_bytes += int((text[0, 1:] < 256).sum())
    loader.close()
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(nll / tokens, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / n_bytes, rel=1e-5)


def test_accumulation_changes_nothing(project):
    assert project.run("train.run_dir=runs/whole") == 0
    assert project.run("train.run_dir=runs/split", "train.accumulation=5") == 0
    project.assert_same("split", "whole", tolerance=2e-5)


def test_epochs_set_the_length(project):
    assert project.run("train.steps=null", "train.epochs=2") == 0
    assert project.metrics()[-1]["step"] == 12
    assert [record["samples"] for record in project.metrics()][5::6] == [1, 1]


def test_time_can_make_a_save_due(project):
    assert project.run("train.steps=3", "train.checkpoint={minutes: 1.0e-9, keep: 5}") == 0
    assert project.checkpoints() == ["step-00000001", "step-00000002", "step-00000003"]


def test_bf16_learns_too(project):
    assert project.run("train.precision=bf16") == 0
    losses = [record["loss"] for record in project.metrics()]
    assert losses[-1] < losses[0] - 0.3


def test_a_region_reads_only_what_it_may(project):
    assert project.run("--region", "us-east", "train.steps=2") == 0
    lineage = json.loads((project.folder / "runs/posts/lineage.json").read_text())
    assert lineage["region"] == "us-east"
    assert lineage["records"] == 111


@pytest.mark.parametrize("workers", [0, 1])
def test_dropout_resumes_exactly(project, workers):
    dropout = ("train.model.config.resid_pdrop=0.2", f"loader.workers={workers}")
    assert project.run(*dropout, "train.run_dir=runs/whole") == 0
    assert project.run(*dropout, "train.checkpoint.every=6") == 0
    folder = project.folder / "runs/posts"
    shutil.rmtree(folder / "checkpoints/step-00000012")  # back to the very end of an epoch
    assert project.run(*dropout) == 0
    project.assert_same("posts", "whole")
    assert json.loads((folder / "summary.json").read_text())["resumed_from"] == 6


def test_a_fused_activation_is_the_same_function():
    x = torch.linspace(-6, 6, 1001)
    from transformers.activations import ACT2FN

    assert torch.allclose(ACT2FN["gelu_new"](x), ACT2FN["gelu_pytorch_tanh"](x), atol=1e-6)
