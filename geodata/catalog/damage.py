"""What is damaged of the metadata of versions, and how it comes back from its copies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from geodata.catalog import copies
from geodata.catalog.versions import UNREADABLE, Versions, holds, is_lost
from geodata.errors import ManifestError, StoreError
from geodata.manifest import Index, Version, totals
from geodata.stores import GatedStore, open_store
from geodata.tags import METADATA, Tag

Kind = Literal["index", "list", "sources", "copy"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a version's metadata that is not as it was committed.

    A list has a `region`, and `records` that it tells of.
    """

    version: Version
    kind: Kind
    file: str
    problem: str
    region: str | None = None
    records: int | None = None

    @property
    def closes(self) -> bool:
        """Return whether the version cannot be read for it."""
        return self.kind in ("index", "list")


def find_damage(catalog: Versions, versions: Iterable[Version]) -> Iterator[Damage]:
    """Yield what is damaged of versions; what several have is told of the first.

    Raises FormatVersionError, and StoreError where that cannot be told from here.
    """
    seen: set[str] = set()
    for version in versions:
        try:
            index = catalog.exactly(version)
        except ManifestError as error:
            yield Damage(version, "index", str(error.fields["file"]), error.message)
            continue
        yield from _lists(catalog, index, seen)
        yield from _sources(catalog, index, seen)
        for copy in _copies(catalog, index):
            if holds(copy.store, copy.key) and not copy.is_whole():
                yield Damage(version, "copy", f"{copy.store.url}/{copy.key}", "a copy is damaged")


def _lists(catalog: Versions, index: Index, seen: set[str]) -> Iterator[Damage]:
    for region, entry in index.regions.items():
        if entry.listing.path in seen:
            continue
        seen.add(entry.listing.path)
        try:
            catalog.shards(index, region)
        except ManifestError as error:
            file, problem = str(error.fields.get("file", entry.listing.path)), error.message
            yield Damage(index.id, "list", file, problem, region, entry.records)


def _sources(catalog: Versions, index: Index, seen: set[str]) -> Iterator[Damage]:
    for key, sha256, tag in copies.source_files(index):
        if key not in seen and not _is_whole(catalog.index_store, key, sha256, tag):
            problem = "what tells of a source is damaged or gone: nothing more of it can be added"
            yield Damage(index.id, "sources", f"{catalog.index_store.url}/{key}", problem)
        seen.add(key)


def _is_whole(store: GatedStore, key: str, sha256: str, tag: Tag) -> bool:
    path = store.local_path(key, tag, action="verify")
    if path is None:
        return copies.read_whole(store, key, sha256) is not None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError as error:
        if not is_lost(error):
            raise StoreError(f"cannot be read: {error.strerror}", file=str(path)) from error
        return False


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that a version should have at `key` of `store`: of what is at `of` in `held`."""

    store: GatedStore
    key: str
    held: GatedStore
    of: str
    sha256: str
    tag: Tag = METADATA

    def is_whole(self) -> bool:
        """Return whether it is there, and not damaged."""
        return _is_whole(self.store, self.key, self.sha256, self.tag)

    def renew(self) -> None:
        """Make it anew; what is large lies in one store with its copy."""
        if self.held.url == self.store.url:
            copies.duplicate(self.store, self.of, self.key, self.tag)
        else:
            self.store.write(self.key, self.held.read(self.of, self.tag), self.tag)


def _copies(catalog: Versions, index: Index) -> Iterator[_Copy]:
    """Yield all copies that a version should have."""
    own, of = catalog.index_store, index.id.key
    digest = hashlib.sha256(own.read(of, METADATA)).hexdigest()
    for store in catalog.index_stores(index):
        yield _Copy(store, copies.index_copy(index.id, digest), own, of, digest)
    for region, entry in index.regions.items():
        store, of = catalog.store(index, region), entry.listing.path
        yield _Copy(store, copies.copy_of(of), store, of, entry.listing.sha256)
    for of, sha256, tag in copies.source_files(index):
        yield _Copy(own, copies.copy_of(of), own, of, sha256, tag)


def restore_index(catalog: Versions, version: Version, *, dry_run: bool = False) -> bool:
    """Bring a version's index back from the copies that agree on it; return whether there are."""
    found = {data for store in _roots(catalog) for data in copies.indexes_in(store, version)}
    if len(found) != 1:
        return False
    (data,) = found
    if Index.from_bytes(data, version.key).version != str(version):
        return False
    if not dry_run:
        catalog.index_store.write(version.key, data, METADATA)
    return True


def _roots(catalog: Versions) -> Iterator[GatedStore]:
    """Yield each store that may have a copy: those that the config, or another version, names."""
    roots = set(catalog.roots.items())
    for version in catalog.versions():
        with suppress(*UNREADABLE):
            regions = catalog.exactly(version).regions
            roots |= {(name, entry.root) for name, entry in regions.items() if entry.root != "."}
    yield catalog.index_store
    for region, root in sorted(roots):
        yield open_store(root, region=region, access=catalog.access)


def restore_list(catalog: Versions, index: Index, region: str, *, dry_run: bool = False) -> bool:
    """Bring a region's list back from its copy, or another root; return whether there is one."""
    ref = index.regions[region].listing
    for store in catalog.stores(index, region):
        for key in (copies.copy_of(ref.path), ref.path):
            data = copies.read_whole(store, key, ref.sha256)
            if data is None:
                continue
            if not dry_run:
                held = catalog.store(index, region)
                (held if holds(held, ref.path) else store).write(ref.path, data, METADATA)
            return True
    return False


def restore_sources(catalog: Versions, index: Index, file: str, *, dry_run: bool = False) -> bool:
    """Bring what tells of a source back from its copy; return whether there is one."""
    store = catalog.index_store
    for key, sha256, tag in copies.source_files(index):
        if file == f"{store.url}/{key}" and _is_whole(store, copies.copy_of(key), sha256, tag):
            if not dry_run:
                copies.duplicate(store, copies.copy_of(key), key, tag)
            return True
    return False


def renew_copies(catalog: Versions, index: Index, *, dry_run: bool = False) -> list[str]:
    """Make the copies that a version lacks or has damaged, of what is whole; return their files."""
    made = []
    for copy in _copies(catalog, index):
        if not copy.is_whole() and _is_whole(copy.held, copy.of, copy.sha256, copy.tag):
            made.append(f"{copy.store.url}/{copy.key}")
            if not dry_run:
                copy.renew()
    return made


def recount(catalog: Versions, index: Index, *, dry_run: bool = False) -> bool:
    """Make an index anew whose totals are not those of its lists; return whether it was."""
    regions = {
        region: totals(entry.root, entry.listing, catalog.shards(index, region))
        for region, entry in index.regions.items()
    }
    if regions == index.regions:
        return False
    if not dry_run:
        data = index.model_copy(update={"regions": regions}).to_bytes()
        catalog.index_store.write(index.id.key, data, METADATA)
    return True
