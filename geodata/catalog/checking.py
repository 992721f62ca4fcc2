"""Compares local files of a shard, and parts of them, with what its manifest promises."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from geodata.digests import new_hash, text_of
from geodata.errors import CorruptShard, ObjectNotFound
from geodata.manifest import FileRef, Piece, Units

DAMAGED = "geodata verify tells what is damaged"
_CHUNK_BYTES = 1 << 20


def check_size(path: Path, ref: FileRef, about: str) -> None:
    """Refuse a file that is gone, or of another size than that of the shard `about`."""
    try:
        nbytes = path.stat().st_size
    except FileNotFoundError:
        raise ObjectNotFound("a shard's file is missing", shard=about, file=ref.path) from None
    if nbytes != ref.nbytes:
        text = f"a file has {nbytes} bytes, not {ref.nbytes}"
        raise CorruptShard(text, shard=about, file=ref.path, hint=DAMAGED)


def check_digest(path: Path, ref: FileRef, about: str) -> None:
    """Refuse a file whose bytes are not those of the shard `about`; it is read whole."""
    check_size(path, ref, about)
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != ref.sha256:
            text = "a file does not match its digest"
            raise CorruptShard(text, shard=about, file=ref.path, hint=DAMAGED)


@dataclass(frozen=True, slots=True)
class PieceChecks:
    """A file of records, whose pieces are compared with the digests of its sidecar."""

    path: Path
    ref: FileRef
    about: str
    units: Units

    def check_frame(self) -> None:
        """Refuse a file in which what lies around the units, a footer say, is another's."""
        self._check(self.units.frame, "a file's frame does not match its digest")

    def check_unit(self, unit: int) -> None:
        """Refuse a unit whose bytes are others."""
        self._check([self.units.units[unit]], f"unit {unit} does not match its digest")

    def _check(self, pieces: Sequence[Piece], text: str) -> None:
        with self.path.open("rb") as file:
            if any(_digest_at(file, piece) != piece.digest for piece in pieces):
                raise CorruptShard(text, shard=self.about, file=self.ref.path, hint=DAMAGED)


def _digest_at(file: BinaryIO, piece: Piece) -> str:
    """Return the digest of the bytes that lie where a piece should be."""
    made, left = new_hash(piece.digest), piece.length
    file.seek(piece.offset)
    while left and (data := file.read(min(left, _CHUNK_BYTES))):
        made.update(memoryview(data))
        left -= len(data)
    return text_of(made, piece.digest)
