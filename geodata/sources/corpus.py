"""What the kinds of source share: their files, the keys of their records, pieces of whole files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from geodata.sources.base import Piece, Reject
from geodata.sources.listing import Listing, SourceFile

MAX_RECORD = (1 << 31) - 1
"""Bytes of the longest record: the offsets of a column have 32 bits."""

TOO_LONG = "the record holds 2 GiB or more"
NOT_UTF8_NAME = "the file's name is not UTF-8"

_FILE_COST = 512
"""What opening a file costs, in bytes read: keeps pieces of tiny files bounded."""


class Corpus:
    """The files of one corpus. Its kinds derive from it; nothing is held open between calls."""

    kind: ClassVar[str]

    def __init__(self, listing: Listing, source_id: str):
        self.root = listing.root
        self.source_id = source_id
        self.files: Sequence[SourceFile] = listing.files
        self.ignored = listing.ignored
        self._single = listing.single

    def path(self, index: int) -> Path:
        """Return where the file `index` lies."""
        return self.root if self._single else self.root / self.files[index].name

    def shown(self, index: int) -> str:
        """Return the name of the file `index`, printable whatever its bytes."""
        return os.fsencode(self.files[index].name).decode(errors="backslashreplace")

    def key(self, index: int) -> str:
        """Return the start of the keys of the records in the file `index`."""
        return self.source_id if self._single else f"{self.source_id}/{self.files[index].name}"

    def named_in_utf8(self, index: int) -> bool:
        """Return whether keys can be made of the file's name."""
        return self._single or self.shown(index) == self.files[index].name

    def content(self, index: int) -> bytes | Reject:
        """Return the bytes of the file `index`, or why it cannot be a record."""
        try:
            if not self.named_in_utf8(index):
                return Reject(self.shown(index), None, NOT_UTF8_NAME, self.path(index).read_bytes())
            with self.path(index).open("rb") as file:
                data = file.read(MAX_RECORD)
        except OSError as error:
            return Reject(self.shown(index), None, unreadable(error))
        return Reject(self.shown(index), None, TOO_LONG) if len(data) == MAX_RECORD else data

    def whole_files(self, target_bytes: int) -> list[Piece]:
        """Return pieces of whole files, of about `target_bytes` each."""
        pieces, first, nbytes, cost = [], 0, 0, 0
        for index, file in enumerate(self.files):
            if cost and cost + file.nbytes > target_bytes:
                pieces.append(Piece(first, index - first, 0, 0, nbytes))
                first, nbytes, cost = index, 0, 0
            nbytes += file.nbytes
            cost += file.nbytes + _FILE_COST
        return [*pieces, Piece(first, len(self.files) - first, 0, 0, nbytes)]


def unreadable(error: OSError) -> str:
    """Return the reason of a rejected file that the system does not let us read."""
    return f"the file cannot be read: {error.strerror or type(error).__name__}"
