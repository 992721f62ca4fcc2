"""What a region may read of a version."""

from __future__ import annotations

from dataclasses import dataclass

from geodata.catalog.versions import Versions
from geodata.manifest import Index, Shard
from geodata.policy import Movement
from geodata.tags import METADATA, Tag


@dataclass(frozen=True, slots=True)
class Visible:
    """What a region may read of a version: shards by home region, and what it may not."""

    shards: list[tuple[str, Shard]]
    denied: list[tuple[str, Shard, str]]


def visible_set(catalog: Versions, index: Index, region: str, purpose: str) -> Visible:
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
