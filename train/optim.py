"""AdamW, warm-up and cosine, and the scaling and clipping of gradients in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from train.config import OptimizerSection, ScheduleSection


def build_optimizer(model: nn.Module, config: OptimizerSection) -> torch.optim.AdamW:
    """Return a fused AdamW that decays matrices only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def build_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleSection, total_steps: int
) -> LambdaLR:
    """Return the schedule of a run of `total_steps` optimizer steps."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        span = max(1, total_steps - config.warmup_steps)
        progress = min(1.0, (step - config.warmup_steps) / span)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine

    return LambdaLR(optimizer, factor)


def restore_schedule(schedule: LambdaLR, state: dict[str, object]) -> None:
    """Load a schedule's state and set the rates it gives for the run's present length."""
    schedule.load_state_dict(state)
    rates = [
        base * factor(schedule.last_epoch)
        for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the global norm of the gradients, a scalar tensor on their device."""
    return torch.nn.utils.get_total_norm(_gradients(parameters))


@torch.no_grad()
def scale_and_clip(
    parameters: Iterable[nn.Parameter], norm: float, scale: float, limit: float | None
) -> float:
    """Multiply gradients, whose global norm is `norm`, by `scale`, then clip them to `limit`.

    Returns the norm after scaling and before clipping; computed in fp32 throughout.
    """
    scales = torch.tensor(scale, dtype=torch.float32)
    scaled = torch.tensor(norm, dtype=torch.float32) * scales
    if limit is not None:
        scales = scales * torch.clamp(limit / (scaled + 1e-6), max=1.0)
    factor = scales.item()
    for gradient in _gradients(parameters):
        gradient.mul_(factor)
    return scaled.item()


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]
