"""Which versions a dataset has, what made each, and what it added and took away."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import GeodataError
from geodata.jobs.base import SCHEMA_VERSION
from geodata.manifest import Index


@dataclass(slots=True)
class VersionInfo:
    """A version; shards `added` and `removed` are those its parent has not, or only it has.

    They are None where a list is not there any more. `of` is the version that a rollback is of.
    """

    version: str
    parent: str | None
    operation: str
    created_at: str
    created_by: str
    records: int
    bytes: int
    shards: int
    added: int | None
    removed: int | None
    of: str | None = None


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
    before: set[str] | None = set()
    for version in catalog.versions():
        index = catalog.exactly(version)
        own = _files_of(catalog, index)
        known = None if own is None or before is None else (own - before, before - own)
        found.append(_info(index, known))
        before = own
    return HistoryReport(index.dataset if found else reference, found)


def _files_of(catalog: Catalog, index: Index) -> set[str] | None:
    """Return the main files of a version, by digest; None where a list cannot be read."""
    try:
        lists = [catalog.shards(index, region) for region in index.regions]
    except (GeodataError, OSError):
        return None
    return {shard.main.sha256 for shards in lists for shard in shards}


def _info(index: Index, known: tuple[set[str], set[str]] | None) -> VersionInfo:
    return VersionInfo(
        version=index.version,
        parent=index.parent,
        operation=index.report.get("operation", "unknown"),
        created_at=index.created_at,
        created_by=index.created_by,
        records=index.records,
        bytes=index.nbytes,
        shards=sum(entry.shards for entry in index.regions.values()),
        added=len(known[0]) if known else None,
        removed=len(known[1]) if known else None,
        of=index.report.get("of"),
    )
