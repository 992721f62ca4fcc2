"""Loss, gradients, schedule and records: the numbers themselves."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from train.config import ModelSection, OptimizerSection, ScheduleSection
from train.models import build_model, model_config
from train.monitor import Console, RunLog
from train.monitor.console import duration, scientific, short
from train.optim import (
    build_optimizer,
    build_schedule,
    gradient_norm,
    restore_schedule,
    scale_and_clip,
)
from train.precision import resolve
from train.remote import ConfigError
from train.tasks.language import Causal, Text

LOADER = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
TASK = Causal(Text(257, 256, 16, 0.0, True, "n_positions"), smoothing=0.0)


def causal(tokens, labels):
    """Return the task's batch of these tokens and labels."""
    count = len(tokens)
    raw = {"tokens": tokens, "labels": labels, "sample": torch.arange(count)}
    return TASK.batch({**raw, "weight": torch.ones(count)})


def token_loss(model, tokens, labels):
    return TASK.loss(model, causal(tokens, labels))


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    keys = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16}
    config = model_config(ModelSection(config=keys), tmp_path, TASK.defaults())
    return build_model(config).eval()


def test_the_loss_is_the_sum_over_real_next_tokens(model):
    tokens = torch.randint(0, 256, (3, 9))
    labels = tokens.clone()
    labels[1, 4:] = -100
    labels[2, :] = -100
    logits = model(input_ids=tokens).logits
    expected = sum(
        cross_entropy(logits[row, at - 1], labels[row, at])
        for row, stop in ((0, 9), (1, 4))
        for at in range(1, stop)
    )
    assert token_loss(model, tokens, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    assert causal(tokens, labels).targets == 8 + 3


def test_padding_on_the_right_changes_no_loss(model):
    tokens = torch.randint(0, 256, (2, 8))
    longer = pad(tokens, (0, 5), value=256)
    labels = pad(tokens, (0, 5), value=-100)
    one, other = token_loss(model, tokens, tokens), token_loss(model, longer, labels)
    assert one.item() == pytest.approx(other.item(), rel=1e-5)


def test_a_batch_of_padding_has_no_loss_and_zero_gradients(model):
    tokens = torch.full((2, 8), 256)
    loss = token_loss(model, tokens, torch.full((2, 8), -100))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_the_special_tokens_and_vocabulary_come_from_the_loader(tmp_path):
    config = model_config(ModelSection(), tmp_path, LOADER)
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (257, 256, 256)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3, "vocab_size": 300}))
    config = model_config(ModelSection(config="config.json"), tmp_path, LOADER)
    assert (config.n_layer, config.vocab_size) == (3, 300)


def gradients(scale: float) -> list[nn.Parameter]:
    torch.manual_seed(1)
    made = [
        nn.Parameter(torch.zeros(4, 3)),
        nn.Parameter(torch.zeros(5)),
        nn.Parameter(torch.ones(2)),
    ]
    for parameter in made[:2]:
        parameter.grad = torch.randn_like(parameter) * scale
    return made


@pytest.mark.parametrize("limit", [0.1, 1000.0, None])
def test_scaling_and_clipping_are_torchs_in_one_pass(limit):
    ours, theirs = gradients(8.0), gradients(1.0)
    norm = scale_and_clip(ours, gradient_norm(ours).item(), 1 / 8, limit)
    expected = nn.utils.clip_grad_norm_(theirs, limit if limit is not None else math.inf)
    assert norm == pytest.approx(expected.item(), rel=1e-6)
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-5)
    assert ours[2].grad is None


def test_the_schedule_warms_up_and_falls_by_a_cosine(model):
    optimizer = build_optimizer(model, OptimizerSection(lr=1.0))
    schedule = build_schedule(optimizer, ScheduleSection(warmup_steps=4, min_lr_ratio=0.2), 12)
    rates = []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[8] == pytest.approx(0.6)
    assert rates[12:] == pytest.approx([0.2, 0.2])


def test_a_longer_run_takes_its_own_rates_on_resume(model):
    section = ScheduleSection(warmup_steps=0, min_lr_ratio=0.0)
    optimizer = build_optimizer(model, OptimizerSection(lr=1.0))
    short_run = build_schedule(optimizer, section, 10)
    for _ in range(5):
        optimizer.step()
        short_run.step()
    longer = build_schedule(optimizer, section, 20)
    restore_schedule(longer, short_run.state_dict())
    assert optimizer.param_groups[0]["lr"] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_only_matrices_decay(model):
    decayed, plain = build_optimizer(model, OptimizerSection(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}


def test_precision_is_chosen_by_the_device():
    assert resolve("auto", torch.device("cpu")) == "fp32"
    assert resolve("bf16", torch.device("cpu")) == "bf16"


def test_an_unknown_model_key_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="n_heads"):
        model_config(ModelSection(config={"n_heads": 2}), tmp_path, LOADER)


def test_metrics_go_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = RunLog(path)
    assert log.rewind(0) == {}
    for step in range(4):
        log.write("eval", {"step": step, "loss": 1.0})
        log.write("train", {"step": step + 1, "loss": math.inf if step == 1 else 2.0})
    log.close()
    with path.open("a") as file:
        file.write('{"kind": "train", "ste')
    log = RunLog(path)
    assert log.rewind(2) == {"kind": "train", "step": 2, "loss": None}
    log.close()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in kept] == [
        ("eval", 0),
        ("train", 1),
        ("eval", 1),
        ("train", 2),
    ]


def test_the_console_speaks_in_short_numbers():
    assert [scientific(5.8e-4), scientific(1.0)] == ["5.8e-4", "1.0e0"]
    assert [short(12.0), short(98_100.0), short(2.5e6)] == ["12.0", "98.1k", "2.5M"]
    assert [duration(7), duration(130), duration(7_860)] == ["7 s", "2 min 10 s", "2 h 11 min"]


def test_a_line_tells_the_rates_since_the_line_before(capsys):
    console = Console(True, log_every=2)
    console.total_steps = 4
    for step, seconds in ((1, 1.0), (2, 3.0), (3, 0.5), (4, 0.5)):
        record = {"step": step, "loss": 2.0, "learning_rate": 1e-3, "tokens": 1000}
        console.step({**record, "step_seconds": seconds, "data_wait_seconds": seconds / 4})
    assert capsys.readouterr().err.splitlines() == [
        "step 2/4  loss 2.000  lr 1.0e-3  500.0 tok/s  wait 25.0 %  eta 4 s",
        "step 4/4  loss 2.000  lr 1.0e-3  2.0k tok/s  wait 25.0 %  eta 0 s",
    ]
