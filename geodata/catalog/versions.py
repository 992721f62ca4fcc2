"""Opens a dataset's versions: index, lists and sidecars, each checked against its digest."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from geodata.catalog import copies
from geodata.catalog.place import Place, make_access
from geodata.errors import (
    ConfigError,
    FormatVersionError,
    ManifestError,
    ObjectNotFound,
    StoreError,
)
from geodata.manifest import (
    LISTS_DIR,
    METADATA_DIR,
    FileRef,
    Index,
    Shard,
    Units,
    Version,
    parse_list,
)
from geodata.stores import Access, GatedStore, open_store
from geodata.tags import METADATA, STAGING

UNREADABLE = (ManifestError, FormatVersionError, StoreError)
"""What opening a version raises that is damaged, of a newer release, or out of reach."""


class Versions:
    """The versions of the dataset at a root.

    `roots` says where regions hold their bytes now, should it be elsewhere than at their commit.
    """

    def __init__(self, root: str, access: Access, roots: Mapping[str, str] | None = None):
        self.root = root
        self.access = access
        self.roots = dict(roots or {})
        self.index_store = open_store(root, region=access.here, access=access)
        self._digests: dict[Version, set[str]] = {}

    @classmethod
    def at(cls, place: Place, purpose: str) -> Self:
        """Open a place as its data ask: staging in its own region, else from `here`."""
        probe = cls(place.root, make_access(place.audit, STAGING, purpose))
        if probe.is_staging():
            return probe
        return cls(place.root, make_access(place.audit, place.here(), purpose), place.roots)

    def is_staging(self) -> bool:
        """Return whether the dataset is a staging one: all its versions are, or none."""
        self.resolve()
        index = self.newest_whole()
        if index is not None:
            return set(index.regions) == {STAGING}
        return any(True for _ in self.index_store.list(f"{LISTS_DIR}/region={STAGING}/"))

    def versions(self) -> list[Version]:
        """Return all versions and revisions, oldest first, those whose index is gone included."""
        keys = [info.key for info in self.index_store.list(f"{METADATA_DIR}/v")]
        self._digests = copies.index_digests(self.index_store)
        return sorted({v for key in keys if (v := Version.of_key(key))} | self._digests.keys())

    def resolve(self, version: Version | None = None) -> Version:
        """Return a version's newest revision; that of the newest version if None."""
        known = self.versions()
        if not known:
            raise ConfigError("no version has been committed", file=self.root)
        number = version.number if version else known[-1].number
        matching = [v for v in known if v.number == number]
        if version and version.revision:
            matching = [v for v in matching if v == version]
        if not matching:
            listed = ", ".join(map(str, known[-5:]))
            raise ConfigError(f"no version {version}", file=self.root, hint=f"There are {listed}")
        return matching[-1]

    def index(self, version: Version | None = None) -> Index:
        """Return the index of a version at its newest revision; of the newest version if None.

        Never that of another: where it is damaged, the ManifestError says how to go on.
        """
        return self.exactly(self.resolve(version))

    def exactly(self, version: Version) -> Index:
        """Return the index of a version at just this revision; ManifestError if it is damaged."""
        file = f"{self.index_store.url}/{version.key}"
        try:
            return self._parsed(version, file)
        except ManifestError as error:
            raise ManifestError(error.message, hint=self._way_on(version), file=file) from error

    def _parsed(self, version: Version, file: str) -> Index:
        try:
            data = self.index_store.read(version.key, METADATA)
        except StoreError as error:
            if not is_lost(error):
                raise
            raise ManifestError("the index cannot be read, or is gone", file=file) from error
        known = self._digests.get(version)
        if known and hashlib.sha256(data).hexdigest() not in known:
            raise ManifestError("the index does not match its digest", file=file)
        index = Index.from_bytes(data, file)
        if index.version != str(version):
            raise ManifestError(f"the index is of version {index.version}", file=file)
        return index

    def newest_whole(self) -> Index | None:
        """Return the newest version that can be opened, at its newest revision."""
        newest = {version.number: version for version in self.versions()}
        for version in reversed(newest.values()):
            with suppress(*UNREADABLE):
                return self.exactly(version)
        return None

    def _way_on(self, damaged: Version) -> str:
        """Return what to do about a damaged version."""
        mend = f"geodata repair DATASET@{damaged} brings it back if there is a copy of it"
        back = self.way_back(damaged)
        return f"{mend}; {back}" if back else mend

    def way_back(self, damaged: Version) -> str:
        """Return how to go back from the newest version; nothing if it is not that or none can."""
        numbers = {version.number: version for version in self.versions()}
        if damaged.number != max(numbers):
            return ""
        for version in reversed(numbers.values()):
            with suppress(*UNREADABLE):
                if version.number != damaged.number and self._listed_whole(self.exactly(version)):
                    text = "goes back to the newest version that is whole"
                    return f"geodata rollback DATASET@{version} {text}"
        return ""

    def _listed_whole(self, index: Index) -> bool:
        """Return whether all lists of a version can be read as they were committed."""
        lists = {region: entry.listing for region, entry in index.regions.items()}
        return all(
            copies.read_whole(self.store(index, region), ref.path, ref.sha256) is not None
            for region, ref in lists.items()
        )

    def index_copies(self, version: Version) -> list[str]:
        """Return the keys of the copies of a version's index, wherever they lie."""
        return [copies.index_copy(version, digest) for digest in self._digests.get(version, ())]

    def drop(self, version: Version, dry_run: bool = False) -> int:
        """Delete a version's index, so that nothing names its files; return its bytes.

        What tells of it goes first, lest the version seem to have lost its index.
        """
        try:
            nbytes = self.index_store.stat(version.key).nbytes
        except ObjectNotFound:
            nbytes = 0
        if not dry_run:
            for key in [*self.index_copies(version), version.key]:
                self.index_store.delete(key)
        return nbytes

    def store(self, index: Index, region: str) -> GatedStore:
        """Return the store of a region's bytes: where the config says, if they are there."""
        stores = self.stores(index, region)
        path = index.regions[region].listing.path
        return next((store for store in stores if holds(store, path)), stores[0])

    def stores(self, index: Index, region: str) -> list[GatedStore]:
        """Return the stores in which a region's bytes may lie, the one that is likelier first."""
        entry = index.regions[region]
        roots = [self.root]
        if entry.root != ".":
            roots = list(dict.fromkeys([self.roots.get(region, entry.root), entry.root]))
        return [open_store(root, region=region, access=self.access) for root in roots]

    def index_stores(self, index: Index) -> list[GatedStore]:
        """Return the stores that keep copies of an index: its own, and those of its regions."""
        found = [self.index_store, *(self.store(index, region) for region in index.regions)]
        return list({store.url: store for store in reversed(found)}.values())[::-1]

    def shards(self, index: Index, region: str) -> list[Shard]:
        """Return a region's shards; ManifestError if the list is not the one committed."""
        ref = index.regions[region].listing
        store = self.store(index, region)
        file = f"{store.url}/{ref.path}"
        try:
            data = store.read(ref.path, METADATA)
        except (StoreError, OSError) as error:
            if is_lost(error) and any(True for _ in store.list(f"{METADATA_DIR}/")):
                text = "a region's list of shards cannot be read, or is gone"
                hint = self._way_on(index.id)
                raise ManifestError(text, region=region, file=file, hint=hint) from error
            raise StoreError(
                "a region's list of shards is not where its bytes should be",
                region=region,
                file=file,
                hint=f"Make the folder reachable, or say where it is now in regions.{region}.root",
            ) from error
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            text = "the shard list does not match its digest"
            raise ManifestError(text, region=region, file=file, hint=self._way_on(index.id))
        return parse_list(data)

    def units(self, index: Index, region: str, shard: Shard) -> Units:
        """Return a shard's sidecar; ManifestError if it does not match its digest."""
        return read_units(self.store(index, region), shard.files["units"])


def read_units(store: GatedStore, ref: FileRef) -> Units:
    """Return a sidecar of a store; ManifestError if it does not match its digest."""
    hint = "geodata repair makes it anew"
    try:
        data = store.read(ref.path, METADATA)
    except ObjectNotFound:
        raise ObjectNotFound("the sidecar is missing", file=ref.path, hint=hint) from None
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise ManifestError("the sidecar does not match its digest", file=ref.path, hint=hint)
    return Units.from_bytes(data, ref.path)


def holds(store: GatedStore, key: str) -> bool:
    """Return whether a store has an object."""
    try:
        store.stat(key)
    except ObjectNotFound:
        return False
    return True


def is_lost(error: OSError | StoreError) -> bool:
    """Return whether an object is gone or unreadable for good, rather than out of reach."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    broken = isinstance(cause, OSError) and cause.errno == errno.EIO
    return broken or isinstance(error, FileNotFoundError)
