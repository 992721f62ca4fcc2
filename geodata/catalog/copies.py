"""Copies of a version's metadata, by which damage is found, and what was damaged comes back.

    ROOT/metadata/copies/v000003-<sha256>.json              an index, in each root of its version
    ROOT/metadata/copies/lists/region=R/<sha256>.jsonl      a list, beside the list itself
    INDEX_ROOT/metadata/copies/sources/<sha256>.jsonl       what tells of a source

A copy's name tells the digest of what it is of, so a damaged copy is known by itself. That of an
index is written after its commit, at the index's own root too: it is the digest that an index is
checked against, and tells of a version whose index is gone. Versions of earlier releases have none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from geodata.durable import storing, temporary_beside
from geodata.errors import StoreError
from geodata.manifest import METADATA_DIR, Index, Version
from geodata.stores import GatedStore
from geodata.tags import METADATA, UNCLASSIFIED, Tag

COPIES_DIR = f"{METADATA_DIR}/copies"

_SOURCES = {"files": UNCLASSIFIED, "shards": METADATA}
"""What the index names of a source, and its tag."""

_INDEX = re.compile(r"(v[^-]+)-([0-9a-f]{64})\.json")


def index_copy(version: Version, sha256: str) -> str:
    """Return the key of the copy of a version's index."""
    return f"{COPIES_DIR}/{version}-{sha256}.json"


def copy_of(key: str) -> str:
    """Return the key of the copy of a list, or of what tells of a source."""
    return COPIES_DIR + key.removeprefix(METADATA_DIR)


def original_of(copy: str) -> str:
    """Return the key of what a copy that `copy_of` names is of."""
    return METADATA_DIR + copy.removeprefix(COPIES_DIR)


def index_digests(store: GatedStore) -> dict[Version, set[str]]:
    """Return the digest of each index that a store has a copy of; two would contradict."""
    found: dict[Version, set[str]] = {}
    for info in store.list(f"{COPIES_DIR}/v"):
        match = _INDEX.fullmatch(info.key.removeprefix(f"{COPIES_DIR}/"))
        version = Version.of_key(f"{METADATA_DIR}/{match[1]}.json") if match else None
        if match and version:
            found.setdefault(version, set()).add(match[2])
    return found


def read_whole(store: GatedStore, key: str, sha256: str) -> bytes | None:
    """Return an object that has this digest; None if it has another, or cannot be read."""
    try:
        data = store.read(key, METADATA)
    except StoreError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def indexes_in(store: GatedStore, version: Version) -> Iterator[bytes]:
    """Yield the whole copies of a version's index that a store has."""
    for digest in sorted(index_digests(store).get(version, ())):
        data = read_whole(store, index_copy(version, digest), digest)
        if data is not None:
            yield data


def source_files(index: Index) -> Iterator[tuple[str, str, Tag]]:
    """Yield key, SHA-256 and tag of each file that tells of a source of a version."""
    for source in index.report.get("sources", ()):
        for name, tag in _SOURCES.items():
            if isinstance(ref := source.get(name), dict):  # a count, of shards that were converted
                yield ref["path"], ref["sha256"], tag


def duplicate(store: GatedStore, key: str, target: str, tag: Tag) -> None:
    """Copy an object of a store that is a local folder to another key, however large it is."""
    temporary = temporary_beside(Path(store.url) / target)
    try:
        with storing(temporary):
            store.fetch(key, temporary, tag)
        store.put(target, temporary, tag)
    finally:
        temporary.unlink(missing_ok=True)
