"""What a cache tier is: digest → local file, filled once however many ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(slots=True)
class CacheStats:
    """What one process asked of a tier, and what the tier holds."""

    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    """Not asked, or not taken in: no room, or left alone after a failure."""
    errors: int = 0
    bytes_served: int = 0
    bytes_filled: int = 0


class Cache(Protocol):
    """A tier whose entries are whole files under their SHA-256."""

    @property
    def stats(self) -> CacheStats:
        """Return what this process asked so far."""

    def require(self, largest: int) -> None:
        """Raise ConfigError if the tier could never hold a file of `largest` bytes."""

    def get(self, sha256: str, nbytes: int, fill: Callable[[Path], None]) -> Path | None:
        """Return the local file with that digest, filling it on a miss.

        `fill` writes the bytes to a path; many processes that ask at once make one call. The
        digest is checked when an entry is filled: CorruptShard if it does not match. None means
        that the tier cannot hold it (the disk is full, say) and the caller must do without.
        """

    def drop_if_damaged(self, sha256: str) -> bool:
        """Remove an entry that no longer matches its digest; return whether it did not."""
