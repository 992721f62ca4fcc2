"""Files that are whole or not there: temporary name, sync, rename; and the exclusive create.

Every step that a kill could fall between calls `point`, so a test can end the process at each of
them: `on_point` is a no-op unless a command line installs a fault.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from geodata.errors import StoreError

TEMPORARY = ".tmp"
"""Suffix of files that are not finished; they start with a dot."""


def _nothing(_name: str) -> None:
    return None


on_point: Callable[[str], None] = _nothing


def point(name: str) -> None:
    """Mark a moment between two durable steps."""
    on_point(name)


def kill_at(count: int) -> None:
    """Let this process be killed, as by a vanishing machine, at its `count`-th point."""
    global on_point  # noqa: PLW0603
    left = count

    def hook(_name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    on_point = hook


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success its file is synced and takes the place of `path`.

    On an error the temporary file is removed and `path` is as before. A full disk and the like
    are a StoreError naming the file.
    """
    temporary = temporary_beside(path)
    try:
        with storing(path):
            yield temporary
            publish(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def temporary_beside(path: Path) -> Path:
    """Return a fresh temporary path in the folder of `path`, which is made if needed."""
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")


def publish(temporary: Path, path: Path) -> None:
    """Sync `temporary` and rename it to `path`, in the same folder."""
    sync(temporary)
    point(f"rename {path.name}")
    temporary.replace(path)
    point(f"renamed {path.name}")
    sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole, replacing an earlier one."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def create_exclusive(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Create a file whole; return False, changing nothing, if `path` exists."""
    temporary = temporary_beside(path)
    try:
        with storing(path):
            temporary.touch(mode)
            temporary.write_bytes(data)
            sync(temporary)
            point(f"link {path.name}")
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            point(f"linked {path.name}")
            sync(path.parent)
            return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    point(f"sync {path.name}")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # folders on some network filesystems
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def syncing(path: Path) -> Iterator[None]:
    """Flush a finished file to the disk while the body reads it."""
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(sync, path)
        yield
        with storing(path):
            flushed.result()


@contextlib.contextmanager
def reading_kept(path: Path) -> Iterator[None]:
    """Turn what a damaged file raises, kept in a folder of a job's, into one StoreError."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        hint = f"Remove {path.parent.parent} and run the same command again"
        text = "what the job has kept is damaged, or gone"
        raise StoreError(text, file=str(path), hint=hint) from error


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a StoreError that names the file and what to do."""
    hints = {
        errno.ENOSPC: "The disk is full: make room and run the same command again",
        errno.EDQUOT: "The quota is used up: make room and run the same command again",
        errno.EROFS: "The filesystem is read-only",
        errno.EACCES: "Permission is denied",
    }
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        hint = hints.get(error.errno or 0)
        text = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(f"cannot write: {text}", file=str(path), hint=hint) from error
