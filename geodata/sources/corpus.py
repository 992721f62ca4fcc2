"""What the kinds of source share: their files, the keys of their records, pieces of whole files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from geodata.sources.base import Piece, Reject
from geodata.sources.batches import BATCH_BYTES, Unfit
from geodata.sources.listing import FileList, Listing
from geodata.sources.options import AS_FOUND, Reading

MAX_RECORD = (1 << 31) - 1
"""Bytes of the longest record: the offsets of a column have 32 bits."""

TOO_LONG = "the record holds 2 GiB or more"
NOT_UTF8_NAME = "the file's name is not UTF-8"

_FILE_COST = 512
"""What opening a file costs, in bytes read: keeps pieces of tiny files bounded."""

_PAGE = 4096
"""Bytes read at once from a file that was empty when it was listed."""

_Kept = TypeVar("_Kept")


class Corpus:
    """The files of one corpus. Its kinds derive from it; nothing is held open between calls."""

    kind: str
    glances = False
    """Whether a scan reads no file."""

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        self.root = listing.root
        self.reading = reading
        self.source_id = source_id
        self.files: FileList = listing.files
        self.ignored = listing.ignored
        self._single = listing.single

    def path(self, index: int) -> Path:
        """Return where the file `index` lies."""
        return self.root if self._single else self.root / self.files.name(index)

    def shown(self, index: int) -> str:
        """Return the name of the file `index`, printable whatever its bytes."""
        return _printable(self.files.name(index))

    def key(self, index: int) -> str:
        """Return the start of the keys of the records in the file `index`."""
        return self._key_of(self.files.name(index))

    def named_in_utf8(self, index: int) -> bool:
        """Return whether keys can be made of the file's name."""
        return self._keyed(self.files.name(index))

    def whole_files(self, target_bytes: int) -> list[Piece]:
        """Return pieces of whole files: small ones together, up to about `target_bytes`."""
        bounds, cost = [0], 0
        for index in range(len(self.files)):
            nbytes = self.files.nbytes(index)
            if cost and cost + nbytes > target_bytes:
                bounds.append(index)
                cost = 0
            cost += nbytes + _FILE_COST
        return [self._run(first, stop) for first, stop in pairwise([*bounds, len(self.files)])]

    def _run(self, first: int, stop: int) -> Piece:
        nbytes = sum(map(self.files.nbytes, range(first, stop)))
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
        examine: Callable[[str, bytes], _Kept],
        reject: Callable[[Reject], None],
    ) -> Iterator[tuple[list[str], list[_Kept]]]:
        """Yield the keys and contents of the piece's files, about 8 MiB at a time.

        `examine(name, bytes)` returns what is kept of a file's bytes, or raises Unfit.
        """
        keys: list[str] = []
        kept: list[_Kept] = []
        nbytes = 0
        for index in range(piece.file, piece.file + piece.files):
            name, data = self.files.name(index), b""
            try:
                data = self._content(name, self.files.nbytes(index))
                made = examine(name, data)
            except Unfit as error:
                reject(Reject(_printable(name), None, str(error), data))
                continue
            if keys and nbytes + len(data) > BATCH_BYTES:
                yield keys, kept
                keys, kept, nbytes = [], [], 0
            keys.append(self._key_of(name))
            kept.append(made)
            nbytes += len(data)
        if keys:
            yield keys, kept

    def _key_of(self, name: str) -> str:
        return self.source_id if self._single else f"{self.source_id}/{name}"

    def _keyed(self, name: str) -> bool:
        return self._single or name.isascii() or _printable(name) == name

    def _content(self, name: str, nbytes: int) -> bytes:
        """Return the bytes of a file, about `nbytes`; raise Unfit if it cannot be a record."""
        if not self._keyed(name):
            raise Unfit(NOT_UTF8_NAME)
        try:
            data = _bytes_of(str(self.root) if self._single else f"{self.root}/{name}", nbytes)
        except OSError as error:
            raise Unfit(unreadable(error)) from error
        if len(data) >= MAX_RECORD:
            raise Unfit(TOO_LONG)
        return data


def _bytes_of(path: str, nbytes: int) -> bytes:
    """Return the bytes of a file of about `nbytes`, no more than it takes to be too long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, left = [], MAX_RECORD
        while part := os.read(descriptor, min(max(nbytes + 1, _PAGE), left)):
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")


def unreadable(error: OSError) -> str:
    """Return the reason of a rejected file that the system does not let us read."""
    return f"the file cannot be read: {error.strerror or type(error).__name__}"
