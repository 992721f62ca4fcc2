"""The files of a source, one after another: there may be millions, so they are never all at once.

A list that is kept in a job's folder has `<bytes> <mtime in ns> <name>` for each file, and a NUL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, starmap, zip_longest
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import BinaryIO

from geodata.durable import replacing
from geodata.sources.base import Source
from geodata.sources.filelist import FileList, SourceFile

Entry = tuple[bytes, int, int]
"""Name, bytes, modification time in ns."""

_READ_BYTES = 1 << 20
_RUN = 4096
"""Files that are taken at once."""


def entries_of(files: Sequence[SourceFile], numbers: range | None = None) -> Iterator[Entry]:
    """Yield the files of a source, or those of some numbers, one after another."""
    numbers = range(len(files)) if numbers is None else numbers
    if isinstance(files, FileList):
        return (entry[:3] for entry in files.entries(numbers.start, numbers.stop))
    chosen = map(files.__getitem__, numbers)
    return ((os.fsencode(file.name), file.nbytes, file.mtime_ns) for file in chosen)


class Listed:
    """The files of a source as they were found; `digest` is over names, sizes and times."""

    def __init__(self, source: Source):
        self._source = source
        self._parts: dict[range, str] = {}
        digest, self.nbytes, self.count = hashlib.sha256(), 0, 0
        entries = self._entries()
        while run := list(islice(entries, _RUN)):
            digest.update(b"".join(_lines(run)))
            self.nbytes += sum(size for _, size, _ in run)
            self.count += len(run)
        self.digest = digest.hexdigest()

    def _entries(self) -> Iterator[Entry]:
        return entries_of(self._source.files)

    def _packed(self) -> Iterator[bytes]:
        return _lines(self._entries())

    def lines(self) -> Iterator[bytes]:
        """Yield a line of JSON for each file, some lines at once."""
        return _together(starmap(_told, self._entries()))

    def part(self, numbers: range) -> str:
        """Return the digest of names, sizes and times of some files."""
        if numbers not in self._parts:
            lines = _lines(entries_of(self._source.files, numbers))
            self._parts[numbers] = hashlib.sha256(b"".join(lines)).hexdigest()
        return self._parts[numbers]

    def write(self, path: Path) -> None:
        """Keep the list, for `difference`."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.writelines(_together(self._packed()))

    def difference(self, path: Path) -> str:
        """Return the first file that is not as it stands in a list that was kept."""
        try:
            with path.open("rb") as file:
                for before, now in zip_longest(_split(file), self._packed()):
                    if before != now:
                        names = [_name(line) for line in (before, now) if line is not None]
                        return min(names).decode(errors="backslashreplace")
        except FileNotFoundError:
            pass
        return "its files"


def _told(name: bytes, size: int, mtime: int) -> bytes:
    told = encode_basestring_ascii(os.fsdecode(name))
    return f'{{"name": {told}, "nbytes": {size}, "mtime_ns": {mtime}}}\n'.encode()


def _together(lines: Iterator[bytes]) -> Iterator[bytes]:
    while run := b"".join(islice(lines, _RUN)):
        yield run


def _lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    return (b"%d %d %b\0" % (size, mtime, name) for name, size, mtime in entries)


def _split(file: BinaryIO) -> Iterator[bytes]:
    """Yield what ends with a NUL."""
    left = b""
    while data := file.read(_READ_BYTES):
        *whole, left = (left + data).split(b"\0")
        for line in whole:
            yield line + b"\0"


def _name(line: bytes) -> bytes:
    return line.split(b" ", 2)[2][:-1]
