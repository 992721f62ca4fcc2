"""The number format of the forward pass, and the scale of a loss in fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from train.remote import ConfigError

SMALLEST_SCALE, LARGEST_SCALE = 1.0, 2.0**24

GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the scale is doubled."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(wanted: str, device: torch.device) -> str:
    """Return "fp32", "bf16" or "fp16": auto takes what a GPU computes in natively, bf16 first."""
    on_gpu = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_gpu else (0, 0)
    if wanted == "auto":
        return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"
    if wanted == "bf16" and on_gpu and capability < (8, 0):
        raise ConfigError(
            "train.precision: this GPU has no bf16", hint="Set train.precision to fp16 or fp32"
        )
    return wanted


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, _DTYPES[precision])


@dataclass(slots=True)
class LossScale:
    """By what a loss is multiplied so that its fp16 gradients neither overflow nor vanish.

    It doubles and halves as torch.amp.GradScaler's does (Micikevicius et al. 2018, section 3.2),
    within bounds, and in plain numbers: whether a step overflowed is known on all ranks before the
    optimizer would take it.
    """

    scale: float = 2.0**16
    good: int = 0
    """Steps since the scale changed or a step overflowed."""
    skipped: int = 0
    """Steps in a row that overflowed."""

    def update(self, finite: bool) -> None:
        """Take note of a step whose gradients were finite, or overflowed."""
        if not finite:
            self.scale = max(SMALLEST_SCALE, self.scale / 2)
            self.good, self.skipped = 0, self.skipped + 1
            return
        self.good, self.skipped = self.good + 1, 0
        if self.good == GROWTH_INTERVAL:
            self.scale, self.good = min(LARGEST_SCALE, self.scale * 2), 0

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return asdict(self)
