"""Commits versions: one exclusive create each, on top of whatever is the newest by then."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from geodata.catalog import copies
from geodata.catalog.versions import Versions, holds
from geodata.errors import CommitConflict, ManifestError, StoreError
from geodata.manifest import (
    FORMAT_VERSION,
    LISTS_DIR,
    Index,
    ListRef,
    RegionEntry,
    Shard,
    Version,
    list_bytes,
    totals,
)
from geodata.stores import open_store
from geodata.tags import METADATA
from geodata.version import __version__

COMMIT_ATTEMPTS = 100
AGAIN = "Run the same command again to go on from it"
CARRIED = ("source", "sources", "counted", "packed", "columns")
"""Parts of a version's report that the next one keeps: what it was made of, the columns added."""

log = logging.getLogger(__name__)


def stamp() -> dict[str, str]:
    """Return when and by what an index is made now."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {"created_at": now, "created_by": f"geodata {__version__}"}


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


class Catalog(Versions):
    """The versions of the dataset at a root, and the next one."""

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
        if not self.index_store.exclusive:
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
        data = index.to_bytes()
        if self.index_store.create(version.key, data, METADATA):
            self._keep_copies(index, data)
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
        a shard that this change replaces: an erased record does not come back. A change that a
        killed process had committed is not made twice.
        """
        for _attempt in range(COMMIT_ATTEMPTS):
            latest = self.index()
            landed = self._landed(base, latest, change)
            if landed is not None:
                return landed
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

    def _landed(self, base: Index, latest: Index, change: Change) -> Index | None:
        """Return the version that this change made, if there is one since `base`."""
        if latest.plan_digest == change.plan_digest:
            return latest
        for version in self.versions():
            if base.id < version < latest.id:
                with suppress(ManifestError):  # one that was damaged, and is given up
                    index = self.exactly(version)
                    if index.plan_digest == change.plan_digest:
                        return index
        return None

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
        key = f"{LISTS_DIR}/region={region}/{digest}.jsonl"
        root = self._root_on(onto, region)
        url = self.root if root == "." else root
        store, copy = open_store(url, region=region, access=self.access), copies.copy_of(key)
        store.write(key, data, METADATA)
        if not holds(store, copy):
            store.write(copy, data, METADATA)
        ref = ListRef(path=key, sha256=digest, nbytes=len(data))
        return totals(root, ref, shards)

    def _keep_copies(self, index: Index, data: bytes) -> None:
        """Keep copies of what is committed; it stays so, should one not fit."""
        key = copies.index_copy(index.id, hashlib.sha256(data).hexdigest())
        try:
            for store in self.index_stores(index):
                store.write(key, data, METADATA)
            for path, _sha256, tag in copies.source_files(index):
                if not holds(self.index_store, copies.copy_of(path)):
                    copies.duplicate(self.index_store, path, copies.copy_of(path), tag)
        except StoreError as error:
            log.warning("%s is committed, but not all copies are kept: %s", index.version, error)

    def _root_on(self, onto: Index | None, region: str) -> str:
        """Return where a region's bytes are to lie: where they do already, "." with the index."""
        if onto is None or region not in onto.regions:
            return self.roots.get(region, ".")
        return "." if onto.regions[region].root == "." else self.store(onto, region).url


def _check_distinct(ids: Sequence[str]) -> None:
    """Raise ManifestError if two shards have one id, as equal records under equal keys give."""
    twice = next((name for name, count in Counter(ids).items() if count > 1), None)
    if twice is not None:
        hint = "Keys are unique: mend the source's __key__"
        raise ManifestError("two shards hold the same records", shard=twice, hint=hint)
