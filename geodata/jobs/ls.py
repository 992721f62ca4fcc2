"""Which files make up a version: exact, where a folder listing would also show older ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.jobs.base import SCHEMA_VERSION


@dataclass(slots=True)
class ListedShard:
    """A shard and its file, as a path or URL that a foreign engine can open."""

    region: str
    shard: str
    file: str
    records: int
    bytes: int
    category: str


@dataclass(slots=True)
class Listing:
    """The shards of a version."""

    dataset: str
    version: str
    shards: list[ListedShard]

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def list_files(reference: str, *, config: GeodataConfig | None = None) -> Listing:
    """List the shards of the dataset version that `reference` names."""
    place = locate(reference, config)
    catalog = Catalog.at(place, "ls")
    index = catalog.index(place.version)
    shards = [
        ListedShard(
            region=region,
            shard=shard.shard_id,
            file=f"{catalog.store(index, region).url}/{shard.main.path}",
            records=shard.live,
            bytes=shard.nbytes,
            category=shard.tag.data_category if shard.tag.kind == "data" else shard.tag.kind,
        )
        for region in sorted(index.regions)
        for shard in catalog.shards(index, region)
    ]
    return Listing(index.dataset, index.version, shards)
