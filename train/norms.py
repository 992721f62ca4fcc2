"""What may stand in place of a model's batch normalisation.

    batch    as it is: statistics of the records that a rank has in a micro-batch
    frozen   statistics and factors stay as they were built
    group    groups of channels of one image (Wu and He 2018): no record sees another

Only with `batch` does the loss depend on how a batch is split over ranks and micro-batches.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import batch_norm

MAX_GROUPS = 32


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation that takes the running statistics for a single image.

    So a rank without a record can run an image that is none, and no statistics see it.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images [B, C, H, W]."""
        if self.training and len(images) < 2:
            return _fixed(self, images)
        return super().forward(images)


class FrozenBatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics and factors never change."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images [B, C, H, W]."""
        return _fixed(self, images)


def _fixed(norm: nn.BatchNorm2d, images: Tensor) -> Tensor:
    return batch_norm(
        images, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
    )


def set_norm(model: nn.Module, norm: str) -> None:
    """Replace every BatchNorm2d of a model, keeping its weights where they have a meaning."""
    make = {"batch": _batch, "frozen": _frozen, "group": _group}[norm]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, make(child))


def statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics that training changes."""
    return [
        buffer
        for module in model.modules()
        if isinstance(module, BatchNorm)
        for buffer in module.buffers()
    ]


def groups(channels: int) -> int:
    """Return the largest divisor of the channels up to 32 that leaves a group two of them.

    A group of one channel could be of one value, where the map is a single point: always 0.
    """
    most = min(MAX_GROUPS, max(1, channels // 2))
    return max(count for count in range(1, most + 1) if channels % count == 0)


def _batch(norm: nn.BatchNorm2d) -> nn.Module:
    made = BatchNorm(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    made.load_state_dict(norm.state_dict())
    return made


def _frozen(norm: nn.BatchNorm2d) -> nn.Module:
    made = FrozenBatchNorm(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    made.load_state_dict(norm.state_dict())
    return made.requires_grad_(False)


def _group(norm: nn.BatchNorm2d) -> nn.Module:
    return nn.GroupNorm(groups(norm.num_features), norm.num_features, eps=norm.eps)
