"""Writes runs of a source's pieces as staging shards; each function call is one task of convert.

A record is written, or rejected with its reason; rejected ones may be set aside with their bytes.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import make_access
from geodata.durable import write_bytes
from geodata.errors import TooManyBadRecords
from geodata.formats import get_format
from geodata.partition.cutter import ShardCutter
from geodata.prepare import Preparing, Refuse, run_steps, steps_of
from geodata.schema import KEY
from geodata.sources.base import Piece, Reject, Source
from geodata.stores import open_store
from geodata.tags import STAGING, UNCLASSIFIED

OnError = Literal["fail", "skip", "quarantine"]


@dataclass(frozen=True, slots=True)
class StagingTask:
    """The pieces that one task makes shards of, each with the rows of its file before it."""

    number: int
    pieces: tuple[tuple[Piece, int], ...]


@dataclass(frozen=True, slots=True)
class Staging:
    """The source, how its records are prepared, and where and how they are written.

    `read` is the schema of what the source yields, `schema` that of what is stored.
    """

    source: Source
    read: dict[str, Any]
    schema: dict[str, Any]
    labels: dict[str, list[str]]
    preparing: Preparing
    form: str
    shard_bytes: int
    on_error: OnError
    dest: str
    work: str
    quarantine: str


def write_staging(shared: Staging, task: StagingTask) -> dict[str, Any]:
    """Write a task's shards into the staging store and return what was done."""
    rejects: list[Reject] = []

    def reject(bad: Reject) -> None:
        if shared.on_error == "fail":
            raise TooManyBadRecords(
                bad.reason,
                file=bad.file,
                row=bad.row,
                hint="Mend it, or use --on-error skip or quarantine",
            )
        rejects.append(
            bad if shared.on_error == "quarantine" else Reject(bad.file, bad.row, bad.reason)
        )

    read = schemas.from_json(shared.read)
    steps = steps_of(shared.preparing)
    cutter = ShardCutter(
        get_format(shared.form),
        schemas.from_json(shared.schema),
        shard_bytes=shared.shard_bytes,
        tag=UNCLASSIFIED,
        summary={"source": shared.source.source_id},
        work=Path(shared.work),
        name=f"task-{task.number:06}",
    )
    records = 0
    for piece, first_row in task.pieces:
        for batch in shared.source.read(piece, first_row, read, shared.labels, reject):
            made = run_steps(batch, steps, _refusing(batch, reject)) if steps else batch
            records += made.num_rows
            cutter.write(made)
    access = make_access(Path(shared.dest) / "audit", STAGING, "convert")
    store = open_store(shared.dest, region=STAGING, access=access)
    shards = [sealed.deliver(store).to_line() for sealed in cutter.close()]
    if rejects and shared.on_error == "quarantine":
        _write_quarantine(Path(shared.quarantine) / f"task-{task.number:06}.jsonl", rejects)
    reasons = Counter(bad.reason for bad in rejects)
    return {
        "records": records,
        "rejected": len(rejects),
        "reasons": dict(reasons),
        "shards": shards,
    }


def _refusing(batch: pa.RecordBatch, reject: Callable[[Reject], None]) -> Refuse:
    """Return what rejects a row of the batch, by its key."""
    keys = batch.column(KEY)
    return lambda row, reason, raw: reject(Reject(keys[row].as_py(), None, reason, raw))


def _write_quarantine(path: Path, rejects: Sequence[Reject]) -> None:
    """Write rejected records with their reason and original bytes (base64), one a line."""
    lines = [
        json.dumps(
            {
                "format_version": 1,
                "file": bad.file,
                "row": bad.row,
                "reason": bad.reason,
                "raw": base64.b64encode(bad.raw).decode(),
            }
        )
        for bad in rejects
    ]
    write_bytes(path, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
