"""Routes records by tag: survey, spill, gather. Each function is one task of the shard job.

A destination is the records of one tag whose key hashes fall in one range, in the order of the
hashes: the shuffle at write time. Surveying counts bytes by tag and hash bin, from which the plan
cuts destinations; spilling sorts a staging shard by destination; gathering writes a destination.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata import schema as schemas
from geodata.catalog import make_access
from geodata.config import RegionSection, TaggingSection
from geodata.durable import replacing
from geodata.errors import ConfigError
from geodata.formats import get_format
from geodata.manifest import Shard
from geodata.order import UInt64s, hash_keys
from geodata.partition.cutter import ShardCutter
from geodata.schema import KEY
from geodata.stores import open_store
from geodata.tagging import Classes, Classifier
from geodata.tags import STAGING, Tag

SPILL_BYTES = 64 << 20
BINS_LOG2 = 16
HASH = "__hash__"
TAG = "__tag__"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a worker needs to classify."""

    tagging: TaggingSection
    regions: Mapping[str, RegionSection]
    today: dt.date
    keys: Mapping[str, bytes] = field(repr=False)

    def classifier(self) -> Classifier:
        return Classifier(self.tagging, self.regions, self.today, self.keys)


@dataclass(frozen=True, slots=True)
class Input:
    """A staging shard and how to classify its records."""

    root: str
    form: str
    shard: Shard
    rules: Rules
    seed: int
    target: str


@dataclass(frozen=True, slots=True)
class Destination:
    """One shard to be: the records of a tag whose hash bin lies in [low, high)."""

    tag: Tag
    low: int
    high: int


def cut_bins(bins: Mapping[Any, int], shard_bytes: int) -> list[int]:
    """Return the upper bin (exclusive) of each shard, for shards of even size."""
    numbers = np.array(sorted(int(number) for number in bins), np.int64)
    sizes = np.array([bins[number] for number in numbers], np.int64)
    total, room = int(sizes.sum()), max(shard_bytes - int(sizes.max()), 1)
    count = min(-(-total // room) if total > shard_bytes else 1, len(numbers))
    ends = np.cumsum(sizes)
    last = np.searchsorted(ends, [total * (i + 1) // count for i in range(count - 1)])
    cuts = sorted({int(numbers[place]) + 1 for place in last})
    return [*cuts, 1 << BINS_LOG2]


def destinations_of(plan: Mapping[str, Any]) -> list[Destination]:
    found = []
    for part in plan["tags"]:
        low = 0
        for high in part["cuts"]:
            found.append(Destination(Tag.from_json(part["tag"]), low, high))
            low = high
    return found


def _classified(item: Input) -> Iterator[tuple[pa.RecordBatch, Classes, UInt64s]]:
    """Yield a staging shard's units with the class and the hash of each record."""
    access = make_access(Path(item.root) / "audit", STAGING, "shard")
    store = open_store(item.root, region=STAGING, access=access)
    files = item.shard.files
    tag, about = item.shard.tag, item.shard.shard_id
    path = store.local_path(files["main"].path, tag, about, item.shard.live)
    index = store.local_path(files["index"].path, tag, about) if "index" in files else None
    if path is None:
        raise ConfigError("a staging dataset lies in a local folder", file=item.root)
    reader = get_format(item.form).open(path, index)
    classifier = item.rules.classifier()
    try:
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit)
            classes = classifier.classify(batch)
            hashes = hash_keys(batch.column(KEY).to_pylist(), "shard", item.seed)
            yield classifier.pseudonymise(batch, classes), classes, hashes
    finally:
        reader.close()


def survey_shard(item: Input) -> dict[str, Any]:
    """Return, by tag digest, the bytes in each hash bin and the totals of a staging shard."""
    form = get_format(item.target)
    found: dict[str, Any] = {}
    for batch, classes, hashes in _classified(item):
        sizes = form.row_nbytes(batch)
        bins = (hashes >> np.uint64(64 - BINS_LOG2)).astype(np.int64)
        for tag in np.unique(classes.number):
            rows = classes.number == tag
            digest = classes.tags[tag].digest
            part = found.setdefault(digest, {"bins": Counter(), "totals": Counter()})
            numbers, inverse = np.unique(bins[rows], return_inverse=True)
            nbytes = np.bincount(inverse, weights=sizes[rows]).astype(np.int64)
            part["bins"].update(dict(zip(numbers.tolist(), nbytes.tolist(), strict=True)))
            part["totals"].update(
                records=int(rows.sum()),
                nbytes=int(sizes[rows].sum()),
                unknown=int(classes.unknown[rows].sum()),
            )
    return found


@dataclass(frozen=True, slots=True)
class SpillTask:
    item: Input
    destinations: list[Destination]
    path: str


def spill_shard(task: SpillTask) -> dict[str, Any]:
    """Write a staging shard's records as Arrow IPC, a batch per destination and run."""
    path, tags = Path(task.path), task.item.rules.classifier().tags
    runs: list[int] = []
    records = 0
    with replacing(path) as temporary:
        writer = None
        try:
            for table in _runs(task.item):
                if writer is None:
                    stored = table.schema.remove(table.schema.get_field_index(TAG))
                    writer = pa.ipc.new_file(str(temporary), stored)
                for number, batch in _routed(table, tags, task.destinations):
                    writer.write_batch(batch)
                    runs.append(number)
                    records += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            temporary.touch()
    return {"path": str(path), "runs": runs, "records": records}


def _runs(item: Input) -> Iterator[pa.Table]:
    """Yield a staging shard's records with number of tag and hash, some 64 MiB at a time."""
    held: list[pa.RecordBatch] = []
    nbytes = 0
    for batch, classes, hashes in _classified(item):
        marked = batch.append_column(HASH, pa.array(hashes, pa.uint64()))
        held.append(marked.append_column(TAG, pa.array(classes.number)))
        nbytes += batch.nbytes
        if nbytes >= SPILL_BYTES:
            yield pa.Table.from_batches(held)
            held, nbytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _routed(
    table: pa.Table, tags: Sequence[Tag], destinations: Sequence[Destination]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (destination, its rows of the table)."""
    bins = (table.column(HASH).to_numpy() >> np.uint64(64 - BINS_LOG2)).astype(np.int64)
    numbers = table.column(TAG).to_numpy()
    table = table.drop_columns([TAG])
    for tag in np.unique(numbers):
        places = [n for n, d in enumerate(destinations) if d.tag == tags[tag]]
        highs = np.array([destinations[n].high for n in places])
        rows = np.flatnonzero(numbers == tag)
        chosen = np.searchsorted(highs, bins[rows], side="right")
        for number in np.unique(chosen):
            taken = table.take(pa.array(rows[chosen == number])).combine_chunks()
            for batch in taken.to_batches():
                yield places[number], batch


def sources_of(spills: Sequence[dict[str, Any]], destination: int) -> list[tuple[str, list[int]]]:
    """Return for each spill that holds rows of a destination its path and batch numbers."""
    found = []
    for spill in spills:
        batches = [n for n, owner in enumerate(spill["runs"]) if owner == destination]
        if batches:
            found.append((spill["path"], batches))
    return found


@dataclass(frozen=True, slots=True)
class WriteTask:
    number: int
    tag: Tag
    sources: list[tuple[str, list[int]]]
    schema: dict[str, Any]
    form: str
    shard_bytes: int
    work: str
    dest: str
    audit: str
    here: str


def write_shard(task: WriteTask) -> dict[str, Any]:
    """Gather one destination from all spills, in the order of the hashes, and deliver it."""
    batches = []
    for path, numbers in task.sources:
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            batches += [reader.get_batch(number) for number in numbers]
    table = pa.Table.from_batches(batches)
    table = table.take(pc.sort_indices(table, [(HASH, "ascending"), (KEY, "ascending")]))
    table = table.drop_columns([HASH])
    schema = schemas.from_json(task.schema)
    cutter = ShardCutter(
        get_format(task.form),
        schema,
        shard_bytes=task.shard_bytes,
        tag=task.tag,
        summary={"determined_by": "rules"},
        work=Path(task.work),
        name=f"shard-{task.number:06}",
    )
    for batch in table.to_batches(max_chunksize=1 << 16):
        cutter.write(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    access = make_access(Path(task.audit), task.here, "shard")
    store = open_store(task.dest, region=task.tag.region, access=access)
    lines = [sealed.deliver(store).to_line() for sealed in cutter.close()]
    return {"shards": lines, "records": table.num_rows}
