"""Models from published transformers configs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from train.config import ModelSection
from train.norms import set_norm
from train.remote import ConfigError, MissingExtra


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of models: its classes in transformers, and what it is taught."""

    config: str
    model: str
    task: str
    positions: str = ""
    """The key of its longest sequence, if it has one."""
    batch_norm: bool = False


KINDS = {
    "gpt2": Kind("GPT2Config", "GPT2LMHeadModel", "causal", positions="n_positions"),
    "bert": Kind("BertConfig", "BertForMaskedLM", "masked", positions="max_position_embeddings"),
    "resnet": Kind(
        "ResNetConfig", "ResNetForImageClassification", "classification", batch_norm=True
    ),
    "vit": Kind("ViTConfig", "ViTForImageClassification", "classification"),
}
"""By the `model_type` of transformers."""

_FUSED = {"gelu_new": "gelu_pytorch_tanh"}
"""Activations that transformers spells out in Python, and the same function as one kernel."""

_CLASSES = {"id2label", "label2id", "num_labels"}
"""Keys of a config that say which classes there are."""


def model_config(section: ModelSection, folder: Path, defaults: Mapping[str, Any]) -> Any:
    """Return the transformers config: the section's keys over `defaults`, where it has these.

    Raises ConfigError for an unreadable file, an unknown key or values that do not fit together.
    """
    kind = KINDS[section.kind]
    make = _transformers(kind.config)
    keys = set(make().to_dict())
    named = {"num_labels"} if kind.task == "classification" else set()
    given = _given(section, folder, keys | named)
    mine = {key: value for key, value in defaults.items() if key in keys}
    if _CLASSES & set(given):
        mine = {key: value for key, value in mine.items() if key not in _CLASSES}
    fixed = {"use_cache": False} if "use_cache" in keys else {}
    try:
        return make(**{**mine, **given, **fixed})
    except Exception as error:
        raise _unfit(error) from error


def _given(section: ModelSection, folder: Path, keys: Collection[str]) -> dict[str, Any]:
    """Return the keys of the section, or of the file that it names."""
    if isinstance(section.config, dict):
        unknown = set(section.config) - set(keys)
        if unknown:
            name = KINDS[section.kind].config
            raise ConfigError(f"train.model.config.{min(unknown)}: no such key of {name}")
        return section.config
    given = _read(folder / section.config)
    found = given.get("model_type", section.kind)
    if found != section.kind:
        raise ConfigError(
            f"the transformers config is of a {found}, not of a {section.kind}",
            file=str(folder / section.config),
            hint="Set train.model.kind",
        )
    return given


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("no readable transformers config", file=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("the transformers config must be a mapping", file=str(path))
    return data


def build_model(
    config: Any, norm: str = "batch", example: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return the model of a transformers config with fresh weights, drawn from torch's generator.

    Attention is the fused one where the model has any. ConfigError if there is no such model, or
    if it cannot take `example`, which is what a batch of one record gives it.
    """
    kind = KINDS[config.model_type]
    config = type(config).from_dict(config.to_dict())
    if hasattr(config, "activation_function"):
        name = config.activation_function
        config.activation_function = _FUSED.get(name, name)
    if hasattr(config, "num_attention_heads"):
        config._attn_implementation = "sdpa"
    try:
        model: nn.Module = _transformers(kind.model)(config)
        set_norm(model, norm)
        if example is not None:
            _try(model, example)
    except Exception as error:
        raise _unfit(error) from error
    return model


@torch.no_grad()
def _try(model: nn.Module, example: Mapping[str, Tensor]) -> None:
    """Run the model once; nothing of it, nor of a generator, changes."""
    model.eval()
    model(**example)
    model.train()


def _transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra.of("transformers", "train") from error
    return getattr(transformers, name)


def _unfit(error: Exception) -> ConfigError:
    """Return the error for values of which transformers can make no model, in one line."""
    return ConfigError(f"train.model.config makes no model: {' '.join(str(error).split())}")
