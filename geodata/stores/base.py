"""Objects at a URL, each store in a region; and the gate in front of every store.

`open_store` returns a `GatedStore`, always: there is no way to bytes past the gate. Keys are
relative paths with "/"; they mean themselves (no globbing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Protocol

from geodata.errors import ConfigError
from geodata.policy import Action, Gate, Movement
from geodata.tags import Tag


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object of a store: its key, its bytes, and when it was last written (UTC seconds)."""

    key: str
    nbytes: int
    modified: float


class Store(Protocol):
    """Where objects lie. Writes are whole or not at all; reads of a missing key: ObjectNotFound."""

    url: str
    exclusive: bool
    """Whether `create` is exclusive among concurrent writers; commits need it."""

    def read(self, key: str) -> bytes:
        """Return an object's bytes."""

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object over a local path, without giving up the room that it has.

        What the path cannot take is an OSError.
        """

    def local_path(self, key: str) -> Path | None:
        """Return where the object can be opened in place, if the store is a local folder."""

    def write(self, key: str, data: bytes) -> None:
        """Write an object, replacing an earlier one."""

    def put(self, key: str, path: Path) -> None:
        """Move a finished local file into the store; `path` is gone afterwards."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none under this key; return whether it was written."""

    def stat(self, key: str) -> ObjectInfo:
        """Return what is known of an object."""

    def list(self, prefix: str, unfinished: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix`, by key, or those left `unfinished`."""

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""


STORES = {"file": "geodata.stores.local:LocalStore"}


def check_key(key: str) -> str:
    """Return `key` if it stays inside its store, else raise ConfigError."""
    path = PurePosixPath(key)
    if not key or path.is_absolute() or ".." in path.parts or "\0" in key:
        raise ConfigError(f"'{key}' is no key of a store")
    return key


def _fitting(key: str, tag: Tag | None) -> Tag | None:
    """Return the tag, or None where a shard is passed off as metadata."""
    about_data = key.startswith("metadata/") or key.endswith(".units.json")
    return None if tag is not None and tag.kind == "metadata" and not about_data else tag


@dataclass(frozen=True, slots=True)
class Access:
    """On whose behalf a store is opened: the gate, the region the process stands in, why."""

    gate: Gate
    here: str
    purpose: str


class GatedStore:
    """A store in a region, seen from a process in another or the same: each access is checked.

    `tag` is the tag of what is moved; `None` is denied. `about` names it in the audit.
    """

    def __init__(self, store: Store, region: str, access: Access):
        self._store = store
        self.region = region
        self.access = access
        self.url = store.url
        self.exclusive = store.exclusive

    def _inbound(
        self, action: Action, key: str, tag: Tag | None, about: str, records: int | None = None
    ) -> None:
        tag, about = _fitting(check_key(key), tag), about or key
        source, target, purpose = self.region, self.access.here, self.access.purpose
        self.access.gate.check(Movement(action, tag, source, target, purpose, about, records))

    def _outbound(self, key: str, tag: Tag | None, about: str, records: int | None = None) -> None:
        tag, about = _fitting(check_key(key), tag), about or key
        source, target, purpose = self.access.here, self.region, self.access.purpose
        self.access.gate.check(Movement("write", tag, source, target, purpose, about, records))

    def read(self, key: str, tag: Tag | None, about: str = "") -> bytes:
        """Return an object's bytes."""
        self._inbound("read", key, tag, about)
        return self._store.read(key)

    def fetch(
        self, key: str, path: Path, tag: Tag | None, about: str = "", records: int | None = None
    ) -> None:
        """Copy an object to a local path."""
        self._inbound("copy", key, tag, about, records)
        self._store.fetch(key, path)

    def local_path(
        self,
        key: str,
        tag: Tag | None,
        about: str = "",
        records: int | None = None,
        action: Action = "read",
    ) -> Path | None:
        """Return where an object can be opened in place, if the store is a local folder."""
        path = self._store.local_path(check_key(key))
        if path is not None:
            self._inbound(action, key, tag, about, records)
        return path

    def write(self, key: str, data: bytes, tag: Tag | None, about: str = "") -> None:
        """Write an object, replacing an earlier one."""
        self._outbound(key, tag, about)
        self._store.write(key, data)

    def put(
        self, key: str, path: Path, tag: Tag | None, about: str = "", records: int | None = None
    ) -> None:
        """Move a finished local file into the store; `path` is gone afterwards."""
        self._outbound(key, tag, about, records)
        self._store.put(key, path)

    def create(self, key: str, data: bytes, tag: Tag | None, about: str = "") -> bool:
        """Write an object if there is none under this key; return whether it was written."""
        self._outbound(key, tag, about)
        return self._store.create(key, data)

    def stat(self, key: str) -> ObjectInfo:
        """Return what is known of an object: size and time only."""
        return self._store.stat(check_key(key))

    def list(self, prefix: str, unfinished: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix`, by key, or those left `unfinished`."""
        return self._store.list(check_key(prefix), unfinished)

    def delete(self, key: str, about: str = "") -> None:
        """Remove an object."""
        here, purpose = self.access.here, self.access.purpose
        tag = Tag(region=self.region)
        self.access.gate.check(Movement("delete", tag, here, self.region, purpose, about or key))
        self._store.delete(check_key(key))


def open_store(url: str | Path, *, region: str, access: Access) -> GatedStore:
    """Return the gated store at a URL or a local path, which lies in `region`."""
    text = str(url)
    scheme, separator, _rest = text.partition("://")
    name = scheme if separator else "file"
    if name not in STORES:
        raise ConfigError(f"no store for {name}://", hint=f"Known: {', '.join(STORES)}")
    module, _, attribute = STORES[name].partition(":")
    make: Callable[[str], Store] = getattr(import_module(module), attribute)
    return GatedStore(make(text), region, access)
