"""Writes runs of a source's pieces as staging shards; each function call is one task of convert.

A record is written, left out because an equal one came before it, or rejected with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from geodata import schema as schemas
from geodata.catalog import make_access
from geodata.formats import get_format
from geodata.partition.cutter import ShardCutter
from geodata.partition.dedupe import Prints, Repeats, without
from geodata.partition.rejects import OnError, Rejects
from geodata.prepare import Preparing, Refuse, run_steps, steps_of
from geodata.schema import KEY
from geodata.sources.base import Piece, Reject, Source
from geodata.sources.unchanged import check_unchanged
from geodata.stores import open_store
from geodata.tags import STAGING, UNCLASSIFIED


@dataclass(frozen=True, slots=True)
class StagingTask:
    """The pieces that one task makes shards of, each with the rows of its file before it.

    `name` is that of its quarantine; `item` its number among what is compared for repeats.
    """

    number: int
    name: str
    pieces: tuple[tuple[Piece, int], ...]
    item: int = 0


@dataclass(frozen=True, slots=True)
class Staging:
    """The source, how its records are prepared, and where and how they are written.

    `read` is the schema of what the source yields, `schema` that of what is stored. At most
    `max_errors` of a task are rejected. `repeats` are files in the folder `prints` that say which
    records are left out; `columns` are those that make records equal. A schema that is `sampled`
    must hold every record.
    """

    source: Source
    read: dict[str, Any]
    schema: dict[str, Any]
    labels: dict[str, list[str]]
    preparing: Preparing
    form: str
    shard_bytes: int
    on_error: OnError
    max_errors: int | None
    dest: str
    work: str
    quarantine: str
    prints: str
    columns: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    sampled: bool = False


class Misfit(Exception):
    """A record does not fit the schema of a sample."""


def write_staging(shared: Staging, task: StagingTask) -> dict[str, Any]:
    """Write a task's shards into the staging store and return what was done, if it is no misfit."""
    try:
        return {**_write(shared, task), "misfit": False}
    except Misfit:
        return {"misfit": True}


def _write(shared: Staging, task: StagingTask) -> dict[str, Any]:
    cutter = ShardCutter(
        get_format(shared.form),
        schemas.from_json(shared.schema),
        shard_bytes=shared.shard_bytes,
        tag=UNCLASSIFIED,
        summary={"source": shared.source.source_id},
        work=Path(shared.work),
        name=f"task-{task.number:06}",
    )
    repeated = Repeats(Path(shared.prints), shared.repeats).rows(task.item)
    place = Path(shared.quarantine) / f"{task.name}.jsonl"
    records = seen = 0
    own_keys = False
    with Rejects(shared.on_error, shared.max_errors, place) as rejects:
        for batch in _prepared(shared, task, _strictly(rejects) if shared.sampled else rejects):
            kept = without(batch, repeated, seen)
            seen += batch.num_rows
            records += kept.num_rows
            own_keys = own_keys or not _made_keys(kept.column(KEY), shared.source.source_id)
            cutter.write(kept)
        _check_unchanged(shared.source, task)
    access = make_access(Path(shared.dest) / "audit", STAGING, "convert")
    store = open_store(shared.dest, region=STAGING, access=access)
    return {
        "records": records,
        "rejected": rejects.reasons.total,
        "duplicates": seen - records,
        "reasons": rejects.reasons.to_json(),
        "on_error": shared.on_error,
        "own_keys": own_keys,
        "shards": [sealed.deliver(store).to_line() for sealed in cutter.close()],
    }


def print_staging(shared: Staging, task: StagingTask) -> dict[str, Any]:
    """Write the fingerprints of a task's records, in the order in which they are written."""
    prints = Prints(Path(shared.prints), task.name)
    on_error: OnError = "fail" if shared.on_error == "fail" else "skip"
    with Rejects(on_error, None, Path(shared.quarantine)) as rejects:
        for batch in _prepared(shared, task, rejects):
            prints.add(batch.select(list(shared.columns)), batch.column(KEY))
        _check_unchanged(shared.source, task)
    return {**prints.close(), "rejected": rejects.reasons.total}


def _prepared(
    shared: Staging, task: StagingTask, reject: Callable[[Reject], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task as they are stored."""
    read, stored = schemas.from_json(shared.read), schemas.from_json(shared.schema)
    steps = steps_of(shared.preparing)
    for piece, first_row in task.pieces:
        for batch in shared.source.read(piece, first_row, read, shared.labels, reject):
            made = run_steps(batch, steps, _refusing(batch, reject)) if steps else batch
            yield made if made.schema.equals(stored) else schemas.fit(made, stored)


def _strictly(rejects: Rejects) -> Callable[[Reject], None]:
    """Return what takes rejected records, but none that only the schema does not hold."""

    def reject(bad: Reject) -> None:
        if bad.unfit:
            raise Misfit
        rejects(bad)

    return reject


def _made_keys(keys: pa.Array, source_id: str) -> bool:
    """Return whether all keys are made of the source's id, so that no other source has them."""
    made = pc.or_(pc.starts_with(keys, f"{source_id}/"), pc.starts_with(keys, f"{source_id}#"))
    return bool(pc.all(pc.or_(made, pc.equal(keys, source_id))).as_py() is not False)


def _check_unchanged(source: Source, task: StagingTask) -> None:
    """Refuse a task whose files changed since they were listed."""
    if source.reads_own_files and not source.checks_as_it_reads:
        for piece, _ in task.pieces:
            check_unchanged(source, piece.numbers)


def _refusing(batch: pa.RecordBatch, reject: Callable[[Reject], None]) -> Refuse:
    """Return what rejects a row of the batch, by its key."""
    keys = batch.column(KEY)
    return lambda row, reason, raw: reject(Reject(keys[row].as_py(), None, reason, raw))
