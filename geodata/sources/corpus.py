"""What the kinds of source share: their files, the keys of their records, pieces of whole files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from geodata.sources.base import Piece, Reject
from geodata.sources.batches import BATCH_BYTES, Unfit
from geodata.sources.listing import Listing, SourceFile

MAX_RECORD = (1 << 31) - 1
"""Bytes of the longest record: the offsets of a column have 32 bits."""

TOO_LONG = "the record holds 2 GiB or more"
NOT_UTF8_NAME = "the file's name is not UTF-8"

_FILE_COST = 512
"""What opening a file costs, in bytes read: keeps pieces of tiny files bounded."""


_Kept = TypeVar("_Kept")


class Corpus:
    """The files of one corpus. Its kinds derive from it; nothing is held open between calls."""

    kind: str

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

    def whole_files(self, target_bytes: int) -> list[Piece]:
        """Return pieces of whole files: small ones together, up to about `target_bytes`."""
        bounds, cost = [0], 0
        for index, file in enumerate(self.files):
            if cost and cost + file.nbytes > target_bytes:
                bounds.append(index)
                cost = 0
            cost += file.nbytes + _FILE_COST
        return [self._run(first, stop) for first, stop in pairwise([*bounds, len(self.files)])]

    def _run(self, first: int, stop: int) -> Piece:
        nbytes = sum(self.files[index].nbytes for index in range(first, stop))
        return Piece(first, stop - first, 0, nbytes if stop - first == 1 else 0, nbytes)

    def by_file(self, piece: Piece) -> Iterator[Piece]:
        """Yield the part of the piece that lies in each of its files."""
        if piece.files == 1:
            yield piece
        else:
            for index in range(piece.file, piece.file + piece.files):
                yield self._run(index, index + 1)

    def whole_records(
        self,
        piece: Piece,
        examine: Callable[[int, bytes], _Kept],
        reject: Callable[[Reject], None],
    ) -> Iterator[tuple[list[str], list[_Kept]]]:
        """Yield the keys and contents of the piece's files, about 8 MiB at a time.

        `examine(file, bytes)` returns what is kept of the bytes, or raises Unfit.
        """
        keys: list[str] = []
        kept: list[_Kept] = []
        nbytes = 0
        for index in range(piece.file, piece.file + piece.files):
            data = b""
            try:
                data = self._content(index)
                made = examine(index, data)
            except Unfit as error:
                reject(Reject(self.shown(index), None, str(error), data))
                continue
            if keys and nbytes + len(data) > BATCH_BYTES:
                yield keys, kept
                keys, kept, nbytes = [], [], 0
            keys.append(self.key(index))
            kept.append(made)
            nbytes += len(data)
        if keys:
            yield keys, kept

    def _content(self, index: int) -> bytes:
        """Return the bytes of a file; raise Unfit if it cannot be a record."""
        if not self.named_in_utf8(index):
            raise Unfit(NOT_UTF8_NAME)
        try:
            with self.path(index).open("rb") as file:
                data = file.read(MAX_RECORD)
        except OSError as error:
            raise Unfit(unreadable(error)) from error
        if len(data) == MAX_RECORD:
            raise Unfit(TOO_LONG)
        return data


def unreadable(error: OSError) -> str:
    """Return the reason of a rejected file that the system does not let us read."""
    return f"the file cannot be read: {error.strerror or type(error).__name__}"
