"""Which versions a dataset has, what made each, and what it added and took away."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from geodata.catalog import UNREADABLE, Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import GeodataError
from geodata.jobs.base import SCHEMA_VERSION
from geodata.manifest import Index


@dataclass(slots=True)
class VersionInfo:
    """A version; shards `added` and `removed` are those its parent has not, or only it has.

    They are None where a list is not there any more. `of` is the version that a rollback is of. Of
    a version that is `damaged` in some way nothing else may be known.
    """

    version: str
    parent: str | None = None
    operation: str = "unknown"
    created_at: str = ""
    created_by: str = ""
    records: int | None = None
    bytes: int | None = None
    shards: int | None = None
    added: int | None = None
    removed: int | None = None
    of: str | None = None
    damaged: str | None = None


@dataclass(slots=True)
class HistoryReport:
    """The versions of a dataset, oldest first."""

    dataset: str
    versions: list[VersionInfo]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def history(reference: str, *, config: GeodataConfig | None = None) -> HistoryReport:
    """Return what is known of each version and revision of a dataset."""
    place = locate(reference, config)
    catalog = Catalog.at(place, "history")
    found: list[VersionInfo] = []
    name = reference
    before: set[str] | None = set()
    for version in catalog.versions():
        try:
            index = catalog.exactly(version)
        except UNREADABLE as error:
            found.append(VersionInfo(str(version), damaged=_told(error)))
            before = None
            continue
        name, info = index.dataset, _info(index)
        try:
            own = _files_of(catalog, index)
        except UNREADABLE as error:
            own, info.damaged = None, _told(error)
        if own is not None and before is not None:
            info.added, info.removed = len(own - before), len(before - own)
        found.append(info)
        before = own
    return HistoryReport(name, found)


def _told(error: GeodataError) -> str:
    return f"{error.message}: {error.fields['file']}" if "file" in error.fields else error.message


def _files_of(catalog: Catalog, index: Index) -> set[str]:
    """Return the main files of a version, by digest."""
    lists = [catalog.shards(index, region) for region in index.regions]
    return {shard.main.sha256 for shards in lists for shard in shards}


def _info(index: Index) -> VersionInfo:
    return VersionInfo(
        version=index.version,
        parent=index.parent,
        operation=index.report.get("operation", "unknown"),
        created_at=index.created_at,
        created_by=index.created_by,
        records=index.records,
        bytes=index.nbytes,
        shards=sum(entry.shards for entry in index.regions.values()),
        of=index.report.get("of"),
    )
