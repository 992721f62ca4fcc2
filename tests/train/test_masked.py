"""Masked language modelling: a BERT on text whose tokens the loader hides."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig

from geodata.loader import build_loader
from train.checkpoint import Checkpoints
from train.models import build_model
from train.remote import load_config

HELD_OUT = ("loader.split={heldout: 0.2}", "train.eval.every=5")


def test_a_bert_learns_and_is_judged_on_predicted_tokens(masked, capsys):
    assert masked.run(*HELD_OUT, "train.steps=40") == 0
    evals = masked.metrics(kind="eval")
    assert evals[-1]["loss"] < evals[0]["loss"] - 2
    assert len({record["predicted"] for record in evals}) == 1
    assert evals[-1]["accuracy"] > evals[0]["accuracy"]
    assert f"accuracy {100 * evals[-1]['accuracy']:.1f} %" in capsys.readouterr().err

    saved = Checkpoints(masked.folder / "runs/posts/checkpoints", 1).at("step-00000040")
    model = build_model(BertConfig.from_dict(saved.load("model.json")))
    model.load_state_dict(saved.load("model.pt"))
    model.eval()
    loader = build_loader(load_config(masked.config, HELD_OUT[:1]), split="heldout")
    nll, predicted, right = 0.0, 0, 0
    for batch in loader:
        for tokens, labels, seen in zip(
            batch["tokens"], batch["labels"], batch["attention_mask"], strict=True
        ):
            chosen = labels[seen] >= 0
            if chosen.any():
                logits = model(input_ids=tokens[seen][None]).logits[0][chosen]
                nll += cross_entropy(logits, labels[seen][chosen], reduction="sum").item()
                right += int((logits.argmax(-1) == labels[seen][chosen]).sum())
                predicted += int(chosen.sum())
    loader.close()
    assert evals[-1]["predicted"] == predicted
    assert evals[-1]["loss"] == pytest.approx(nll / predicted, rel=1e-5)
    assert evals[-1]["accuracy"] == right / predicted


def test_a_step_tells_tokens_and_predictions(masked):
    assert masked.run("train.steps=2") == 0
    loader = build_loader(load_config(masked.config))
    for record, batch in zip(masked.metrics(), loader, strict=False):
        real = batch["weight"] > 0
        assert record["tokens"] == batch["attention_mask"][real].sum()
        assert record["targets"] == (batch["labels"] >= 0).sum()
        assert record["targets"] < record["tokens"] / 2
    loader.close()


def test_the_vocabulary_has_the_mask_and_no_padding_row(masked):
    assert masked.run("train.steps=1") == 0
    config = json.loads(
        (masked.folder / "runs/posts/checkpoints/step-00000001/model.json").read_text()
    )
    assert (config["vocab_size"], config["pad_token_id"]) == (258, None)
    weights = torch.load(
        masked.folder / "runs/posts/checkpoints/step-00000001/model.pt", weights_only=True
    )
    table = weights["bert.embeddings.word_embeddings.weight"]
    assert (table.abs().sum(1) > 0).all()


def test_dropout_resumes_exactly(masked):
    dropout = "train.model.config.hidden_dropout_prob=0.2"
    assert masked.run(dropout, "train.run_dir=runs/whole") == 0
    assert masked.run(dropout, "train.checkpoint.every=7") == 0
    shutil.rmtree(masked.folder / "runs/posts/checkpoints/step-00000012")
    assert masked.run(dropout) == 0
    masked.assert_same("posts", "whole")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("loader.text.masked=0", "bert predicts masked tokens, and the loader masks none"),
        ("train.model={kind: gpt2}", "gpt2 predicts next tokens, and the loader masks some"),
        ("train.model={kind: resnet}", "resnet classifies images, and the dataset has no images"),
        ("train.model={kind: vit}", "vit classifies images, and the dataset has no images"),
        ("train.model.label=letter", "train.model.label: bert learns text, not labels"),
        ("train.model.config.max_position_embeddings=32", "max_position_embeddings: 32 is below"),
        ("train.model.config.vocab_size=257", "vocab_size: 257 is below the loader's 258"),
        ("train.model.config.n_head=2", "train.model.config.n_head: no such key of BertConfig"),
        ("train.model.config.num_attention_heads=3", "train.model.config makes no model"),
    ],
)
def test_a_model_that_the_text_is_not_for_is_refused(masked, capsys, override, words):
    assert masked.run(override) == 2
    (told,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert words in told
