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
from geodata.durable import reading_kept, replacing
from geodata.errors import SchemaError
from geodata.formats import ShardReader, get_format
from geodata.manifest import Shard
from geodata.order import UInt64s, hash_keys
from geodata.partition.cutter import ShardCutter
from geodata.partition.dedupe import LeftOut, without
from geodata.partition.finishing import Finisher, Finishing
from geodata.partition.fitting import Fitting
from geodata.partition.opening import open_in_place
from geodata.prepare.packing import OVERHEAD_BYTES, Packing
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
        """Return the classifier of these rules."""
        return Classifier(self.tagging, self.regions, self.today, self.keys)


@dataclass(frozen=True, slots=True)
class Routing:
    """The staging dataset, how to classify its records, and where they go.

    `schema` and `form` are those of the staging shards, `target` is the format of those to be. With
    `packing` only the columns that sequences are made of go on; with `fitting` records become those
    of a dataset that is there; those `left_out` do not.
    """

    root: str
    schema: dict[str, Any]
    form: str
    rules: Rules
    seed: int
    target: str
    packing: Packing | None = None
    fitting: Fitting | None = None
    left_out: LeftOut | None = None
    destinations: Sequence[Destination] = ()


@dataclass(frozen=True, slots=True)
class Destination:
    """One shard to be: the records of a tag whose hash bin lies in [low, high)."""

    tag: Tag
    low: int
    high: int


def cut_bins(bins: Mapping[Any, int], shard_bytes: int) -> list[int]:
    """Return the upper bin (exclusive) of each shard; a bin above the bound stands alone."""
    cuts, held = [], 0
    for number in sorted(bins):
        if held and held + bins[number] > shard_bytes:
            cuts.append(int(number))
            held = 0
        held += bins[number]
    return [*cuts, 1 << BINS_LOG2]


def destinations_of(plan: Mapping[str, Any]) -> list[Destination]:
    """Return the destinations of a plan, tag by tag."""
    found = []
    for part in plan["tags"]:
        low = 0
        for high in part["cuts"]:
            found.append(Destination(Tag.from_json(part["tag"]), low, high))
            low = high
    return found


def classified(
    routing: Routing, shard: Shard, *, check: bool = True
) -> Iterator[tuple[pa.RecordBatch, Classes, UInt64s]]:
    """Yield a staging shard's units with the class and the hash of each record.

    With `check` its files must match their digests: damage would get one of its own.
    """
    access = make_access(Path(routing.root) / "audit", STAGING, "shard")
    store = open_store(routing.root, region=STAGING, access=access)
    schema = schemas.from_json(routing.schema)
    reader = open_in_place(get_format(routing.form), store, shard, schema, check=check)
    classifier = routing.rules.classifier()
    try:
        for staged in _kept(routing, shard, reader):
            classes = classifier.classify(staged)
            hashes = hash_keys(staged.column(KEY).to_pylist(), "shard", routing.seed)
            batch = classifier.pseudonymise(staged, classes)
            if routing.packing is not None:
                batch = batch.select(routing.packing.columns)
            if routing.fitting is not None:
                batch = routing.fitting.fit(batch)
            yield batch, classes, hashes
    finally:
        reader.close()


def _kept(routing: Routing, shard: Shard, reader: ShardReader) -> Iterator[pa.RecordBatch]:
    """Yield the records of each unit but those left out."""
    left_out = routing.left_out.rows(shard.shard_id) if routing.left_out else None
    first = 0
    for unit, slots in enumerate(reader.unit_slots):
        batch = reader.read_unit(unit)
        kept = batch if left_out is None else without(batch, left_out, first)
        first += slots
        if kept.num_rows:
            yield kept


def survey_shard(routing: Routing, shard: Shard) -> dict[str, Any]:
    """Return, by tag digest, the bytes in each hash bin and the totals of a staging shard."""
    form = get_format(routing.target)
    found: dict[str, Any] = {}
    for batch, classes, hashes in classified(routing, shard, check=False):  # spilling does
        sizes = form.row_nbytes(batch)
        tokens = np.zeros(batch.num_rows, np.int64)
        if routing.packing is not None:
            tokens = routing.packing.tokens(batch)
            sizes = sizes + tokens * OVERHEAD_BYTES // routing.packing.length
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
            if routing.packing is not None:
                part["totals"].update(tokens=int(tokens[rows].sum()))
    return found


@dataclass(frozen=True, slots=True)
class SpillTask:
    """A staging shard, and the file that it is spilled to."""

    shard: Shard
    path: str


def spill_shard(routing: Routing, task: SpillTask) -> dict[str, Any]:
    """Write a staging shard's records as Arrow IPC, a batch per destination and run."""
    path, tags = Path(task.path), routing.rules.classifier().tags
    runs: list[int] = []
    records = 0
    with replacing(path) as temporary:
        writer = None
        try:
            for table in _runs(routing, task.shard):
                if writer is None:
                    stored = table.schema.remove(table.schema.get_field_index(TAG))
                    writer = pa.ipc.new_file(str(temporary), stored)
                for number, batch in _routed(table, tags, routing.destinations):
                    writer.write_batch(batch)
                    runs.append(number)
                    records += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            temporary.touch()
    return {"path": str(path), "runs": runs, "records": records}


def _runs(routing: Routing, shard: Shard) -> Iterator[pa.Table]:
    """Yield a staging shard's records with number of tag and hash, some 64 MiB at a time."""
    held: list[pa.RecordBatch] = []
    nbytes = 0
    for batch, classes, hashes in classified(routing, shard):
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
    chosen = np.empty(len(bins), np.int64)
    for tag in np.unique(numbers):
        places = np.array([n for n, d in enumerate(destinations) if d.tag == tags[tag]])
        highs = np.array([destinations[n].high for n in places])
        rows = np.flatnonzero(numbers == tag)
        chosen[rows] = places[np.searchsorted(highs, bins[rows], side="right")]
    order = np.argsort(chosen, kind="stable")
    ordered = table.drop_columns([TAG]).take(pa.array(order)).combine_chunks()
    found, starts = np.unique(chosen[order], return_index=True)
    for number, start, stop in zip(found, starts, [*starts[1:], len(order)], strict=True):
        for batch in ordered.slice(start, stop - start).to_batches():
            yield int(number), batch


def sources_by_destination(
    spills: Sequence[dict[str, Any]],
) -> dict[int, list[tuple[str, list[int]]]]:
    """Return for each destination the spills that hold rows of it, with the batch numbers."""
    found: dict[int, dict[str, list[int]]] = {}
    for spill in spills:
        for number, owner in enumerate(spill["runs"]):
            found.setdefault(owner, {}).setdefault(spill["path"], []).append(number)
    return {owner: list(sources.items()) for owner, sources in found.items()}


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A destination, and the batches of the spills that hold its records."""

    number: int
    tag: Tag
    sources: list[tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Output:
    """How and where destinations are written; `roots` are those of the regions."""

    schema: dict[str, Any]
    form: str
    shard_bytes: int
    work: str
    roots: Mapping[str, str]
    audit: str
    here: str
    finishing: Finishing


def write_shard(output: Output, task: WriteTask) -> dict[str, Any]:
    """Gather one destination from all spills, in the order of the hashes, and deliver it."""
    batches = []
    for path, numbers in task.sources:
        with reading_kept(Path(path)), pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            batches += [reader.get_batch(number) for number in numbers]
    table = pa.Table.from_batches(batches)
    table = table.take(pc.sort_indices(table, [(HASH, "ascending"), (KEY, "ascending")]))
    _check_keys(table)
    table = table.drop_columns([HASH])
    schema = schemas.from_json(output.schema)
    cutter = ShardCutter(
        get_format(output.form),
        schema,
        shard_bytes=output.shard_bytes,
        tag=task.tag,
        summary={"determined_by": "rules"},
        work=Path(output.work),
        name=f"shard-{task.number:06}",
    )
    finisher = Finisher(output.finishing, task.tag, schema)
    for batch in finisher.batches(table):
        cutter.write(batch)
    access = make_access(Path(output.audit), output.here, "shard")
    store = open_store(output.roots[task.tag.region], region=task.tag.region, access=access)
    sealed = finisher.counted(cutter.close())
    lines = [shard.deliver(store).to_line() for shard in sealed]
    return {"shards": lines, "records": table.num_rows, "done": finisher.done}


def _check_keys(table: pa.Table) -> None:
    """Raise SchemaError if two neighbours of a sorted table have one key."""
    keys = table.column(KEY)
    twice = pc.equal(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1))
    if pc.any(twice).as_py():
        key = keys[pc.index(twice, True).as_py()].as_py()
        raise SchemaError(
            "two records have one key", key=key, hint="Keys are unique: mend the source's __key__"
        )
