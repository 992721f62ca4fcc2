"""Files that are whole or not there: temporary name, sync, rename; and a lock.

Every step that a kill could fall between calls `point`. `on_point` does nothing unless a test
replaces it, for instance to end the process at the n-th point or to play a full disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

on_point: Callable[[str], None] = lambda _name: None  # noqa: E731


def point(name: str) -> None:
    """Mark a moment between two durable steps."""
    on_point(name)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    point(f"sync {path.name}")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a synced file or folder within its filesystem and sync the target's parent."""
    point(f"rename {target.name}")
    source.replace(target)
    point(f"renamed {target.name}")
    sync(target.parent)


def write(path: Path, data: bytes) -> None:
    """Write a file whole, replacing an earlier one."""
    temporary = path.with_name(f".{path.name}.tmp")
    point(f"write {path.name}")
    temporary.write_bytes(data)
    sync(temporary)
    rename(temporary, path)


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock file at `path` while this process lives; yield whether no other holds it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
