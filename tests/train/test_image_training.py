"""Image classification, from a folder of pictures for each class to a judged model."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy
from transformers import ResNetConfig

from geodata.loader import build_loader
from train.checkpoint import Checkpoints
from train.config import ImageSection
from train.models import build_model
from train.remote import load_config
from train.tasks.images import scale_pixels

HELD_OUT = ("loader.split={heldout: 0.2}", "train.eval.every=6")

TINY_VIT = (
    "train.model={kind: vit, config: {patch_size: 4, hidden_size: 16, num_hidden_layers: 1, "
    "num_attention_heads: 2, intermediate_size: 32}}"
)


def judged(project, run: str = "digits") -> dict:
    """Evaluate a run's last checkpoint on the held-out images by other code."""
    folder = project.folder / "runs" / run / "checkpoints"
    saved = Checkpoints(folder, 1).at(sorted(path.name for path in folder.iterdir())[-1])
    norm = yaml.safe_load(saved.load("config.yaml"))["train"]["model"]["norm"]
    model = build_model(ResNetConfig.from_dict(saved.load("model.json")), norm)
    model.load_state_dict(saved.load("model.pt"))
    model.eval()
    loader = build_loader(load_config(project.config, HELD_OUT[:1]), split="heldout")
    real = [(b["image"][b["weight"] > 0], b["label"][b["weight"] > 0]) for b in loader]
    loader.close()
    images, labels = (torch.cat(parts) for parts in zip(*real, strict=True))
    with torch.no_grad():
        logits = model(pixel_values=scale_pixels(images, ImageSection())).logits
    right = logits.argmax(-1) == labels
    recalls = [right[labels == label].double().mean().item() for label in labels.unique()]
    return {
        "loss": cross_entropy(logits, labels).item(),
        "accuracy": right.double().mean().item(),
        "balanced_accuracy": sum(recalls) / len(recalls),
        "majority": labels.bincount().max().item() / len(labels),
        "images": len(labels),
    }


def test_a_resnet_learns_to_read_digits(pictures, capsys):
    overrides = ("loader.global_batch=64", "train.steps=60", "train.optimizer.lr=0.02")
    assert pictures.run(*HELD_OUT[:1], *overrides) == 0
    first, last = pictures.metrics("digits", kind="eval")
    assert last["accuracy"] > 0.75 > 5 * last["majority"]
    assert last["balanced_accuracy"] > 0.7
    assert first["balanced_accuracy"] < 0.3
    told = capsys.readouterr().err
    assert "img/s" in told
    shares = [f"{100 * last[key]:.1f} %" for key in ("accuracy", "balanced_accuracy", "majority")]
    assert "accuracy {}  balanced {}  majority {}".format(*shares) in told


@pytest.mark.parametrize("norm", ["batch", "group", "frozen"])
def test_evaluation_is_exact_over_the_held_out_images(pictures, norm):
    assert pictures.run(*HELD_OUT, f"train.model.norm={norm}") == 0
    found, expected = pictures.metrics("digits", kind="eval")[-1], judged(pictures)
    assert found["step"] == 12
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    classes = found["classes"]
    assert sum(of["images"] for of in classes.values()) == found["samples"] == found["images"]
    assert max(of["images"] for of in classes.values()) / found["images"] == found["majority"]


def test_a_vit_learns_too(pictures):
    assert pictures.run(TINY_VIT, "loader.global_batch=64", "train.steps=60") == 0
    losses = [record["loss"] for record in pictures.metrics("digits")]
    assert sum(losses[-10:]) / 10 < losses[0] - 0.1, losses


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_images_resume_exactly(pictures, norm):
    norm = f"train.model.norm={norm}"
    crops = "loader.image={size: 16, crop: random, area: [0.5, 1.0], flip: true}"
    assert pictures.run(norm, crops, "train.run_dir=runs/whole") == 0
    assert pictures.run(norm, crops, "train.checkpoint.every=7") == 0
    shutil.rmtree(pictures.folder / "runs/digits/checkpoints/step-00000012")
    assert pictures.run(norm, crops) == 0
    pictures.assert_same("digits", "whole")
    summary = json.loads((pictures.folder / "runs/digits/summary.json").read_text())
    assert summary["resumed_from"] == 7


def test_smoothing_leaves_the_evaluation_as_it_is(pictures):
    few = (*HELD_OUT[:1], "train.steps=1")
    assert pictures.run(*few) == 0
    assert pictures.run(*few, "train.run_dir=runs/smooth", "train.label_smoothing=0.3") == 0
    plain, smooth = pictures.metrics("digits"), pictures.metrics("smooth")
    assert plain[0]["kind"] == "eval"
    assert smooth[0]["loss"] == plain[0]["loss"]
    assert smooth[1]["loss"] != pytest.approx(plain[1]["loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.model={kind: gpt2}", "gpt2 learns text, and the dataset has no text"),
        ("train.model={kind: bert}", "bert learns text, and the dataset has no text"),
        ("train.model.label=colour", "'colour' is no column of labels. There is label"),
        ("loader.columns=[image]", "no column of labels to learn"),
        ("train.model.config.num_labels=3", "num_labels: 3 is below the 10 classes of 'label'"),
        ("train.image.std=[1, 1, 0]", "train.image.std"),
        ("train.label_smoothing=1", "train.label_smoothing"),
        ("train.model={kind: vit, norm: group}", "train.model.norm: vit has no batch"),
        ("train.model={kind: vit, config: {patch_size: 5}}", "5 does not divide loader.image.size"),
    ],
)
def test_a_model_that_the_images_are_not_for_is_refused(pictures, capsys, override, words):
    assert pictures.run(override) == 2
    (told,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert words in told


def test_batch_statistics_of_one_image_are_refused(pictures, capsys):
    assert pictures.run("train.model.norm=batch", "train.accumulation=13") == 2
    told = capsys.readouterr().err
    assert "a rank has 24 images a step, in 13 micro-batches" in told
    assert "train.model.norm to group" in told


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.label_smoothing=0.1", "train.label_smoothing was 0.0"),
        ("train.image.mean=[0.5, 0.5, 0.5]", "train.image.mean was [0.485, 0.456, 0.406]"),
        ("train.model.norm=frozen", "train.model.norm was group"),
    ],
)
def test_what_images_mean_cannot_change_on_resume(pictures, capsys, override, words):
    assert pictures.run("train.steps=1") == 0
    capsys.readouterr()
    assert pictures.run("train.steps=2", override) == 2
    assert words in capsys.readouterr().err
