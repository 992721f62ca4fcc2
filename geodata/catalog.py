"""Opens a dataset's index and lists, computes what a region may see, and commits versions."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from geodata.audit import audit_log
from geodata.config import GeodataConfig
from geodata.errors import (
    CommitConflict,
    ConfigError,
    ManifestError,
    ObjectNotFound,
    StoreError,
)
from geodata.manifest import (
    FORMAT_VERSION,
    METADATA_DIR,
    Index,
    ListRef,
    RegionEntry,
    Shard,
    Units,
    Version,
    list_bytes,
    parse_list,
    totals,
)
from geodata.policy import Gate, HomePolicy, Movement
from geodata.stores import Access, GatedStore, open_store
from geodata.tags import METADATA, STAGING, Tag
from geodata.version import __version__

COMMIT_ATTEMPTS = 100
AGAIN = "Run the same command again to go on from it"
CARRIED = ("source", "sources", "counted", "packed")
"""Parts of a version's report that the next one keeps: what the dataset was made of."""


def stamp() -> dict[str, str]:
    """Return when and by what an index is made now."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {"created_at": now, "created_by": f"geodata {__version__}"}


def make_access(audit: Path, here: str, purpose: str) -> Access:
    """Return the access of a process in region `here` whose decisions are logged in `audit`."""
    return Access(Gate(HomePolicy(), audit_log(audit)), here, purpose)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset lies, which version is meant, and the config that speaks of it, if any."""

    root: str
    version: Version | None
    config: GeodataConfig | None

    @property
    def audit(self) -> Path:
        """Return the folder of the audit log: the config's, else one beside the dataset."""
        if self.config is not None:
            return self.config.resolve(self.config.audit.dir)
        return Path(self.root) / "audit"

    @property
    def roots(self) -> dict[str, str]:
        """Return where the config says that regions hold this dataset's bytes."""
        return {} if self.config is None else region_roots(self.config, self.root)

    def here(self) -> str:
        """Return the region the process stands in; it is configured, never guessed."""
        if self.config is None or self.config.here is None:
            raise ConfigError(
                "which region this machine stands in is not known",
                hint="Set here: in geodata.yaml, or GEODATA_REGION",
            )
        return self.config.here


def region_roots(config: GeodataConfig, root: str) -> dict[str, str]:
    """Return the roots of regions that have their own, for the dataset whose index lies at `root`.

    A region's root holds a folder for each dataset. A dataset elsewhere than at `dataset.root` is
    none that the config speaks of: it lies whole at its root.
    """
    dataset = config.dataset
    if dataset is None or config.resolve(dataset.root).resolve() != Path(root).resolve():
        return {}
    roots = {
        name: config.resolve(region.root) / dataset.name
        for name, region in config.regions.items()
        if region.root is not None
    }
    _check_apart({"dataset.root": Path(root), **{f"regions.{n}.root": r for n, r in roots.items()}})
    return {name: str(path) for name, path in roots.items()}


def _check_apart(roots: Mapping[str, Path]) -> None:
    """Raise ConfigError if a dataset's folder at one root is that at another, or lies inside it."""
    for (one, first), (other, second) in combinations(roots.items(), 2):
        pair = first.resolve(), second.resolve()
        if pair[0].is_relative_to(pair[1]) or pair[1].is_relative_to(pair[0]):
            raise ConfigError(
                f"{one} and {other} keep this dataset in one folder",
                hint="Give each region a root of its own",
            )


def locate(reference: str, config: GeodataConfig | None) -> Place:
    """Return the place that NAME[@VERSION] (with a config) or PATH[@VERSION] means."""
    name, _, version = reference.rpartition("@")
    if not name or not re.fullmatch(r"latest|v?\d+(\.r\d+)?", version):
        name, version = reference, ""
    pinned = Version.parse(version) if version and version != "latest" else None
    if config is not None and config.dataset is not None and config.dataset.name == name:
        return Place(str(config.resolve(config.dataset.root)), pinned, config)
    if (Path(name) / METADATA_DIR).is_dir():
        return Place(str(Path(name).absolute()), pinned, config)
    known = f" (the config names '{config.dataset.name}')" if config and config.dataset else ""
    raise ConfigError(f"no dataset '{name}'{known}", hint="Give its folder, or its name")


@dataclass(frozen=True, slots=True)
class Change:
    """What a version has that its parent has not, by region, and which of its shards it lacks.

    `operation` names the command that made it; `plan_digest` all that decides the result.
    `fields` replace those of the parent's index (`schema_`, `labels`); `report` is kept in it with
    what the parent's says the dataset was made of (None: all that the parent's says).
    """

    operation: str
    plan_digest: str
    added: Mapping[str, Sequence[Shard]]
    removed: Sequence[Shard] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] | None = field(default_factory=dict)


class Catalog:
    """The versions of the dataset at a root.

    `roots` says where regions hold their bytes now, should it be elsewhere than at their commit.
    """

    def __init__(self, root: str, access: Access, roots: Mapping[str, str] | None = None):
        self.root = root
        self.access = access
        self.roots = dict(roots or {})
        self._index_store = open_store(root, region=access.here, access=access)

    @classmethod
    def at(cls, place: Place, purpose: str) -> Catalog:
        """Open a place as its data ask: staging in its own region, else from `here`."""
        probe = cls(place.root, make_access(place.audit, STAGING, purpose))
        if set(probe.index(place.version).regions) == {STAGING}:
            return probe
        return cls(place.root, make_access(place.audit, place.here(), purpose), place.roots)

    def versions(self) -> list[Version]:
        """Return all versions and revisions, oldest first."""
        found = []
        for info in self._index_store.list(f"{METADATA_DIR}/v"):
            name = info.key.removeprefix(f"{METADATA_DIR}/")
            if re.fullmatch(r"v\d{6,}(\.r\d+)?\.json", name):
                found.append(Version.parse(name.removesuffix(".json")))
        return sorted(found)

    def index(self, version: Version | None = None) -> Index:
        """Return the index of a version at its newest revision; of the newest version if None."""
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
        return self.exactly(matching[-1])

    def exactly(self, version: Version) -> Index:
        """Return the index of a version at just this revision; it must be there."""
        index = Index.from_bytes(self._index_store.read(version.key, METADATA), version.key)
        if index.id != version:
            raise ManifestError(f"the index is of version {index.version}", file=version.key)
        return index

    def drop(self, version: Version, dry_run: bool = False) -> int:
        """Delete a version's index, so that nothing names its files; return its bytes."""
        nbytes = self._index_store.stat(version.key).nbytes
        if not dry_run:
            self._index_store.delete(version.key)
        return nbytes

    def store(self, index: Index, region: str) -> GatedStore:
        """Return the store of a region's bytes: where the config says, if they are there."""
        entry = index.regions[region]
        if entry.root == ".":
            return open_store(self.root, region=region, access=self.access)
        roots = dict.fromkeys([self.roots.get(region, entry.root), entry.root])
        stores = [open_store(root, region=region, access=self.access) for root in roots]
        return next((store for store in stores if holds(store, entry.listing.path)), stores[0])

    def shards(self, index: Index, region: str) -> list[Shard]:
        """Return a region's shards; ManifestError if the list is not the one committed."""
        ref = index.regions[region].listing
        store = self.store(index, region)
        try:
            data = store.read(ref.path, METADATA)
        except (StoreError, OSError) as error:
            raise StoreError(
                "a region's list of shards is not where its bytes should be",
                region=region,
                file=f"{store.url}/{ref.path}",
                hint=f"Make the folder reachable, or say where it is now in regions.{region}.root",
            ) from error
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ManifestError("the shard list does not match its digest", file=ref.path)
        return parse_list(data)

    def units(self, index: Index, region: str, shard: Shard) -> Units:
        """Return a shard's sidecar; ManifestError if it does not match its digest."""
        ref = shard.files["units"]
        data = self.store(index, region).read(ref.path, METADATA)
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ManifestError("the sidecar does not match its digest", file=ref.path)
        return Units.from_bytes(data, ref.path)

    def root_of(self, region: str) -> str:
        """Return where a region's bytes are written."""
        return self.roots.get(region, self.root)

    def commit(
        self,
        draft: Index,
        shards: Mapping[str, Sequence[Shard]],
        onto: Index | None = None,
        known: Sequence[Version] | None = None,
    ) -> Index:
        """Write the lists, then create the next version from `draft` with one exclusive create.

        With `onto` it is the one after that, and regions keep the roots that they have there; with
        `known` it is the one after all those. If a concurrent commit of the same plan won, its
        index is returned; CommitConflict if another plan won.
        """
        if not self._index_store.exclusive:
            raise StoreError("the store cannot create exclusively, so nothing can be committed")
        _check_distinct([shard.shard_id for found in shards.values() for shard in found])
        regions = {
            region: self._write_list(region, list(found), onto)
            for region, found in sorted(shards.items())
        }
        if known is None:
            known = self.versions() if onto is None else [onto.id]
        parent = known[-1] if known else None
        version = Version(parent.number + 1 if parent else 1)
        index = draft.model_copy(
            update={
                "version": str(version),
                "parent": str(parent) if parent else None,
                "regions": regions,
            }
        )
        if self._index_store.create(version.key, index.to_bytes(), METADATA):
            return index
        winner = self.index(version)
        if winner.plan_digest == draft.plan_digest:
            return winner
        text = f"another writer committed {version} first"
        raise CommitConflict(text, file=self.root, hint=AGAIN)

    def amend(
        self, base: Index, change: Change, check: Callable[[Index], None] | None = None
    ) -> Index:
        """Commit `change`, made of the version `base`, on top of the newest version.

        When another writer commits first, the change goes on top of that; `check` sees each index
        it is to go on and may raise. CommitConflict where the other writer changed the schema, or
        a shard that this change replaces: an erased record does not come back.
        """
        for _attempt in range(COMMIT_ATTEMPTS):
            latest = self.index()
            if latest.plan_digest == change.plan_digest:
                return latest
            same = latest.schema_ == base.schema_ and latest.labels == base.labels
            if not same or latest.format != base.format:
                text = f"{latest.version} has another schema or format than {base.version}"
                raise CommitConflict(text, file=self.root, hint=AGAIN)
            if check is not None:
                check(latest)
            made = self._changed(latest, change)
            try:
                return self.commit(self._amended(latest, change), made, onto=latest)
            except CommitConflict:
                continue
        raise CommitConflict("other writers were always faster", file=self.root)

    def _changed(self, latest: Index, change: Change) -> dict[str, list[Shard]]:
        """Return the shards of the version to be, by region."""
        known = {region: self.shards(latest, region) for region in latest.regions}
        present = {shard.shard_id: shard for found in known.values() for shard in found}
        removed = {shard.shard_id: shard for shard in change.removed}
        for name, shard in removed.items():
            if present.get(name) != shard:
                text = f"a shard is no longer in {latest.version} as it was"
                raise CommitConflict(text, shard=name, hint=AGAIN)
        return {
            region: [
                *(shard for shard in known.get(region, ()) if shard.shard_id not in removed),
                *change.added.get(region, ()),
            ]
            for region in sorted(known.keys() | change.added.keys())
        }

    def _amended(self, latest: Index, change: Change) -> Index:
        known = latest.report
        if change.report is not None:
            known = {name: known[name] for name in CARRIED if name in known}
        return latest.model_copy(
            update={
                **change.fields,
                **stamp(),
                "format_version": FORMAT_VERSION,
                "plan_digest": change.plan_digest,
                "report": {**known, **(change.report or {}), "operation": change.operation},
            }
        )

    def _write_list(self, region: str, shards: list[Shard], onto: Index | None) -> RegionEntry:
        data = list_bytes(shards)
        digest = hashlib.sha256(data).hexdigest()
        key = f"{METADATA_DIR}/lists/region={region}/{digest}.jsonl"
        root = self._root_on(onto, region)
        url = self.root if root == "." else root
        open_store(url, region=region, access=self.access).write(key, data, METADATA)
        ref = ListRef(path=key, sha256=digest, nbytes=len(data))
        return totals(root, ref, shards)

    def _root_on(self, onto: Index | None, region: str) -> str:
        """Return where a region's bytes are to lie: where they do already, "." with the index."""
        if onto is None or region not in onto.regions:
            return self.roots.get(region, ".")
        return "." if onto.regions[region].root == "." else self.store(onto, region).url


def holds(store: GatedStore, key: str) -> bool:
    """Return whether a store has an object."""
    try:
        store.stat(key)
    except ObjectNotFound:
        return False
    return True


def _check_distinct(ids: Sequence[str]) -> None:
    """Raise ManifestError if two shards have one id, as equal records under equal keys give."""
    twice = next((name for name, count in Counter(ids).items() if count > 1), None)
    if twice is not None:
        hint = "Keys are unique: mend the source's __key__"
        raise ManifestError("two shards hold the same records", shard=twice, hint=hint)


@dataclass(frozen=True, slots=True)
class Visible:
    """What a region may read of a version: shards by home region, and what it may not."""

    shards: list[tuple[str, Shard]]
    denied: list[tuple[str, Shard, str]]


def visible_set(catalog: Catalog, index: Index, region: str, purpose: str) -> Visible:
    """Return the shards that policy lets `region` read, and the denied ones with their rule."""
    allowed, denied = [], []
    for home in sorted(index.regions):
        for shard in catalog.shards(index, home):
            decision = catalog.access.gate.decide(
                Movement("read", shard.tag, home, region, purpose, shard.shard_id)
            )
            if decision.allowed:
                allowed.append((home, shard))
            else:
                denied.append((home, shard, decision.rule))
    return Visible(allowed, denied)


def tag_of_file(shard: Shard, name: str) -> Tag:
    """Return the tag that a shard's file carries: sidecars hold no keys and may travel."""
    return METADATA if name.partition("/")[0] == "units" else shard.tag
