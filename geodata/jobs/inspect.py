"""What a dataset holds: schema, versions, regions × tags × records × bytes, first records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.errors import PolicyDenied
from geodata.formats import get_format
from geodata.jobs.base import SCHEMA_VERSION
from geodata.manifest import Index
from geodata.policy import Movement
from geodata.schema import KEY, SUBJECT

SHOWN_BYTES = 200
PURPOSE = "inspect"


@dataclass(slots=True)
class InspectReport:
    """A version of a dataset; `head` are its first records, long values cut for showing."""

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

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def inspect(reference: str, *, config: GeodataConfig | None = None, head: int = 0) -> InspectReport:
    """Describe the dataset version that `reference` names; with `head`, show its first records."""
    place = locate(reference, config)
    catalog = Catalog.at(place, PURPOSE)
    index = catalog.index(place.version)
    regions = {
        name: {
            "records": entry.records,
            "bytes": entry.nbytes,
            "shards": entry.shards,
            "root": entry.root,
            "tags": [total.model_dump(by_alias=True) for total in entry.tags],
        }
        for name, entry in index.regions.items()
    }
    return InspectReport(
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
        head=[_shown(row) for row in _first(catalog, index, head)] if head else [],
    )


def _first(catalog: Catalog, index: Index, count: int) -> Iterator[dict[str, Any]]:
    """Yield the first records that may be read here, going round the regions."""
    sources = [_records(catalog, index, region) for region in sorted(index.regions)]
    while sources and count:
        for source in list(sources):
            row = next(source, None)
            if row is None:
                sources.remove(source)
            elif count:
                count -= 1
                yield row


def _records(catalog: Catalog, index: Index, region: str) -> Iterator[dict[str, Any]]:
    store = catalog.store(index, region)
    form = get_format(index.format)
    here = catalog.access.here
    for shard in catalog.shards(index, region):
        movement = Movement("read", shard.tag, region, here, PURPOSE, shard.shard_id)
        if not catalog.access.gate.decide(movement).allowed:
            continue
        about = shard.shard_id
        path = store.local_path(shard.main.path, shard.tag, about, shard.live)
        if path is None:
            raise PolicyDenied("the shard is not in a local store", shard=about)
        beside = shard.files.get("index")
        reader = form.open(path, path.parent / beside.path.rsplit("/", 1)[1] if beside else None)
        try:
            for unit in range(len(reader.unit_slots)):
                batch = reader.read_unit(unit)
                for row in range(batch.num_rows):
                    yield {"__region__": region, **_row(batch, row)}
        finally:
            reader.close()


def _row(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    one = batch.slice(row, 1)
    values = {name: _value(array) for name, array in zip(one.schema.names, one, strict=True)}
    return {name: value for name, value in values.items() if name != SUBJECT or value is not None}


def _value(array: pa.Array) -> Any:
    """Return a value as Python's, or as text where Python has none for it."""
    try:
        return array[0].as_py()
    except (ValueError, OverflowError, ImportError):
        return str(array[0].cast(pa.string())) if _castable(array) else str(array[0])


def _castable(array: pa.Array) -> bool:
    try:
        array.cast(pa.string())
    except pa.ArrowException:
        return False
    return True


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON values of bounded length."""
    return {name: value if name == KEY else _short(value) for name, value in row.items()}


def _short(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes {value[:8].hex()}…" if len(value) > 8 else value.hex()
    if isinstance(value, str):
        return value if len(value) <= SHOWN_BYTES else value[: SHOWN_BYTES - 1] + "…"
    if isinstance(value, list):
        return [_short(item) for item in value[:8]] + (["…"] if len(value) > 8 else [])
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    plain = isinstance(value, (int, bool, type(None)))
    return value if plain or (isinstance(value, float) and math.isfinite(value)) else str(value)
