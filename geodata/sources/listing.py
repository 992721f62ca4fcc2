"""The files of a corpus, listed the same way on every machine and at every time.

Order is that of the names' bytes. Hidden files and folders are skipped; links to files are
followed, links to folders never are, so no cycle is possible. What is skipped is counted. A zip
archive is a folder of its name; its members have the archive's modification time.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import overload

from geodata.errors import ConfigError
from geodata.sources import archives, compressed
from geodata.sources.archives import BROKEN, BrokenArchive, Member, members_of
from geodata.sources.encodings.declared import UTF8, checked_encoding, encoding_of_names

HIDDEN = "hidden"
FOLDER_LINK = "link to a folder"
SPECIAL = "not a regular file"

_PART = re.compile(r"-\d+-of-\d+$")
"""What follows the suffix of a file that is one of several: `.tfrecord-00000-of-00010`."""

Entry = tuple[bytes, int, int] | tuple[bytes, int, int, Member]
"""Name, size, modification time, and where it lies if that is in an archive."""


_NOWHERE = Member(-1, 0, 0, 0, 0)
"""The place of a file that lies in no archive."""

_NAMES = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""How names are decoded: what `os.fsdecode` does, without its questions."""

_ARCHIVE = archives.SUFFIX.encode()
_MAY_BE_ARCHIVE = re.compile(re.escape(_ARCHIVE), re.IGNORECASE)
_RUN = 4096
"""Files that are taken at once."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the corpus: its name below the source's root, its size and modification time.

    Bytes of the name that are not UTF-8 are surrogates, as in `os.fsdecode`.
    """

    name: str
    nbytes: int
    mtime_ns: int


class FileList(Sequence[SourceFile]):
    """Files in order, kept in a few arrays: millions stay small and travel fast."""

    def __init__(self, entries: Iterable[Entry], *, ordered: bool = False):
        """Take them in any order; one after another where they are `ordered` already."""
        packed, places = bytearray(), _Places()
        self._bounds, self._sizes, self._mtimes = array("q", [0]), array("q"), array("q")
        coming = iter(entries if ordered else sorted(entries))
        while run := list(islice(coming, _RUN)):
            names, sizes, mtimes = zip(*(entry[:3] for entry in run), strict=True)
            lengths = accumulate(map(len, names), initial=len(packed))
            self._bounds.extend(islice(lengths, 1, None))
            packed += b"".join(names)
            self._sizes.extend(sizes)
            self._mtimes.extend(mtimes)
            places.extend(run)
        self._names = bytes(packed)
        self._places = places.columns

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[SourceFile]:
        return (self[index] for index in range(len(self)))

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
        return str(self._names[self._bounds[index] : self._bounds[index + 1]], *_NAMES)

    def nbytes(self, index: int) -> int:
        """Return the size of the file `index`."""
        return self._sizes[index]

    def mtime_ns(self, index: int) -> int:
        """Return the modification time of the file `index`, or of its archive."""
        return self._mtimes[index]

    def member(self, index: int) -> Member | None:
        """Return where the file `index` lies in an archive; None if it is a file of its own."""
        if self._places is None or self._places[0][index] < 0:
            return None
        return Member(*(column[index] for column in self._places))

    def may_name(self, pattern: re.Pattern[bytes]) -> bool:
        """Return whether a pattern is found in any name, or across two: a quick first look."""
        return pattern.search(self._names) is not None

    def names(self) -> Iterator[str]:
        """Yield the name of each file."""
        return map(self.name, range(len(self)))

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Yield name, size, modification time of the files [start, stop) (all, if none are said).

        With them comes the place of a file in an archive, if it has one.
        """
        stop = len(self) if stop is None else stop
        bounds = pairwise(memoryview(self._bounds)[start : stop + 1])
        names = (self._names[begin:end] for begin, end in bounds)
        numbers = (memoryview(column)[start:stop] for column in (self._sizes, self._mtimes))
        plain = zip(names, *numbers, strict=True)
        if self._places is None:
            yield from plain
            return
        for index, entry in enumerate(plain, start):
            member = self.member(index)
            yield entry if member is None else (*entry, member)


class _Places:
    """The places of files in archives, field by field; archive -1 is none, None: all are none."""

    def __init__(self) -> None:
        self.columns: list[array[int]] | None = None
        self._outside = 0

    def extend(self, entries: Sequence[Entry]) -> None:
        """Take the places of the next files."""
        members = [entry[3] if len(entry) > 3 else _NOWHERE for entry in entries]
        if self.columns is None:
            if all(member is _NOWHERE for member in members):
                self._outside += len(members)
                return
            fields = zip("iqqIHB", _NOWHERE, strict=True)
            self.columns = [array(code, [value]) * self._outside for code, value in fields]
        for column, values in zip(self.columns, zip(*members, strict=True), strict=True):
            column.extend(values)


@dataclass(frozen=True)
class Listing:
    """What lies at a path: one file, or the files of a folder and what was skipped, by suffix.

    `archives` are the names of the zip archives below the root whose members are among the files;
    "" is the root itself.
    """

    root: Path
    files: FileList
    ignored: dict[str, int]
    single: bool
    archives: tuple[str, ...] = ()

    def suffixes(self) -> Counter[str]:
        """Return how many files have each suffix, in small letters; "" is none.

        Broken archives do not count.
        """
        return Counter(self._by_suffix)

    @cached_property
    def _by_suffix(self) -> Counter[str]:
        return Counter(suffix_of(e[0]) for e in self.files.entries() if not _is_broken(e))

    def only(self, suffixes: Collection[str]) -> Listing:
        """Return the listing of the files with one of these suffixes; the others are ignored.

        A broken archive stays, since it may hold such files.
        """
        others = {name: count for name, count in self.suffixes().items() if name not in suffixes}
        if not others:
            return self
        ignored = Counter(self.ignored)
        ignored.update({name or "no suffix": count for name, count in others.items()})
        kept = (e for e in self.files.entries() if suffix_of(e[0]) in suffixes or _is_broken(e))
        return replace(self, files=FileList(kept, ordered=True), ignored=dict(ignored))

    def without_archives(self) -> Listing:
        """Return the listing of the files that lie in no archive; the archives are ignored."""
        if not self.archives:
            return self
        kept = (entry for entry in self.files.entries() if len(entry) == 3)
        ignored = Counter(self.ignored)
        ignored[archives.SUFFIX] += len(self.archives)
        files = FileList(kept, ordered=True)
        return replace(self, files=files, ignored=dict(ignored), archives=())


def _is_broken(entry: Entry) -> bool:
    """Return whether an entry stands for all of an archive that cannot be read."""
    return len(entry) > 3 and entry[3] == _broken(entry[3].archive)


def _broken(archive: int) -> Member:
    return Member(archive, 0, 0, 0, 0, BROKEN)


def list_files(root: Path, encoding: str = UTF8) -> Listing:
    """List the file at `root`, or all files below it, or in it if it is a zip archive.

    Names in archives that are not UTF-8 are decoded by `encoding`, if it is another. Raises
    ConfigError where nothing is there, no file is there, or a folder or archive cannot be read.
    """
    try:
        status = root.stat()
    except OSError as error:
        raise ConfigError(f"no corpus: {error.strerror}", file=str(root)) from error
    name, ignored = os.fsencode(root.name), Counter[str]()
    if stat.S_ISREG(status.st_mode):
        if not _is_archive(name):
            alone = FileList([(name, status.st_size, status.st_mtime_ns)])
            return Listing(root, alone, {}, single=True)
        found, what = FileList([(b"", status.st_size, status.st_mtime_ns)]), "archive"
    elif stat.S_ISDIR(status.st_mode):
        found, what = FileList(_walk(os.fsencode(root), ignored), ordered=True), "folder"
    else:
        raise ConfigError("neither a file nor a folder", file=str(root))
    names = encoding_of_names(checked_encoding(encoding))
    listing = _with_members(root, found, ignored, names)
    if not listing.files:
        skipped = ", ".join(f"{count} {what}" for what, count in ignored.items())
        raise ConfigError(f"the {what} holds no file", file=str(root), hint=skipped or None)
    if all(map(_is_broken, listing.files.entries())):
        raise ConfigError(
            "the zip archive is truncated or damaged: it has no directory that can be read",
            file=str(root),
            hint="Fetch it again",
        )
    return listing


def _with_members(
    root: Path, found: FileList, ignored: Counter[str], encoding: str | None
) -> Listing:
    """Return the listing in which the members of archives stand for them."""
    may_be = found.may_name(_MAY_BE_ARCHIVE) or len(found) == 1
    if not (may_be and any(_is_archive(entry[0] or _ARCHIVE) for entry in found.entries())):
        return Listing(root, found, dict(ignored), single=False)
    files: list[Entry] = []
    names: list[str] = []
    for entry in found.entries():
        if entry[0] and not _is_archive(entry[0]):
            files.append(entry)
            continue
        path = os.fsencode(root) + (b"/" + entry[0] if entry[0] else b"")
        start = entry[0] + b"/" if entry[0] else b""
        try:
            for name, nbytes, member in members_of(path, len(names), encoding, ignored):
                files.append((start + name, nbytes, entry[2], member))
        except (BrokenArchive, OSError):
            files.append((*entry[:3], _broken(len(names))))
        names.append(os.fsdecode(entry[0]))
    return Listing(root, FileList(files), dict(ignored), False, tuple(names))


def _is_archive(name: bytes) -> bool:
    return name[-len(_ARCHIVE) :].lower() == _ARCHIVE


def suffix_of(name: bytes) -> str:
    """Return the suffix of a path in small letters, with its dot; "" where there is none.

    One of compression goes with the one before it: `.jsonl.gz`.
    """
    second = name.rfind(b"/") + 2  # the first byte is the stem's
    dot = name.rfind(b".", second)
    if dot < 0:
        return ""
    suffix = _suffix(name[dot:])
    if suffix in compressed.SUFFIXES:
        before = name.rfind(b".", second, dot)
        return (_suffix(name[before:dot]) if before >= 0 else "") + suffix
    return suffix


@lru_cache(_RUN)
def _suffix(ending: bytes) -> str:
    """Return the suffix that begins with a dot, if anything follows it."""
    text = ending.lower().decode(errors="backslashreplace")
    return _PART.sub("", text) if len(ending) > 1 else ""


def _walk(root: bytes, ignored: Counter[str]) -> Iterator[Entry]:
    """Yield the files below a folder, in the order of the bytes of their names."""
    waiting: list[tuple[bytes, int, int]] = [(b"", 0, 0)]
    while waiting:
        place, size, mtime = waiting.pop()
        if place and not place.endswith(b"/"):
            yield place, size, mtime
            continue
        inside, has_folders = [], False
        for entry in _entries(root, place):
            what, size, mtime = _look(entry)
            if what == "file":
                inside.append((place + entry.name, size, mtime))
            elif what == "folder":
                inside.append((place + entry.name + b"/", size, mtime))
                has_folders = True
            else:
                ignored[what] += 1
        inside.sort()
        if has_folders:
            waiting += reversed(inside)
        else:
            yield from inside


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
    if not stat.S_ISREG(status.st_mode):
        return (FOLDER_LINK if stat.S_ISDIR(status.st_mode) else SPECIAL), 0, 0
    return "file", status.st_size, status.st_mtime_ns
