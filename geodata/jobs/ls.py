"""Which files make up a version: exact, where a folder listing would also show older ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import ManifestError
from geodata.formats.joined import column_files
from geodata.jobs.base import SCHEMA_VERSION
from geodata.manifest import Shard


@dataclass(slots=True)
class ListedShard:
    """A shard and its file, as a path or URL that a foreign engine can open.

    `columns` are the files of columns added later, by column.
    """

    region: str
    shard: str
    file: str
    records: int
    bytes: int
    category: str
    columns: dict[str, str]


@dataclass(slots=True)
class Listing:
    """The shards of a version; `problems` are {region, problem} of lists that are damaged."""

    dataset: str
    version: str
    shards: list[ListedShard]
    problems: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def list_files(reference: str, *, config: GeodataConfig | None = None) -> Listing:
    """List the shards of the dataset version that `reference` names."""
    place = locate(reference, config)
    catalog = Catalog.at(place, "ls")
    index = catalog.index(place.version)
    listing = Listing(index.dataset, index.version, [])
    for region in sorted(index.regions):
        root = catalog.store(index, region).url
        try:
            shards = catalog.shards(index, region)
        except ManifestError as error:
            listing.problems.append({"region": region, "problem": str(error)})
            continue
        listing.shards += [_listed(region, root, shard) for shard in shards]
    return listing


def _listed(region: str, root: str, shard: Shard) -> ListedShard:
    return ListedShard(
        region=region,
        shard=shard.shard_id,
        file=f"{root}/{shard.main.path}",
        records=shard.live,
        bytes=shard.nbytes,
        category=shard.tag.data_category if shard.tag.kind == "data" else shard.tag.kind,
        columns={name: f"{root}/{ref.path}" for name, ref in column_files(shard.files).items()},
    )
