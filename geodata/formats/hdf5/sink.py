"""The file that HDF5 writes to, whatever becomes of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Sink:
    """The file under HDF5, which would not survive an error of its file and so meets none.

    The first error is kept for `check`; from then on nothing is written.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._at = 0
        self._ended = False
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raise what went wrong since the file was opened; once, or it would refer to itself."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure
        if self._ended:
            raise ValueError("the shard was given up")

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)

    def end(self) -> None:
        """Write nothing more."""
        self._ended = True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset`, as HDF5 asks for."""
        end = os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0
        self._at = end + offset
        return self._at

    def tell(self) -> int:
        """Return where the next bytes go."""
        return self._at

    def write(self, data: memoryview) -> int:
        """Write all of `data`."""
        with self._kept():
            left = memoryview(data)
            while left and not self._ended:
                written = os.pwrite(self._descriptor, left, self._at)
                self._at, left = self._at + written, left[written:]
        return len(data)

    def readinto(self, data: memoryview) -> int:
        """Read back what was written, and zeros after it."""
        count = 0
        with self._kept():
            count = os.preadv(self._descriptor, [data], self._at)
        memoryview(data).cast("B")[count:] = bytes(len(data) - count)
        return len(data)

    def holds(self, offset: int, data: bytes) -> bool:
        """Return whether these bytes stand there."""
        with self._kept():
            return os.pread(self._descriptor, len(data), offset) == data
        return False

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        with self._kept():
            if not self._ended:
                os.ftruncate(self._descriptor, size)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure, self._ended = self._failure or error, True
