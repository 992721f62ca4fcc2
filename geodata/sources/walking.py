"""The files below a folder, in the order of the bytes of their names.

Hidden files and folders are skipped; links to files are followed, links to folders never are, so
no cycle is possible. What is skipped is counted.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import compress, pairwise, zip_longest

from geodata.errors import ConfigError
from geodata.sources.filelist import Run

HIDDEN = "hidden"
FOLDER_LINK = "link to a folder"
SPECIAL = "not a regular file"

_Looked = tuple[int, int, int]
"""Mode, size and modification time in ns."""


def walk(root: bytes, ignored: Counter[str]) -> Iterator[Run]:
    """Yield the files below a folder by the folders they lie in, in order, and count the others."""
    waiting: list[bytes | Run] = [b""]
    while waiting:
        place = waiting.pop()
        if isinstance(place, bytes):
            waiting += reversed(_inside(root, place, ignored))
        else:
            yield place


def _inside(root: bytes, folder: bytes, ignored: Counter[str]) -> list[bytes | Run]:
    """Return what lies in a folder, in order: the folders, and between them the files, as runs."""
    path = root + b"/" + folder
    try:
        names, folders = _names(path, ignored)
        looked = _looked(path, names)
    except OSError as error:
        shown = os.fsdecode(path).encode(errors="backslashreplace").decode()
        raise ConfigError(f"the folder cannot be read: {error.strerror}", file=shown) from error
    if not all(map(stat.S_ISREG, (mode for mode, _, _ in looked))):
        looked = _regular(names, looked, ignored)
    if not names:
        return [folder + name for name in folders]
    _, sizes, mtimes = zip(*looked, strict=True)
    cuts = [bisect_left(names, name) for name in folders]
    found: list[bytes | Run] = []
    for (start, stop), name in zip_longest(pairwise([0, *cuts, len(names)]), folders):
        if start < stop:
            found.append((folder, names[start:stop], sizes[start:stop], mtimes[start:stop]))
        if name is not None:
            found.append(folder + name)
    return found


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


def _looked(path: bytes, names: list[bytes]) -> list[_Looked]:
    """Return what is told of each file of a folder.

    A link to nothing counts as a regular file, so that reading it can say what is wrong.
    """
    if not names:
        return []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = (os.stat(name, dir_fd=descriptor) for name in names)
        return [(status.st_mode, status.st_size, status.st_mtime_ns) for status in found]
    except OSError:
        return [_look(name, descriptor) for name in names]
    finally:
        os.close(descriptor)


def _look(name: bytes, folder: int) -> _Looked:
    try:
        status = os.stat(name, dir_fd=folder)
    except OSError:
        return stat.S_IFREG, 0, 0
    return status.st_mode, status.st_size, status.st_mtime_ns


def _regular(names: list[bytes], looked: list[_Looked], ignored: Counter[str]) -> list[_Looked]:
    """Keep, of the names too, the regular files; count the others."""
    kept = [stat.S_ISREG(mode) for mode, _, _ in looked]
    others = (mode for mode, _, _ in looked if not stat.S_ISREG(mode))
    ignored.update(FOLDER_LINK if stat.S_ISDIR(mode) else SPECIAL for mode in others)
    names[:] = compress(names, kept)
    return [*compress(looked, kept)]
