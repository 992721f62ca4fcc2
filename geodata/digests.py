"""Digests of what only this project checks: units of shards, and their content.

They are BLAKE3, which is several times as fast as SHA-256 and reads `blake3:<hex>`; without a
prefix a digest is SHA-256, as format version 1 had it. Files are named by SHA-256 always, so that
other tools and object stores can check them.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from blake3 import blake3

PREFIX = "blake3:"


class Hash(Protocol):
    """A hash in the making."""

    def update(self, data: memoryview, /) -> object:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the hash of all bytes so far."""


def new_hash(like: str = PREFIX) -> Hash:
    """Return an empty hash of the kind that the digest `like` is of."""
    made: Hash = blake3() if like.startswith(PREFIX) else hashlib.sha256()
    return made


def text_of(value: Hash, like: str = PREFIX) -> str:
    """Return a finished hash as a digest of the kind of `like`."""
    return (PREFIX if like.startswith(PREFIX) else "") + value.digest().hex()


def digest_of(data: bytes | memoryview, like: str = PREFIX) -> str:
    """Return the digest of some bytes, of the kind of `like`."""
    made = new_hash(like)
    made.update(memoryview(data))
    return text_of(made, like)


def hex_of(digest: str) -> str:
    """Return the hexadecimal digits of a digest."""
    return digest.removeprefix(PREFIX)
