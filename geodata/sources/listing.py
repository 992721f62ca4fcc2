"""The files of a corpus, listed the same way on every machine and at every time.

`walking` says what counts as a file. A zip archive is a folder of its name; its members have the
archive's modification time.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from geodata.errors import ConfigError
from geodata.sources import archives, compressed
from geodata.sources.archives import BROKEN, BrokenArchive, Member, members_of
from geodata.sources.encodings.declared import UTF8, checked_encoding, encoding_of_names
from geodata.sources.filelist import Entry, FileList
from geodata.sources.walking import walk

_PART = re.compile(r"-\d+-of-\d+$")
"""What follows the suffix of a file that is one of several: `.tfrecord-00000-of-00010`."""

_ARCHIVE = archives.SUFFIX.encode()
_MAY_BE_ARCHIVE = re.compile(re.escape(_ARCHIVE), re.IGNORECASE)
_ENDINGS = 4096
"""Endings of names whose suffixes are kept at hand."""


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
        if self.archives:
            whole = (entry[0] for entry in self.files.entries() if not _is_broken(entry))
            return Counter(map(suffix_of, whole))
        return suffixes_of(self.files.raw_names)

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
        found, what = FileList.of_runs(walk(os.fsencode(root), ignored)), "folder"
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


def suffixes_of(names: Callable[[], Iterable[bytes]]) -> Counter[str]:
    """Return how many names have each suffix, by their endings where these alone tell it."""
    endings = Counter(map(_ending, names()))
    tell = {end: suffix for end in endings if (suffix := _told_by(end)) is not None}
    found = Counter[str]()
    for end, suffix in tell.items():
        found[suffix] += endings[end]
    if len(tell) < len(endings):
        untold = (name for name in names() if _ending(name) not in tell)
        found.update(map(suffix_of, untold))
    return found


def _ending(name: bytes) -> bytes:
    """Return the last dot of a name, the byte before and what follows; without a dot, anything."""
    return name[name.rfind(b".") - 1 :]


def _told_by(end: bytes) -> str | None:
    """Return the suffix of all names that end so; None where the ending alone does not tell."""
    if end[1:2] != b"." or b"/" in end:
        return None
    suffix = _suffix(end[1:])
    return None if suffix in compressed.SUFFIXES else suffix


@lru_cache(_ENDINGS)
def _suffix(ending: bytes) -> str:
    """Return the suffix that begins with a dot, if anything follows it."""
    text = ending.lower().decode(errors="backslashreplace")
    return _PART.sub("", text) if len(ending) > 1 else ""
