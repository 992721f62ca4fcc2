"""What a dataset holds: schema, versions, regions × tags × records × bytes, first records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import ConfigError, PolicyDenied
from geodata.formats import get_format
from geodata.jobs.base import SCHEMA_VERSION
from geodata.jobs.shown import shown
from geodata.manifest import Index, Shard
from geodata.partition.opening import open_checking
from geodata.policy import Movement
from geodata.schema import KEY

PURPOSE = "inspect"
SHEET = 24
"""Records on a contact sheet."""

Record = tuple[str, pa.RecordBatch, int]
"""A region, a batch, and a row of it."""


@dataclass(slots=True)
class InspectReport:
    """A version of a dataset; `head` are its first records, as one can look at them."""

    dataset: str
    root: str
    format: str
    version: str
    versions: list[str]
    created_at: str
    schema: list[dict[str, Any]]
    labels: dict[str, list[str]]
    records: int
    bytes: int
    regions: dict[str, dict[str, Any]]
    head: list[dict[str, Any]] = field(default_factory=list)
    denied: int = 0
    """Records of the shards asked for that policy does not let this region see."""
    png: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def inspect(
    reference: str,
    *,
    config: GeodataConfig | None = None,
    head: int = 0,
    shard: str | None = None,
    png: Path | None = None,
) -> InspectReport:
    """Describe the dataset version that `reference` names.

    With `head`, show its first records, going round the regions; with `shard`, those of the shard
    whose id begins so. `png` draws them (24 unless `head` says otherwise) as a contact sheet. What
    policy denies is left out and counted; PolicyDenied where that is all there is.
    """
    if png is not None and (png.is_dir() or (png.exists() and not png.is_file()) or not png.name):
        raise ConfigError("no place for a picture", file=str(png), hint="--png names a file")
    place = locate(reference, config)
    catalog = Catalog.at(place, PURPOSE)
    index = catalog.index(place.version)
    regions = {
        name: {
            "records": entry.records,
            "bytes": entry.nbytes,
            "shards": entry.shards,
            "root": catalog.store(index, name).url,
            "tags": [total.model_dump(by_alias=True) for total in entry.tags],
        }
        for name, entry in index.regions.items()
    }
    report = InspectReport(
        dataset=index.dataset,
        root=place.root,
        format=index.format,
        version=index.version,
        versions=[str(version) for version in catalog.versions()],
        created_at=index.created_at,
        schema=index.schema_["fields"],
        labels=index.labels,
        records=index.records,
        bytes=index.nbytes,
        regions=regions,
    )
    count = head or (SHEET if png else 1 if shard else 0)
    found = _look(catalog, index, count, shard, report) if count else []
    report.head = [
        {"__region__": region, **shown(batch, row, index.labels)} for region, batch, row in found
    ]
    if png is not None:
        _draw(report, index, found, png)
    return report


def _draw(report: InspectReport, index: Index, found: Sequence[Record], png: Path) -> None:
    from geodata.jobs import contactsheet

    tiles = [contactsheet.tile_of(batch, row, region, index.labels) for region, batch, row in found]
    title = f"{report.dataset} {report.version} · {report.format} · {len(tiles)} of "
    contactsheet.draw(f"{title}{report.records:,} records", tiles, png)
    report.png = str(png)


def _look(
    catalog: Catalog, index: Index, count: int, shard: str | None, report: InspectReport
) -> list[Record]:
    """Return the first records that may be read here, going round the regions."""
    chosen = {
        region: [s for s in catalog.shards(index, region) if s.shard_id.startswith(shard or "")]
        for region in sorted(index.regions)
    }
    if shard is not None and not any(chosen.values()):
        raise ConfigError(f"no shard '{shard}'", hint="geodata ls lists them")
    readable = {region: _readable(catalog, region, own) for region, own in chosen.items()}
    total, seen = (sum(s.live for own in of.values() for s in own) for of in (chosen, readable))
    report.denied = total - seen
    if total and not seen:
        raise PolicyDenied(
            f"{catalog.access.here} may see none of the {total:,} records",
            hint="geodata inspect without --head shows the tags",
        )
    sources = [_records(catalog, index, region, own) for region, own in readable.items()]
    return list(islice(_in_turn(sources), count))


def _readable(catalog: Catalog, region: str, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards that policy lets this region read; what it denies is written down."""
    gate, here = catalog.access.gate, catalog.access.here
    allowed = []
    for shard in shards:
        movement = Movement("read", shard.tag, region, here, PURPOSE, shard.shard_id, shard.live)
        if gate.decide(movement).allowed:
            allowed.append(shard)
        else:
            gate.record(movement)
    return allowed


def _in_turn(sources: list[Iterator[Record]]) -> Iterator[Record]:
    while sources:
        for source in list(sources):
            record = next(source, None)
            if record is None:
                sources.remove(source)
            else:
                yield record


def _records(
    catalog: Catalog, index: Index, region: str, shards: Sequence[Shard]
) -> Iterator[Record]:
    store = catalog.store(index, region)
    form, schema = get_format(index.format), schemas.from_json(index.schema_)
    for shard in shards:
        reader = open_checking(form, store, shard, schema)
        try:
            for unit in range(len(reader.unit_slots)):
                batch = reader.read_unit(unit)
                for row in np.flatnonzero(batch.column(KEY).is_valid()).tolist():
                    yield region, batch, row
        finally:
            reader.close()
