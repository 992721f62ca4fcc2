"""A store in a local folder (or one mounted over NFS)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from geodata.durable import TEMPORARY, create_exclusive, publish, replacing, storing, write_bytes
from geodata.errors import ObjectNotFound, StoreError
from geodata.stores.base import ObjectInfo


class LocalStore:
    """Objects are files below a folder."""

    exclusive = True

    def __init__(self, url: str):
        self._root = Path(url.removeprefix("file://"))
        self.url = str(self._root)

    def read(self, key: str) -> bytes:
        """Return an object's bytes."""
        with self._reading(key) as path:
            return path.read_bytes()

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object over a local path, which keeps its room while it is written.

        What the path cannot take (a full disk, say) is an OSError.
        """
        with self._reading(key) as source:
            file = source.open("rb")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        with file, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
            target.truncate()

    def local_path(self, key: str) -> Path:
        """Return the file itself."""
        return self._root / key

    def write(self, key: str, data: bytes) -> None:
        """Write an object, replacing an earlier one."""
        write_bytes(self._root / key, data)

    def put(self, key: str, path: Path) -> None:
        """Move a finished local file into the store, by rename where that is possible."""
        target = self._root / key
        with storing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                publish(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with replacing(target) as temporary:
                    shutil.copyfile(path, temporary)
                path.unlink()

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none under this key; return whether it was written."""
        return create_exclusive(self._root / key, data)

    def stat(self, key: str) -> ObjectInfo:
        """Return size and modification time."""
        with self._reading(key) as path:
            status = path.stat()
        return ObjectInfo(key, status.st_size, status.st_mtime)

    def list(self, prefix: str, unfinished: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix`, by key, or those left `unfinished`.

        What is unfinished lies in the folders where such objects are, under another name.
        """
        top = self._root / prefix
        if not prefix.endswith("/"):
            top = top.parent
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                key = path.relative_to(self._root).as_posix()
                if name.endswith(TEMPORARY) is unfinished and (
                    unfinished or key.startswith(prefix)
                ):
                    with contextlib.suppress(FileNotFoundError):
                        status = path.stat()
                        yield ObjectInfo(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        with storing(self._root / key), contextlib.suppress(FileNotFoundError):
            (self._root / key).unlink()

    @contextlib.contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self._root / key
        try:
            yield path
        except FileNotFoundError as error:
            raise ObjectNotFound("no such object", file=str(path)) from error
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot be read: {error.strerror}", file=str(path)) from error
