"""A bounded folder on a fast local disk.

    objects/ab/abcdef…   finished entries, under their digest; the mtime is the last use
    filling/abcdef…      an entry being written, of its full size from the start
    locks/NNN            a fixed set; who holds an entry's lock fills it
    used                 bytes held at most; counted anew when it says that there is no room

Locks are the kernel's (flock), so a killed process leaves none behind; what it was filling is
written anew by the next one that asks. The bound counts entries being filled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from geodata.cache.base import CacheStats
from geodata.durable import point, storing
from geodata.errors import ConfigError, CorruptShard

LOCKS = 256
UNABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.EAGAIN, errno.EWOULDBLOCK),
)
"""What keeps an entry out: no room, a folder that we may only read, another that fills for ever."""

PATIENCE = 600.0
"""Seconds to wait for another process that fills the same entry."""


class NvmeCache:
    """A folder of at most `size` bytes; the least recently used entries go first."""

    def __init__(self, folder: Path, size: int, patience: float = PATIENCE):
        self.folder, self.size, self.patience = folder, size, patience
        self.stats = CacheStats()
        with storing(folder):
            for name in ("objects", "filling", "locks"):
                (folder / name).mkdir(parents=True, exist_ok=True)

    def require(self, largest: int) -> None:
        """Raise ConfigError if the cache could never hold a file of `largest` bytes."""
        if largest > self.size:
            raise ConfigError(
                f"a cache of {self.size} bytes cannot hold a shard of {largest}",
                hint=f"Set cache.size to at least {largest}",
            )

    def get(self, sha256: str, nbytes: int, fill: Callable[[Path], None]) -> Path | None:
        """Return the local file with that digest, filling it on a miss; None if there is no room.

        Raises CorruptShard if what `fill` wrote does not match the digest.
        """
        self.require(nbytes)
        path = self._path(sha256)
        if self._use(path, nbytes):
            return path
        try:
            with self._locked(f"{int(sha256[:8], 16) % LOCKS:03}"):
                if self._use(path, nbytes):
                    return path
                self._fill(path, sha256, nbytes, fill)
        except OSError as error:
            if error.errno not in UNABLE:
                raise
            self.stats.bypassed += 1
            return None
        self.stats.misses += 1
        self.stats.bytes_filled += nbytes
        return path

    def drop_if_damaged(self, sha256: str) -> bool:
        """Remove an entry that no longer matches its digest; return whether it did not."""
        path = self._path(sha256)
        try:
            with path.open("rb") as file:
                damaged = hashlib.file_digest(file, "sha256").hexdigest() != sha256
        except FileNotFoundError:
            return False
        if damaged:
            path.unlink(missing_ok=True)
        return damaged

    def entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield finished and filling entries with their status."""
        for part in ("objects", "filling"):
            for folder, _folders, names in os.walk(self.folder / part):
                for name in names:
                    path = Path(folder) / name
                    with contextlib.suppress(FileNotFoundError):
                        yield path, path.stat()

    def _path(self, sha256: str) -> Path:
        return self.folder / "objects" / sha256[:2] / sha256

    def _use(self, path: Path, nbytes: int) -> bool:
        """Mark an entry as used; False if it is not there or has another size."""
        try:
            if path.stat().st_size != nbytes:
                path.unlink()
                return False
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # an entry of a folder that we may only read
            os.utime(path)
        self.stats.hits += 1
        self.stats.bytes_served += nbytes
        return True

    def _fill(self, path: Path, sha256: str, nbytes: int, fill: Callable[[Path], None]) -> None:
        """Write an entry beside the finished ones, check it, and move it among them."""
        filling = self.folder / "filling" / sha256
        try:
            self._reserve(filling, nbytes)
            point(f"fill {sha256}")
            fill(filling)
            with filling.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            if found != sha256:
                raise CorruptShard("a shard arrived with another digest", shard=sha256[:12])
            path.parent.mkdir(exist_ok=True)
            point(f"cached {sha256}")
            filling.replace(path)
        finally:
            filling.unlink(missing_ok=True)

    def _reserve(self, filling: Path, nbytes: int) -> None:
        """Make room for an entry and hold it: the file has its full size from the start."""
        with self._locked("evict"):
            used = self._noted()
            if used is None or used + nbytes > self.size:
                used = self._evict(nbytes, keep=filling)
            (self.folder / "used").write_text(str(used + nbytes))
            with filling.open("wb") as file:
                file.truncate(nbytes)

    def _noted(self) -> int | None:
        """Return the bytes held by the last count, what failed since included; None if unknown."""
        try:
            return int((self.folder / "used").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _evict(self, nbytes: int, keep: Path) -> int:
        """Remove least recently used entries until `nbytes` more fit; return the bytes held."""
        found = [(path, status) for path, status in self.entries() if path != keep]
        used = sum(status.st_size for _path, status in found)
        done = [item for item in found if item[0].parent.name != "filling"]
        for path, status in sorted(done, key=lambda item: item[1].st_mtime_ns):
            if used + nbytes <= self.size:
                return used
            path.unlink(missing_ok=True)
            used -= status.st_size
        used -= self._clear_abandoned(keep)
        if used + nbytes > self.size:
            raise OSError(errno.ENOSPC, "the cache is taken up by entries being filled")
        return used

    def _clear_abandoned(self, keep: Path) -> int:
        """Remove what killed processes were filling; return the bytes freed."""
        freed = 0
        for path in (self.folder / "filling").iterdir():
            if path == keep:
                continue
            name = f"{int(path.name[:8], 16) % LOCKS:03}"
            with (
                contextlib.suppress(BlockingIOError, FileNotFoundError),
                self._locked(name, wait=False),
            ):
                freed += path.stat().st_size
                path.unlink()
        return freed

    @staticmethod
    def _take(descriptor: int, seconds: float) -> None:
        """Take a lock; after `seconds` of waiting, BlockingIOError."""
        deadline, pause = time.monotonic() + seconds, 0.001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.2)

    @contextlib.contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[None]:
        descriptor = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._take(descriptor, self.patience if wait else 0)
            yield
        finally:
            os.close(descriptor)
