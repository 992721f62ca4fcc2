"""Models from published transformers configs, and the loss over their tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from train.config import ModelSection
from train.remote import ConfigError, MissingExtra

IGNORED = -100
"""Label of a position without a target."""

_FUSED = {"gelu_new": "gelu_pytorch_tanh"}
"""Activations that transformers spells out in Python, and the same function as one kernel."""


def model_config(section: ModelSection, folder: Path, *, vocab_size: int, eos_id: int) -> Any:
    """Return the transformers config: the section's keys over the loader's vocabulary.

    Raises ConfigError for an unreadable file, an unknown key or values that do not fit together.
    """
    try:
        from transformers import GPT2Config
    except ImportError as error:
        raise MissingExtra.of("transformers", "train") from error
    given = _read(folder / section.config) if isinstance(section.config, str) else section.config
    known = GPT2Config().to_dict()
    if isinstance(section.config, dict) and (unknown := set(given) - set(known)):
        raise ConfigError(f"train.model.config.{min(unknown)}: no such key of GPT2Config")
    defaults = {"vocab_size": vocab_size, "bos_token_id": eos_id, "eos_token_id": eos_id}
    try:
        config = GPT2Config(**{**defaults, **given, "use_cache": False})
    except Exception as error:
        raise _unfit(error) from error
    if config.vocab_size < vocab_size:
        raise ConfigError(
            f"train.model.config.vocab_size: {config.vocab_size} is below the loader's {vocab_size}"
        )
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("no readable transformers config", file=str(path)) from error
    if not isinstance(data, dict):
        raise ConfigError("the transformers config must be a mapping", file=str(path))
    return data


def build_model(config: Any) -> nn.Module:
    """Return a GPT-2 with fresh weights, drawn from torch's generator.

    Sequences are padded on the right and attention is causal, so no mask is needed and the fused
    attention applies.
    """
    from transformers import GPT2LMHeadModel

    config = type(config).from_dict(config.to_dict())
    config.activation_function = _FUSED.get(config.activation_function, config.activation_function)
    config._attn_implementation = "sdpa"
    try:
        model: nn.Module = GPT2LMHeadModel(config)
    except Exception as error:
        raise _unfit(error) from error
    return model


def _unfit(error: Exception) -> ConfigError:
    """Return the error for values of which transformers can make no model, in one line."""
    return ConfigError(f"train.model.config makes no model: {' '.join(str(error).split())}")


def token_loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of next-token losses, logits in fp32.

    `tokens` and `labels` are int64 [B, T] and not shifted; labels of -100 have no loss. A batch
    without any label gives 0 and zero gradients.
    """
    logits = model(input_ids=tokens).logits.float()
    following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return F.cross_entropy(
        logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def targets(labels: Tensor) -> Tensor:
    """Return how many positions of unshifted labels have a loss, as a scalar tensor."""
    return (labels[:, 1:] != IGNORED).sum()
