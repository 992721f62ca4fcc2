"""Batches, losses and measures of masked language and of classification, and the norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from train.config import ImageSection, ModelSection
from train.models import build_model, model_config
from train.norms import BatchNorm, FrozenBatchNorm, groups, set_norm
from train.remote import ConfigError
from train.tasks.images import Classification, label_column, scale_pixels
from train.tasks.language import Causal, Masked, Text

TEXT = Text(258, 256, 16, 0.3, True, "max_position_embeddings")
MASKED = Masked(TEXT, smoothing=0.0)
PLAIN = ImageSection(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
IMAGES = Classification("digit", ["a", "b", "c"], 8, PLAIN, smoothing=0.0)

BERT = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
RESNET = {
    "embedding_size": 4,
    "hidden_sizes": [4, 6],
    "depths": [1, 1],
    "layer_type": "basic",
}


class Fixed(nn.Module):
    """A model that answers with given logits, a row for each pixel or token it is shown."""

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.answers = logits

    def forward(self, **inputs: torch.Tensor):
        from types import SimpleNamespace

        (shown, *_) = inputs.values()
        return SimpleNamespace(logits=self.answers[: len(shown)])


def made(kind: str, keys: dict, task, tmp_path, norm: str = "batch"):
    section = ModelSection(kind=kind, config=keys, norm=norm)
    torch.manual_seed(0)
    config = model_config(section, tmp_path, task.defaults())
    task.check(config)
    return build_model(config, norm, task.example())


def masked_raw() -> dict[str, torch.Tensor]:
    """Return four rows of six tokens: two are real, the first of them padded from the fifth on."""
    tokens = torch.randint(0, 256, (4, 6), generator=torch.Generator().manual_seed(1))
    labels = torch.full((4, 6), -100)
    labels[0, 1], labels[2, 0], labels[2, 5], labels[3, 2] = 7, 8, 9, 10
    seen = torch.ones(4, 6, dtype=torch.bool)
    seen[0, 4:] = False
    weight = torch.tensor([1.0, 0.0, 1.0, 0.0])
    sample = torch.tensor([5, -1, 6, -1])
    return {
        "tokens": tokens,
        "labels": labels,
        "attention_mask": seen,
        "weight": weight,
        "sample": sample,
    }


def image_raw(labels: list[int], weight: list[float]) -> dict[str, torch.Tensor]:
    count = len(labels)
    images = torch.arange(count * 3 * 64, dtype=torch.int64).reshape(count, 3, 8, 8) % 251
    return {
        "image": images.to(torch.uint8),
        "digit": torch.tensor(labels),
        "weight": torch.tensor(weight),
        "sample": torch.arange(count),
    }


def test_masked_batches_hold_real_rows_and_hide_padding():
    raw = masked_raw()
    batch = MASKED.batch(raw)
    assert torch.equal(batch.inputs["input_ids"], raw["tokens"][[0, 2]])
    assert batch.inputs["attention_mask"].tolist() == [[True] * 4 + [False] * 2, [True] * 6]
    assert (batch.samples, batch.targets, batch.volume) == (2, 3, 10)
    assert batch.sample.tolist() == [5, -1, 6, -1]
    assert batch.labels[0].tolist() == [-100, 7, -100, -100, -100, -100]
    raw["weight"][0] = 0
    full = MASKED.batch(raw)
    assert "attention_mask" not in full.inputs
    assert (full.samples, full.targets, full.volume) == (1, 2, 6)


def test_the_masked_loss_is_the_sum_over_predicted_tokens(tmp_path):
    model = made("bert", BERT, MASKED, tmp_path).eval()
    raw = masked_raw()
    batch = MASKED.batch(raw)
    alone = model(input_ids=raw["tokens"][:1, :4]).logits[0]  # no padding, no mask
    whole = model(input_ids=raw["tokens"][2:3]).logits[0]
    expected = [cross_entropy(alone[1], torch.tensor(7))]
    expected += [cross_entropy(whole[at], torch.tensor(label)) for at, label in ((0, 8), (5, 9))]
    assert MASKED.loss(model, batch).item() == pytest.approx(sum(expected).item(), rel=1e-5)
    loss, predicted, _ = MASKED.tally(model, batch).tolist()
    assert loss == pytest.approx(sum(expected).item(), rel=1e-5)
    assert predicted == 3


def test_masked_accuracy_counts_predicted_tokens_only():
    logits = torch.zeros(2, 6, 258)
    logits[0, 1, 7] = logits[1, 0, 8] = logits[1, 5, 3] = 9.0
    logits[0, 0, 5] = 9.0
    batch = MASKED.batch(masked_raw())
    sums = MASKED.tally(Fixed(logits), batch).tolist()
    assert MASKED.report(sums)["accuracy"] == pytest.approx(2 / 3)
    assert MASKED.report(sums)["predicted"] == 3


@pytest.mark.parametrize("task", ["masked", "images"])
def test_a_rank_without_a_record_runs_one_row_and_learns_nothing(task, tmp_path):
    if task == "masked":
        model, teacher, raw = made("bert", BERT, MASKED, tmp_path), MASKED, masked_raw()
        raw["weight"][:] = 0
    else:
        model, teacher = made("resnet", RESNET, IMAGES, tmp_path), IMAGES
        raw = image_raw([-100, 1], [1.0, 0.0])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = teacher.batch(raw)
    assert (len(batch.labels), batch.targets) == (1, 0)
    loss = teacher.loss(model, batch)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_images_with_a_label_are_run():
    batch = IMAGES.batch(image_raw([0, 1, -100, 2, 1], [1.0, 0.0, 1.0, 1.0, 1.0]))
    assert batch.labels.tolist() == [0, 2, 1]
    assert batch.inputs["pixel_values"].dtype == torch.uint8
    assert (batch.samples, batch.targets, batch.volume) == (4, 3, 3)
    parts = batch.split(2)
    assert [part.labels.tolist() for part in parts] == [[0, 2], [1]]
    assert [len(part.inputs["pixel_values"]) for part in parts] == [2, 1]
    assert len(batch.split(9)) == 3


def test_the_column_of_classes_is_named_where_there_are_several():
    labels = {"shape": ["a"], "colour": ["b", "c"]}
    assert label_column("colour", labels) == "colour"
    assert label_column(None, {"shape": ["a"]}) == "shape"
    with pytest.raises(ConfigError, match=r"several columns of labels: colour, shape\. Set train"):
        label_column(None, labels)
    with pytest.raises(
        ConfigError, match=r"'size' is no column of labels\. There is colour, shape"
    ):
        label_column("size", labels)
    with pytest.raises(ConfigError, match="no column of labels to learn"):
        label_column(None, {})


def test_pixels_are_scaled_by_the_configs_means_and_deviations():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    scaling = ImageSection(mean=(0.5, 0.1, 0.4), std=(0.25, 0.5, 0.2))
    assert scale_pixels(images, scaling).flatten().tolist() == pytest.approx([-2.0, 0.2, 3.0])


def test_classification_is_judged_by_class():
    logits = torch.eye(3)[[0, 0, 0, 1, 0, 2]] * 4
    raw = image_raw([0, 0, 0, 1, 1, -100, 2], [1.0] * 6 + [0.0])
    sums = IMAGES.tally(Fixed(logits), IMAGES.batch(raw)).tolist()
    found = IMAGES.report(sums)
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["balanced_accuracy"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["majority"] == pytest.approx(3 / 5)
    assert found["images"] == 5
    assert found["classes"] == {"a": {"images": 3, "right": 3}, "b": {"images": 2, "right": 1}}
    labels = torch.tensor([0, 0, 0, 1, 1])
    assert found["loss"] == pytest.approx(cross_entropy(logits[:5], labels).item(), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_smoothing_is_of_the_training_loss_only(smoothing):
    torch.manual_seed(2)
    logits, raw = torch.randn(3, 3), image_raw([0, 2, 1], [1.0] * 3)
    task = Classification("digit", ["a", "b", "c"], 8, PLAIN, smoothing)
    batch, labels = task.batch(raw), raw["digit"]
    plain = cross_entropy(logits, labels, reduction="sum").item()
    spread = -logits.log_softmax(-1).mean(-1).sum().item()
    expected = (1 - smoothing) * plain + smoothing * spread
    assert task.loss(Fixed(logits), batch).item() == pytest.approx(expected, rel=1e-5)
    assert task.tally(Fixed(logits), batch)[0].item() == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("kind", [Causal, Masked])
def test_language_is_smoothed_in_training_only(kind):
    torch.manual_seed(3)
    logits, raw = torch.randn(2, 6, 258), masked_raw()
    text = Text(258, 256, 16, 0.3, True, "max_position_embeddings")
    batch = kind(text, 0.1).batch(raw)
    plain = kind(text, 0.0).loss(Fixed(logits.expand(2, 6, 258)), first_two(batch))
    smooth = kind(text, 0.1).loss(Fixed(logits), first_two(batch))
    judged = kind(text, 0.1).tally(Fixed(logits), first_two(batch))[0]
    assert smooth.item() != pytest.approx(plain.item(), rel=1e-4)
    assert judged.item() == pytest.approx(plain.item(), rel=1e-5)


def first_two(batch):
    """Return the first two rows of a batch."""
    return batch.split(len(batch.labels) // 2)[0]


@pytest.mark.parametrize(
    ("channels", "count"), [(64, 32), (256, 32), (48, 24), (32, 16), (6, 3), (7, 1), (1, 1)]
)
def test_groups_divide_the_channels(channels, count):
    assert groups(channels) == count


def test_norms_are_replaced_throughout(tmp_path):
    models = {n: made("resnet", RESNET, IMAGES, tmp_path, n) for n in ("batch", "frozen", "group")}
    kinds = {n: {type(m) for m in model.modules()} for n, model in models.items()}
    assert all(nn.BatchNorm2d not in found for found in kinds.values())
    assert BatchNorm in kinds["batch"]
    assert FrozenBatchNorm in kinds["frozen"]
    assert nn.GroupNorm in kinds["group"]
    assert [*models["batch"].state_dict()] == [*models["frozen"].state_dict()]
    fixed = [
        p
        for m in models["frozen"].modules()
        if isinstance(m, FrozenBatchNorm)
        for p in [*m.parameters()]
    ]
    assert fixed
    assert not any(p.requires_grad for p in fixed)


def test_frozen_statistics_stay_and_batch_statistics_move():
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(4)
    norm.running_mean += 0.5
    images = torch.randn(3, 4, 2, 2)
    frozen, live = nn.Sequential(norm), nn.Sequential(norm)
    set_norm(frozen, "frozen")
    set_norm(live, "batch")
    assert torch.equal(frozen(images), norm.eval()(images))
    assert torch.equal(frozen[0].running_mean, norm.running_mean)
    assert torch.equal(live(images), norm.train()(images))
    assert torch.equal(live[0].running_mean, norm.running_mean)
    moved = live[0].running_mean.clone()
    assert torch.equal(live(images[:1]), live.eval()(images[:1]))
    assert torch.equal(live[0].running_mean, moved)


@pytest.mark.parametrize(
    ("kind", "keys", "words"),
    [
        ("resnet", {"num_labels": 2}, "num_labels: 2 is below the 3 classes of 'digit'"),
        ("resnet", {"num_channels": 1}, "num_channels: 1; images have 3"),
        ("resnet", {"depth": [1]}, "train.model.config.depth: no such key of ResNetConfig"),
        ("resnet", {"layer_type": "x"}, "layer_type=x is not one of basic,bottleneck"),
        ("resnet", {"hidden_sizes": []}, "train.model.config makes no model"),
        ("vit", {"patch_size": 3}, "patch_size: 3 does not divide loader.image.size, 8"),
        ("vit", {"patch_size": 0}, "patch_size: 0 does not divide"),
        ("vit", {"image_size": 224}, "image_size: 224 is not loader.image.size, 8"),
        ("vit", {"patch_size": 4, "hidden_act": "x"}, "train.model.config makes no model"),
    ],
)
def test_values_that_do_not_fit_are_told_in_one_line(kind, keys, words, tmp_path):
    small = {"num_hidden_layers": 1, "intermediate_size": 8} if kind == "vit" else {}
    with pytest.raises(ConfigError) as error:
        made(kind, small | keys, IMAGES, tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_cannot_take_a_batch_is_told_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="train.model.config makes no model: index"):
        made("bert", BERT | {"type_vocab_size": 0}, MASKED, tmp_path)


def test_more_classes_than_the_data_have_are_allowed(tmp_path):
    assert made("resnet", RESNET | {"num_labels": 5}, IMAGES, tmp_path).config.num_labels == 5


def test_classes_and_sizes_come_from_the_data(tmp_path):
    keys = {"patch_size": 4, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = made("vit", keys | {"intermediate_size": 8}, IMAGES, tmp_path).config
    assert config.id2label == {0: "a", 1: "b", 2: "c"}
    assert config.label2id == {"a": 0, "b": 1, "c": 2}
    assert (config.image_size, config.num_channels) == (8, 3)
    assert made("bert", BERT, MASKED, tmp_path).config.vocab_size == 258


def test_a_config_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    section = ModelSection(kind="resnet", config="config.json")
    with pytest.raises(ConfigError, match="is of a bert, not of a resnet"):
        model_config(section, tmp_path, {})
