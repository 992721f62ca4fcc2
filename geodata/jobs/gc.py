"""Removes what no version needs: files of killed jobs, and of versions that are given up.

A file goes if no version that is kept names it, no job that may go on has made it, and it has been
as it is for longer than the grace period, in which a job that runs elsewhere may still commit it,
and for longer than any job runs here. The newest version always stays. What is in quarantine stays
too. While a version that stays is damaged, nothing goes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.catalog import UNREADABLE, Catalog, Place, locate
from geodata.catalog.copies import COPIES_DIR, copy_of, index_copy, index_digests, original_of
from geodata.config import GeodataConfig
from geodata.errors import ConfigError, ManifestError, ObjectNotFound
from geodata.jobs.base import SCHEMA_VERSION, JobFolder
from geodata.jobs.deliveries import unfinished
from geodata.manifest import METADATA_DIR, Index, Version
from geodata.stores import GatedStore, open_store

GRACE_SECONDS = 86_400
UNFINISHED = "unfinished"
VERSIONS = "versions"
"""The job of those that give versions up, or bring one back."""


@dataclass(slots=True)
class GcReport:
    """What goes, by kind: files and bytes. `versions` are those given up; `jobs` unfinished ones.

    `young` counts files that no version needs but that are younger than the grace period.
    """

    dataset: str
    versions: list[str]
    kept: list[str]
    files: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    young: int = 0
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def add(self, kind: str, nbytes: int) -> None:
        """Count a file that goes."""
        self.files[kind] = self.files.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + nbytes


def gc(
    reference: str,
    *,
    config: GeodataConfig | None = None,
    keep: int | None = None,
    grace: int = GRACE_SECONDS,
    dry_run: bool = False,
) -> GcReport:
    """Remove what no version needs; with `keep`, give up all but the newest so many versions.

    `grace` is in seconds. Raises ManifestError while a version that stays is damaged (what it needs
    is not known), ConfigError where a version is named, StoreError where a job that was to go
    begins meanwhile, PolicyError where a file may not be deleted from here.
    """
    place = locate(reference, config)
    if place.version is not None:
        raise ConfigError("gc is of a dataset, not of a version", hint="Leave the @VERSION away")
    if keep is not None and keep < 1:
        raise ConfigError("the newest version always stays", hint="--keep 1 or more")
    catalog = Catalog.at(place, "gc")
    kept, _gone, _needed = _kept(catalog, keep)
    report = GcReport(kept[max(kept)].dataset, [], [], dry_run=dry_run)
    with ExitStack() as holds:
        if not dry_run:
            holds.enter_context(versions_held(place))
        _collect(catalog, keep, time.time() - grace, report, holds)
    return report


@contextmanager
def versions_held(place: Place) -> Iterator[None]:
    """Hold off others that give versions up, or bring one back, while the body runs."""
    folder = JobFolder(Path(place.root), VERSIONS)
    with folder.held():
        try:
            yield
        finally:
            folder.remove()


def _collect(
    catalog: Catalog, keep: int | None, before: float, report: GcReport, holds: ExitStack
) -> None:
    """Remove what nothing needs and nobody has touched since `before`.

    What is needed is looked up after the jobs: what one of them commits meanwhile is a version.
    """
    delivered, before = _without_jobs(catalog, before, report, holds)
    kept, gone, needed = _kept(catalog, keep)
    report.versions, report.kept = list(map(str, gone)), list(map(str, kept))
    needed |= delivered
    stores = _stores(catalog, [*kept.values(), *_whole(catalog, gone)])
    needed |= set(_index_copies(stores, kept))
    places = list(_places(stores))
    for version in gone:
        report.add("versions", catalog.drop(version, report.dry_run))
    for store, prefix, kind in places:
        _sweep(store, prefix, kind, needed, before, report)


def _kept(
    catalog: Catalog, keep: int | None
) -> tuple[dict[Version, Index], list[Version], frozenset[str]]:
    """Return the versions that stay, those that go, and the keys of the files that are needed.

    ManifestError where that is not known, since a version that stays is damaged.
    """
    known = catalog.versions()
    numbers = sorted({version.number for version in known})[-keep if keep else 0 :]
    kept: dict[Version, Index] = {}
    needed: set[str] = set()
    for version in known:
        if version.number in numbers:
            try:
                kept[version] = catalog.exactly(version)
                needed |= set(_needed(catalog, kept[version], needed))
            except ManifestError as error:
                raise _unknown(error, version, numbers) from error
    return kept, [version for version in known if version not in kept], frozenset(needed)


def _unknown(error: ManifestError, version: Version, numbers: Sequence[int]) -> ManifestError:
    newer = len(numbers) - 1 - numbers.index(version.number)
    hint = error.hint or ""
    if newer:
        hint += f"; geodata gc DATASET --keep {newer} gives {version} up"
    text = f"{error.message}, so that what {version} needs is not known: nothing is removed"
    return ManifestError(text, hint=hint, **error.fields)


def _whole(catalog: Catalog, versions: Iterable[Version]) -> Iterator[Index]:
    """Yield the indexes of versions, as far as they are whole."""
    for version in versions:
        with suppress(*UNREADABLE):
            yield catalog.exactly(version)


def _without_jobs(
    catalog: Catalog, before: float, report: GcReport, holds: ExitStack
) -> tuple[frozenset[str], float]:
    """Remove the jobs that are over; return what the others have delivered, and what is old.

    That is what was made before `before`, and before any that runs began: it may have delivered
    more than it tells. Where one runs, its folders in other roots stay. A job that is removed
    begins anew from now on. One that keeps its results elsewhere is held to the end: it finds out
    what is gone when it goes on.
    """
    jobs = [job for root in _roots(catalog) for job in unfinished(Path(root), before)]
    jobs = [job for job in jobs if job.folder.path.name != VERSIONS]
    running = {job.folder.path.name for job in jobs if job.began is not None}
    delivered: set[str] = set()
    for job in jobs:
        if job.alive or job.folder.path.name in running:
            delivered |= job.files
            continue
        report.jobs.append(job.folder.path.name)
        report.add("jobs", job.nbytes)
        if not report.dry_run:
            if job.elsewhere is not None:
                holds.enter_context(job.elsewhere.held())
            with job.folder.held():
                job.folder.remove()
    return frozenset(delivered), min([before, *(j.began for j in jobs if j.began is not None)])


def _roots(catalog: Catalog) -> list[str]:
    """Return the folders in which jobs of this dataset keep what they need."""
    index = catalog.index()
    return sorted({catalog.root, *(catalog.store(index, region).url for region in index.regions)})


def _needed(catalog: Catalog, index: Index, known: Collection[str]) -> Iterator[str]:
    """Yield the keys of all files that a version names, but of lists those not yet `known`."""
    for key in re.findall(rf"{METADATA_DIR}/sources/[^\"]+", json.dumps(index.report)):
        yield from (key, copy_of(key))
    for region, entry in index.regions.items():
        if entry.listing.path not in known:
            for shard in catalog.shards(index, region):
                yield from (ref.path for ref in shard.files.values())
            yield from (entry.listing.path, copy_of(entry.listing.path))


def _index_copies(
    stores: Iterable[tuple[str, GatedStore]], kept: Collection[Version]
) -> Iterator[str]:
    """Yield the keys of all copies of the indexes of versions, whatever they say."""
    for _region, store in stores:
        for version, digests in index_digests(store).items():
            if version in kept:
                yield from (index_copy(version, digest) for digest in digests)


def _stores(catalog: Catalog, indexes: Iterable[Index]) -> list[tuple[str, GatedStore]]:
    """Return each region's stores, of all versions, by region; that of the index has none: ""."""
    own = open_store(catalog.root, region=catalog.access.here, access=catalog.access)
    found = {("", own.url): own}
    for index in indexes:
        for region in index.regions:
            store = catalog.store(index, region)
            found[region, store.url] = store
    return [(region, found[region, url]) for region, url in sorted(found)]


def _places(stores: Iterable[tuple[str, GatedStore]]) -> Iterator[tuple[GatedStore, str, str]]:
    """Yield where files lie, no place twice: store, prefix, and kind."""
    roots = set()
    for region, store in stores:
        if region:
            yield store, f"data/region={region}/", "data"
            yield store, f"data/region={region}/", UNFINISHED
            yield store, f"{METADATA_DIR}/lists/region={region}/", "lists"
        if store.url not in roots:
            roots.add(store.url)
            yield store, f"{METADATA_DIR}/sources/", "sources"
            parts = (
                [""] if region else ["lists/", "sources/"]
            )  # beside an index its copy goes with it
            yield from ((store, f"{COPIES_DIR}/{part}", "copies") for part in parts)
            yield store, f"{METADATA_DIR}/", UNFINISHED


def _sweep(
    store: GatedStore,
    prefix: str,
    kind: str,
    needed: frozenset[str],
    before: float,
    report: GcReport,
) -> None:
    """Remove the objects below a prefix that nothing needs, or what was never finished there.

    A copy stays where what it is of is young: a commit that finds it there does not make it again.
    """
    for info in store.list(prefix, kind == UNFINISHED):
        if info.key in needed:
            continue
        if info.modified >= before or (kind == "copies" and _is_young(store, info.key, before)):
            report.young += 1
            continue
        report.add(kind, info.nbytes)
        if not report.dry_run:
            store.delete(info.key)


def _is_young(store: GatedStore, copy: str, before: float) -> bool:
    """Return whether that which a copy is of has been written since `before`."""
    try:
        return store.stat(original_of(copy)).modified >= before
    except ObjectNotFound:
        return False
