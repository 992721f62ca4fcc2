"""What `shard` reports: what each region got, and what was done to the records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from geodata.jobs.base import SCHEMA_VERSION


@dataclass(slots=True)
class RegionTotals:
    """What a region got; `personal` of its `records` count as personal."""

    records: int = 0
    bytes: int = 0
    shards: int = 0
    personal: int = 0
    unknown: int = 0


@dataclass(slots=True)
class ShardReport:
    """What sharding did; records_in = records_out, unless these are `packed` sequences.

    `stripped` counts images that lost what cameras add. `packed` and `counted` say what was asked,
    and how many documents, sequences and tokens there were. `undone` are edits of the version
    before that are not in this one. In a dry run, bytes are those of Arrow, and records those
    before packing.
    """

    dataset: str
    dest: str
    version: str | None
    records_in: int
    records_out: int
    rejected: int
    shards: int
    bytes_in: int
    bytes_out: int
    unknown_region: int
    regions: dict[str, RegionTotals]
    seconds: float = 0.0
    stripped: int = 0
    packed: dict[str, Any] | None = None
    counted: dict[str, Any] | None = None
    undone: list[str] = field(default_factory=list)
    dry_run: bool = False
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}
