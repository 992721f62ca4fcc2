"""Removes what no version needs: files of killed jobs, and of versions that are given up.

A file goes if no version that is kept names it, no job that may go on has made it, and it has been
as it is for longer than the grace period, in which a job that runs elsewhere may still commit it.
The newest version always stays. What is in quarantine stays too.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.jobs.base import JOBS_DIR, SCHEMA_VERSION
from geodata.manifest import METADATA_DIR, Index, Shard, Version
from geodata.stores import GatedStore

GRACE_SECONDS = 86_400

_SHARD_FILE = re.compile(r"\bdata/region=[^\"\\]+")


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

    `grace` is in seconds. Raises ConfigError where a version is named, PolicyError where a file may
    not be deleted from here.
    """
    place = locate(reference, config)
    if place.version is not None:
        raise ConfigError("gc is of a dataset, not of a version", hint="Leave the @VERSION away")
    if keep is not None and keep < 1:
        raise ConfigError("the newest version always stays", hint="--keep 1 or more")
    catalog = Catalog.at(place, "gc")
    before = time.time() - grace
    jobs = [job for root in _roots(catalog) for job in _jobs(Path(root), before)]
    known = catalog.versions()  # after the jobs: what one of them commits meanwhile is a version
    numbers = sorted({version.number for version in known})[-keep if keep else 0 :]
    kept = [version for version in known if version.number in numbers]
    gone = [version for version in known if version.number not in numbers]
    indexes = [catalog.exactly(version) for version in kept]
    report = GcReport(
        indexes[-1].dataset, list(map(str, gone)), list(map(str, kept)), dry_run=dry_run
    )
    needed = _needed(catalog, indexes).union(*(job.files for job in jobs if job.alive))
    for version in gone:
        _drop_version(catalog, version, report)
    for job in jobs:
        if not job.alive:
            report.jobs.append(job.path.name)
            report.add("jobs", job.nbytes)
            if not dry_run:
                shutil.rmtree(job.path, ignore_errors=True)
    for region, store in _stores(catalog, indexes[-1]):
        for prefix, kind in _places(region):
            _sweep(store, prefix, kind, needed, before, report)
    return report


@dataclass(frozen=True, slots=True)
class _Job:
    """A job's folder; it is alive if it runs, or may go on. `files` are those it has delivered."""

    path: Path
    alive: bool
    files: frozenset[str]
    nbytes: int


def _roots(catalog: Catalog) -> set[str]:
    """Return the folders in which jobs of this dataset keep what they need."""
    index = catalog.index()
    return {catalog.root, *(catalog.store(index, region).url for region in index.regions)}


def _jobs(root: Path, before: float) -> Iterator[_Job]:
    folder = root / JOBS_DIR
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        inside = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else []
        newest = max((p.stat().st_mtime for p in inside), default=path.stat().st_mtime)
        files = frozenset(name for p in path.glob("*.json") for name in _shard_files(p))
        nbytes = sum(p.stat().st_size for p in inside)
        yield _Job(path, newest >= before or _is_held(path), files, nbytes)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _shard_files(path: Path) -> list[str]:
    return _SHARD_FILE.findall(path.read_text(encoding="utf-8"))


def _needed(catalog: Catalog, indexes: list[Index]) -> set[str]:
    """Return the keys of all files that versions name."""
    needed: set[str] = set()
    lists: set[str] = set()
    for index in indexes:
        needed.update(re.findall(rf"{METADATA_DIR}/sources/[^\"]+", json.dumps(index.report)))
        for region, entry in index.regions.items():
            if entry.listing.path in lists:
                continue
            lists.add(entry.listing.path)
            for shard in catalog.shards(index, region):
                needed.update(_paths(shard))
    return needed | lists


def _paths(shard: Shard) -> Iterator[str]:
    return (ref.path for ref in shard.files.values())


def _stores(catalog: Catalog, index: Index) -> Iterator[tuple[str, GatedStore]]:
    for region in sorted(index.regions):
        yield region, catalog.store(index, region)


def _places(region: str) -> list[tuple[str, str]]:
    return [
        (f"data/region={region}/", "data"),
        (f"{METADATA_DIR}/lists/region={region}/", "lists"),
        (f"{METADATA_DIR}/sources/", "sources"),
    ]


def _drop_version(catalog: Catalog, version: Version, report: GcReport) -> None:
    nbytes = catalog.drop(version, report.dry_run)
    report.add("versions", nbytes)


def _sweep(
    store: GatedStore, prefix: str, kind: str, needed: set[str], before: float, report: GcReport
) -> None:
    """Remove the objects below a prefix that nothing needs, and what was never finished."""
    for unfinished in (False, True):
        for info in list(store.list(prefix, unfinished)):
            if info.key in needed:
                continue
            if info.modified >= before:
                report.young += 1
                continue
            report.add("unfinished" if unfinished else kind, info.nbytes)
            if not report.dry_run:
                store.delete(info.key)
