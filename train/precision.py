"""The number format of the forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from train.remote import ConfigError


def resolve(wanted: str, device: torch.device) -> str:
    """Return "fp32" or "bf16": auto takes bf16 on a GPU that computes in it natively."""
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if wanted == "auto":
        return "bf16" if native else "fp32"
    if wanted == "bf16" and device.type == "cuda" and not native:
        raise ConfigError(
            "train.precision: this GPU has no bf16", hint="Set train.precision to fp32"
        )
    return wanted


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
