"""Language models: predict every next token, or masked ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from train.config import TrainConfig
from train.data import Feed
from train.models import KINDS
from train.remote import ConfigError
from train.tasks.base import IGNORED, Batch, cross_entropy, rows_of

BYTE_VALUES = 256
"""Token ids below this are bytes where tokens are bytes."""


@dataclass(frozen=True, slots=True)
class Text:
    """What the loader's batches of text are like."""

    vocab_size: int
    eos_id: int
    length: int
    masked: float
    tokens_are_bytes: bool
    positions: str
    """The key of the longest sequence in the model's config."""

    @classmethod
    def of(cls, config: TrainConfig, feed: Feed) -> Text:
        """Read it off a feed; ConfigError if it has no text, or a column of labels is asked for."""
        kind, section, loader = config.model.kind, feed.loader.text, feed.loader
        if section is None:
            raise ConfigError(
                f"{kind} learns text, and the dataset has no text",
                hint="Set loader.text.column, or train.model.kind to resnet or vit",
            )
        if config.model.label is not None:
            raise ConfigError(f"train.model.label: {kind} learns text, not labels")
        return cls(
            vocab_size=loader.vocab_size,
            eos_id=loader.eos_id,
            length=section.length,
            masked=section.masked,
            tokens_are_bytes=section.tokenizer == "bytes",
            positions=KINDS[kind].positions,
        )

    def check(self, config: Any) -> None:
        """Raise ConfigError if a model's vocabulary or positions are too few."""
        if config.vocab_size < self.vocab_size:
            raise ConfigError(
                f"train.model.config.vocab_size: {config.vocab_size} is below the loader's "
                f"{self.vocab_size}"
            )
        found = getattr(config, self.positions)
        if found < self.length:
            raise ConfigError(
                f"train.model.config.{self.positions}: {found} is below the loader's length of "
                f"{self.length}",
                hint="Raise it, or lower loader.text.length",
            )


@dataclass(frozen=True, slots=True)
class Causal:
    """Predict each next token from those before it.

    Sequences are padded on the right and attention is causal, so no mask is needed and the fused
    attention applies.
    """

    text: Text
    smoothing: float

    unit: ClassVar[str] = "tokens"

    @classmethod
    def of(cls, config: TrainConfig, feed: Feed) -> Causal:
        """Return the task over a feed of text that is not masked."""
        text = Text.of(config, feed)
        if text.masked:
            raise ConfigError(
                f"{config.model.kind} predicts next tokens, and the loader masks some",
                hint="Remove loader.text.masked, or set train.model.kind to bert",
            )
        return cls(text, config.label_smoothing)

    @property
    def targets_per_record(self) -> float:
        """Return the length of a sequence."""
        return self.text.length

    def defaults(self) -> dict[str, Any]:
        """Return the vocabulary and the token that ends a text."""
        end = self.text.eos_id
        return {"vocab_size": self.text.vocab_size, "bos_token_id": end, "eos_token_id": end}

    def check(self, config: Any) -> None:
        """Raise ConfigError if a model's vocabulary or positions are too few."""
        self.text.check(config)

    def example(self) -> dict[str, Tensor]:
        """Return a sequence of two tokens."""
        return {"input_ids": torch.zeros(1, 2, dtype=torch.int64)}

    def batch(self, raw: Mapping[str, Tensor]) -> Batch:
        """Return all rows; labels are not shifted."""
        real = raw["weight"] > 0
        labels = raw["labels"].masked_fill(~real[:, None], IGNORED)
        targets = int((labels[:, 1:] != IGNORED).sum())
        inputs = {"input_ids": raw["tokens"]}
        return Batch(inputs, labels, raw["sample"], int(real.sum()), targets, targets)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of next-token losses."""
        return _next_token_loss(model, batch, self.smoothing)

    def tally(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sums of loss, targets, and targets that are bytes."""
        loss, following = _next_token_loss(model, batch), batch.labels[:, 1:]
        n_bytes = ((following >= 0) & (following < BYTE_VALUES)).sum()
        return torch.stack([loss.double(), (following != IGNORED).sum().double(), n_bytes.double()])

    def report(self, sums: list[float]) -> dict[str, Any]:
        """Return loss (nats a token), bits_per_byte where tokens are bytes, and tokens.

        Bits per byte are all the bits of the text, ends of records included, over its bytes.
        """
        nll, tokens, n_bytes = sums
        bits = nll / math.log(2) / max(1.0, n_bytes)
        return {
            "loss": nll / max(1.0, tokens),
            **({"bits_per_byte": bits} if self.text.tokens_are_bytes else {}),
            "tokens": int(tokens),
        }


def _next_token_loss(model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    logits = model(**batch.inputs).logits.float()
    following = pad(batch.labels[:, 1:], (0, 1), value=IGNORED)
    return cross_entropy(logits, following, smoothing)


@dataclass(frozen=True, slots=True)
class Masked:
    """Predict the tokens that the loader chose and mostly hid (Devlin et al. 2019)."""

    text: Text
    smoothing: float

    unit: ClassVar[str] = "tokens"

    @classmethod
    def of(cls, config: TrainConfig, feed: Feed) -> Masked:
        """Return the task over a feed of masked text."""
        text = Text.of(config, feed)
        if not text.masked:
            raise ConfigError(
                f"{config.model.kind} predicts masked tokens, and the loader masks none",
                hint="Set loader.text.masked, such as 0.15, or train.model.kind to gpt2",
            )
        return cls(text, config.label_smoothing)

    @property
    def targets_per_record(self) -> float:
        """Return how many tokens of a full sequence are predicted on average."""
        return max(1.0, self.text.length * self.text.masked)

    def defaults(self) -> dict[str, Any]:
        """Return the vocabulary and the token that ends a text.

        There is no padding token: the attention mask hides padding, and the embedding of the token
        that fills it is learnt like all others.
        """
        return {
            "vocab_size": self.text.vocab_size,
            "pad_token_id": None,
            "eos_token_id": self.text.eos_id,
        }

    def check(self, config: Any) -> None:
        """Raise ConfigError if a model's vocabulary or positions are too few."""
        self.text.check(config)

    def example(self) -> dict[str, Tensor]:
        """Return a sequence of one token and one of padding."""
        tokens = torch.zeros(1, 2, dtype=torch.int64)
        return {"input_ids": tokens, "attention_mask": torch.tensor([[True, False]])}

    def batch(self, raw: Mapping[str, Tensor]) -> Batch:
        """Return the rows of real records; the attention mask where any of them is padded."""
        real = raw["weight"] > 0
        rows = rows_of(real)
        labels = raw["labels"].masked_fill(~real[:, None], IGNORED)[rows]
        seen = raw["attention_mask"][rows]
        volume = int(raw["attention_mask"][real].sum())
        inputs = {"input_ids": raw["tokens"][rows]}
        if not seen.all():
            inputs["attention_mask"] = seen
        targets = int((labels != IGNORED).sum())
        return Batch(inputs, labels, raw["sample"], int(real.sum()), targets, volume)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses of predicted tokens."""
        return cross_entropy(model(**batch.inputs).logits.float(), batch.labels, self.smoothing)

    def tally(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sums of loss, predicted tokens, and those predicted rightly."""
        logits = model(**batch.inputs).logits.float()
        right = (logits.argmax(-1) == batch.labels).sum()
        counts = torch.stack([(batch.labels != IGNORED).sum(), right])
        return torch.cat([cross_entropy(logits, batch.labels).double()[None], counts.double()])

    def report(self, sums: list[float]) -> dict[str, Any]:
        """Return loss (nats a predicted token), accuracy, and how many tokens were predicted."""
        nll, predicted, right = sums
        count = max(1.0, predicted)
        return {"loss": nll / count, "accuracy": right / count, "predicted": int(predicted)}
