"""The files below a folder, in the order of the bytes of their names.

Hidden files and folders are skipped; links to files are followed, links to folders never are, so
no cycle is possible. What is skipped is counted. Where each look takes long, as on a file server,
many files and folders are looked at side by side: nothing else differs.
"""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, pairwise, zip_longest
from types import TracebackType

from geodata.errors import ConfigError
from geodata.sources.filelist import Run

HIDDEN = "hidden"
FOLDER_LINK = "link to a folder"
SPECIAL = "not a regular file"

LONG, FEW = 5e-4, 64
"""Seconds that a look takes which is mostly waiting; and how many are too few to tell."""

_FILES_AT_ONCE, _FOLDERS_AT_ONCE = 32, 16
_RUN = 256
"""Files that one thread looks at, one after another."""

_Looked = tuple[int, int, int]
"""Mode, size and modification time in ns."""


@dataclass(slots=True)
class _Folder:
    """What lies in a folder, sorted: its files, what is told of each, and folders with a slash."""

    files: list[bytes]
    looked: list[_Looked]
    folders: list[bytes]
    ignored: Counter[str] = field(default_factory=Counter)

    def items(self, place: bytes) -> list[bytes | Run]:
        """Return the folders by their names below the root, and between them runs of files."""
        if not self.files:
            return [place + name for name in self.folders]
        _, sizes, mtimes = zip(*self.looked, strict=True)
        cuts = [bisect_left(self.files, name) for name in self.folders]
        found: list[bytes | Run] = []
        bounds = pairwise([0, *cuts, len(self.files)])
        for (start, stop), name in zip_longest(bounds, self.folders):
            if start < stop:
                run = slice(start, stop)
                found.append((place, self.files[run], sizes[run], mtimes[run]))
            if name is not None:
                found.append(place + name)
        return found

    def drop_others(self) -> None:
        """Keep the regular files; count the others."""
        kept = [stat.S_ISREG(mode) for mode, _, _ in self.looked]
        if not all(kept):
            others = (mode for mode, _, _ in self.looked if not stat.S_ISREG(mode))
            self.ignored.update(FOLDER_LINK if stat.S_ISDIR(m) else SPECIAL for m in others)
            self.files = [*compress(self.files, kept)]
            self.looked = [*compress(self.looked, kept)]


def walk(root: bytes, ignored: Counter[str]) -> Iterator[Run]:
    """Yield the files below a folder by the folders they lie in, in order, and count the others.

    Raises ConfigError for a folder that cannot be read.
    """
    waiting: list[bytes | Run] = [b""]
    with _Looks(root) as looks:
        while waiting:
            place = waiting.pop()
            if isinstance(place, bytes):
                found = looks.inside(place, waiting)
                ignored.update(found.ignored)
                waiting += reversed(found.items(place))
            else:
                yield place


class _Looks:
    """Looks into the folders below a root; side by side once looks were seen to take long."""

    def __init__(self, root: bytes):
        self._root = root
        self._looks, self._seconds, self._slow = 0, 0.0, False
        self._ahead: dict[bytes, Future[_Folder]] = {}
        self._of_files = ThreadPoolExecutor(_FILES_AT_ONCE, "files")
        self._of_folders = ThreadPoolExecutor(_FOLDERS_AT_ONCE, "folders")

    def __enter__(self) -> _Looks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._of_folders.shutdown(wait=True, cancel_futures=True)
        self._of_files.shutdown(wait=True, cancel_futures=True)

    def inside(self, place: bytes, waiting: Sequence[bytes | Run]) -> _Folder:
        """Return what lies in a folder; the last of those `waiting` are the next."""
        if self._slow:
            for after in waiting[: -_FOLDERS_AT_ONCE - 1 : -1]:
                if isinstance(after, bytes) and after not in self._ahead:
                    self._ahead[after] = self._of_folders.submit(self._inside, after)
        ahead = self._ahead.pop(place, None)
        return self._inside(place) if ahead is None else ahead.result()

    def _inside(self, place: bytes) -> _Folder:
        path, ignored = self._root + b"/" + place, Counter[str]()
        try:
            began = time.perf_counter()
            files, folders = _names(path, ignored)
            self._count(1 + len(files) + len(folders), began)
            found = _Folder(files, self._looked(path, files), folders, ignored)
        except OSError as error:
            shown = os.fsdecode(path).encode(errors="backslashreplace").decode()
            text = f"the folder cannot be read: {error.strerror}"
            raise ConfigError(text, file=shown) from error
        found.drop_others()
        return found

    def _looked(self, path: bytes, names: list[bytes]) -> list[_Looked]:
        if not names:
            return []
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            runs = iter([names[start : start + _RUN] for start in range(0, len(names), _RUN)])
            found: list[_Looked] = []
            while not self._slow and (run := next(runs, None)):
                began = time.perf_counter()
                found += _look_at(folder, run)
                self._count(len(run), began)
            return [*found, *chain(*self._of_files.map(partial(_look_at, folder), runs))]
        finally:
            os.close(folder)

    def _count(self, looks: int, began: float) -> None:
        """Count looks and the seconds they took, and see whether they take long."""
        self._looks += looks
        self._seconds += time.perf_counter() - began
        long = self._looks >= FEW and self._seconds > LONG * self._looks
        self._slow = self._slow or long


def _names(path: bytes, ignored: Counter[str]) -> tuple[list[bytes], list[bytes]]:
    """Return the sorted names of a folder's files, and of its folders, which end with a slash."""
    files, folders = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(b"."):
                ignored[HIDDEN] += 1
            elif entry.is_dir(follow_symlinks=False):
                folders.append(name + b"/")
            else:
                files.append(name)
    return sorted(files), sorted(folders)


def _look_at(folder: int, names: list[bytes]) -> list[_Looked]:
    """Return what is told of each file of a folder."""
    try:
        found = (os.stat(name, dir_fd=folder) for name in names)
        return [(status.st_mode, status.st_size, status.st_mtime_ns) for status in found]
    except OSError:
        return [_look(folder, name) for name in names]


def _look(folder: int, name: bytes) -> _Looked:
    """Return what is told of a file; a link to nothing is one: reading it says what is wrong."""
    try:
        status = os.stat(name, dir_fd=folder)
    except OSError:
        return stat.S_IFREG, 0, 0
    return status.st_mode, status.st_size, status.st_mtime_ns
