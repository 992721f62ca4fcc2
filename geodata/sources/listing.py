"""The files of a corpus, listed the same way on every machine and at every time.

Order is that of the names' bytes. Hidden files and folders are skipped; links to files are
followed, links to folders never are, so no cycle is possible. What is skipped is counted.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import overload

from geodata.errors import ConfigError

HIDDEN = "hidden"
FOLDER_LINK = "link to a folder"
SPECIAL = "not a regular file"

_Entry = tuple[bytes, int, int]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the corpus: its name below the source's root, its size and modification time.

    Bytes of the name that are not UTF-8 are surrogates, as in `os.fsdecode`.
    """

    name: str
    nbytes: int
    mtime_ns: int


class FileList(Sequence[SourceFile]):
    """Files in order, kept in four arrays: millions stay small and travel fast."""

    def __init__(self, entries: Iterable[_Entry]):
        """Take (name, size, modification time) in any order."""
        rows = sorted(entries)
        self._names = b"".join(name for name, _, _ in rows)
        self._bounds = array("q", [0, *accumulate(len(name) for name, _, _ in rows)])
        self._sizes = array("q", [size for _, size, _ in rows])
        self._mtimes = array("q", [mtime for _, _, mtime in rows])

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[SourceFile]:
        return (SourceFile(os.fsdecode(name), *rest) for name, *rest in self.entries())

    @overload
    def __getitem__(self, index: int) -> SourceFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SourceFile]: ...
    def __getitem__(self, index: int | slice) -> SourceFile | Sequence[SourceFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return SourceFile(self.name(place), self._sizes[place], self._mtimes[place])

    def name(self, index: int) -> str:
        """Return the name of the file `index`, which is not negative."""
        return os.fsdecode(self._names[self._bounds[index] : self._bounds[index + 1]])

    def nbytes(self, index: int) -> int:
        """Return the size of the file `index`."""
        return self._sizes[index]

    def names(self) -> Iterator[str]:
        """Yield the name of each file."""
        return map(self.name, range(len(self)))

    def entries(self) -> Iterator[_Entry]:
        """Yield (name, size, modification time) of each file."""
        names = (self._names[start:stop] for start, stop in pairwise(self._bounds))
        return zip(names, self._sizes, self._mtimes, strict=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies at a path: one file, or the files of a folder and what was skipped, by suffix."""

    root: Path
    files: FileList
    ignored: dict[str, int]
    single: bool

    def suffixes(self) -> Counter[str]:
        """Return how many files have each suffix, in small letters; "" is none."""
        return Counter(suffix_of(name) for name, _, _ in self.files.entries())

    def only(self, suffixes: Collection[str]) -> Listing:
        """Return the listing of the files with one of these suffixes; the others are ignored."""
        kept = [entry for entry in self.files.entries() if suffix_of(entry[0]) in suffixes]
        ignored = Counter(self.ignored)
        for suffix, count in self.suffixes().items():
            if suffix not in suffixes:
                ignored[suffix or "no suffix"] += count
        return Listing(self.root, FileList(kept), dict(ignored), self.single)


def list_files(root: Path) -> Listing:
    """List the file at `root`, or all files below it.

    Raises ConfigError where nothing is there, no file is there, or a folder cannot be read.
    """
    try:
        status = root.stat()
    except OSError as error:
        raise ConfigError(f"no corpus: {error.strerror}", file=str(root)) from error
    if stat.S_ISREG(status.st_mode):
        alone = FileList([(os.fsencode(root.name), status.st_size, status.st_mtime_ns)])
        return Listing(root, alone, {}, single=True)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError("neither a file nor a folder", file=str(root))
    ignored: Counter[str] = Counter()
    files = FileList(_walk(os.fsencode(root), ignored))
    if not files:
        skipped = ", ".join(f"{count} {what}" for what, count in ignored.items())
        raise ConfigError("the folder holds no file", file=str(root), hint=skipped or None)
    return Listing(root, files, dict(ignored), single=False)


def suffix_of(name: bytes) -> str:
    """Return the suffix of a path in small letters, with its dot; "" where there is none."""
    stem, dot, suffix = name.rpartition(b"/")[2].rpartition(b".")
    return (dot + suffix).lower().decode(errors="backslashreplace") if stem and suffix else ""


def _walk(root: bytes, ignored: Counter[str]) -> Iterator[_Entry]:
    folders = [b""]
    while folders:
        folder = folders.pop()
        for entry in _entries(root, folder):
            name = folder + entry.name
            what, size, mtime = _look(entry)
            if what == "folder":
                folders.append(name + b"/")
            elif what == "file":
                yield name, size, mtime
            else:
                ignored[what] += 1


def _entries(root: bytes, folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(root + b"/" + folder) as entries:
            return list(entries)
    except OSError as error:
        path = os.fsdecode(root + b"/" + folder).encode(errors="backslashreplace").decode()
        raise ConfigError(f"the folder cannot be read: {error.strerror}", file=path) from error


def _look(entry: os.DirEntry[bytes]) -> tuple[str, int, int]:
    """Return "file", "folder" or why the entry is skipped; size and modification time.

    A link to nothing counts as a file, so that reading it can say what is wrong.
    """
    if entry.name.startswith(b"."):
        return HIDDEN, 0, 0
    if entry.is_dir(follow_symlinks=False):
        return "folder", 0, 0
    try:
        status = entry.stat()
    except OSError:
        return "file", 0, 0
    if stat.S_ISDIR(status.st_mode):
        return FOLDER_LINK, 0, 0
    if not stat.S_ISREG(status.st_mode):
        return SPECIAL, 0, 0
    return "file", status.st_size, status.st_mtime_ns
