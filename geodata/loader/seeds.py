"""Random numbers that belong to a sample: functions of (seed, epoch, sample), at any layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from geodata.order import UInt64s, hash64, splitmix64

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seeds:
    """The generators of a batch's samples in an epoch."""

    samples: Int64s
    seed: int
    epoch: int

    def bits(self, purpose: str) -> UInt64s:
        """Return 64 random bits per sample, others for each purpose."""
        state = hash64(purpose, self.seed, self.epoch)
        return splitmix64(self.samples.astype(np.uint64) ^ state)

    def uniform(self, purpose: str) -> Float64s:
        """Return a number in [0, 1) per sample."""
        return unit_interval(self.bits(purpose))

    def grid(self, purpose: str, width: int) -> UInt64s:
        """Return 64 random bits for each of `width` places of each sample, shape [B, width]."""
        places = np.arange(width, dtype=np.uint64) << np.uint64(32)
        return splitmix64(splitmix64(self.bits(purpose)[:, None] ^ places[None, :]))


def unit_interval(bits: UInt64s) -> Float64s:
    """Return the upper 53 bits as numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
