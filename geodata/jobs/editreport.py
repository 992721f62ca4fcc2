"""What an edit of a dataset tells: of each the same, so that one reads as the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from geodata.jobs.base import SCHEMA_VERSION
from geodata.jobs.editing import Edit
from geodata.manifest import Index, Shard
from geodata.partition.opening import Placed


@dataclass(slots=True)
class Touched:
    """What an edit is about in a region."""

    records: int = 0
    shards: int = 0
    bytes: int = 0

    def add(self, shard: Shard, records: int) -> None:
        """Count a shard, with so many of its records."""
        self.records += records
        self.shards += 1
        self.bytes += shard.nbytes


@dataclass(slots=True, kw_only=True)
class EditReport:
    """What an edit did, or would do.

    It is about `records`, in `shards` of `bytes`, by region too. `shards_out` take their place,
    for which `bytes_out` were written: none in a dry run. `left` counts by region records that may
    not be read here. `version` is the newest; where the edit is `unchanged` it had nothing to do.
    """

    dataset: str
    version: str
    records: int = 0
    shards: int = 0
    bytes: int = 0
    regions: dict[str, Touched] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    shards_out: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    unchanged: bool = False

    @classmethod
    def of(cls, edit: Edit, about: Iterable[tuple[Placed, int]], **more: Any) -> Self:
        """Return the report of an edit about so many records of each of these shards."""
        regions: dict[str, Touched] = {}
        for placed, records in about:
            regions.setdefault(placed.region, Touched()).add(placed.shard, records)
        return cls(
            dataset=edit.index.dataset,
            version=edit.index.version,
            records=sum(total.records for total in regions.values()),
            shards=sum(total.shards for total in regions.values()),
            bytes=sum(total.bytes for total in regions.values()),
            regions=regions,
            left=edit.left_behind(),
            **more,
        )

    @classmethod
    def again(cls, index: Index, done: Mapping[str, Any]) -> Self:
        """Return what the version `index` keeps of the edit that made it, which is asked again."""
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in done.items() if name in names}
        known["regions"] = {name: Touched(**total) for name, total in done["regions"].items()}
        return cls(**{**known, "version": index.version, "unchanged": True})

    def to_keep(self) -> dict[str, Any]:
        """Return what the version keeps that the edit makes; never a key."""
        return asdict(self)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


Report = TypeVar("Report", bound=EditReport)


def carried_out(
    edit: Edit, dry_run: bool, look: Callable[[], Report], run: Callable[[], Report]
) -> Report:
    """Return the report of an edit that is held while it runs, or is only looked at."""
    if dry_run:
        report = look()
        report.dry_run = True
    else:
        with edit.held():
            report = run()
    report.seconds = round(time.monotonic() - edit.began, 3)
    return report
