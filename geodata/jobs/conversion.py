"""Plans and writes a conversion: what `convert` and `append` have in common.

The plan lists the source, finds the schema, and cuts the corpus into tasks, each of which owns
whole shards. A record is written, or rejected with its reason: nothing is lost silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import ConfigError, GeodataError, SchemaError, TooManyBadRecords
from geodata.executors import Executor
from geodata.executors.local import LocalExecutor
from geodata.jobs.base import JobFolder, Progress, digest_of
from geodata.manifest import Shard
from geodata.partition.staging import OnError, Staging, StagingTask, write_staging
from geodata.prepare import AS_IS, Preparing, prepared_schema, steps_of
from geodata.sources.base import Piece, Scan, Source, first_rows

PIECE_BYTES = 8 << 20
ALGORITHM = "convert-1"


@dataclass(frozen=True, slots=True)
class Options:
    """What decides the result of a conversion beside its source."""

    format: str
    on_error: OnError
    shard_size: int
    preparing: Preparing = AS_IS
    provenance: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain JSON; those not used are left out."""
        given: dict[str, Any] = {
            "format": self.format,
            "on_error": self.on_error,
            "shard_size": self.shard_size,
            "algorithm": ALGORITHM,
        }
        if self.preparing != AS_IS:
            given["preparing"] = self.preparing.to_json()
            given["steps"] = [step.identity() for step in steps_of(self.preparing)]
        if self.provenance is not None:
            given["provenance"] = self.provenance
        return given


@dataclass(slots=True)
class Written:
    """What a conversion wrote: records_in = records_out + rejected."""

    schema: dict[str, Any]
    labels: dict[str, list[str]]
    shards: list[Shard]
    records_in: int
    records_out: int
    rejected: int
    reasons: dict[str, int]
    bytes_in: int
    quarantine: str | None


@dataclass(slots=True)
class Conversion:
    """A conversion of `source` whose shards are written into the staging store at `root`.

    `identity` is plain JSON: all that names the source and decides the result.
    """

    source: Source
    options: Options
    identity: dict[str, Any]
    folder: JobFolder
    root: Path
    progress: Progress
    digest: str = field(init=False)
    """Of all that decides the result."""

    @property
    def listing(self) -> list[dict[str, Any]]:
        """Return the source's files as plain JSON."""
        return [
            {"name": file.name, "nbytes": file.nbytes, "mtime_ns": file.mtime_ns}
            for file in self.source.files
        ]

    def __post_init__(self) -> None:
        self.digest = digest_of({**self.identity, "files": self.listing})

    def run(self, executor: Executor, max_errors: int | None, restart: bool) -> Written:
        """Plan or load the plan, and write what is missing."""
        digest = self.digest
        failed = self.folder.load("failed")
        if restart or (failed is not None and failed["digest"] != digest):
            self.folder.clear()  # the source was mended since bad records ended the last run
        plan = self.folder.load("plan")
        if plan is None:
            plan = self._plan(executor, digest)
            self.folder.save("plan", plan)
        elif plan["digest"] != digest:
            raise ConfigError(
                f"the source changed since this conversion was planned: {self._changed(plan)}",
                hint="Run it again with --restart to start over",
            )
        self.folder.clear_work()
        try:
            results = self._write(executor, plan, max_errors)
        except TooManyBadRecords:
            self.folder.save("failed", {"digest": digest})
            raise
        return self._written(plan, results)

    def _changed(self, plan: dict[str, Any]) -> str:
        before = {file["name"]: file for file in plan["files"]}
        after = {file["name"]: file for file in self.listing}
        names = sorted(before.keys() | after.keys())
        return next((n for n in names if before.get(n) != after.get(n)), "its options")

    def _plan(self, executor: Executor, digest: str) -> dict[str, Any]:
        pieces = self.source.pieces(PIECE_BYTES)
        self.progress.start("scan", sum(piece.nbytes for piece in pieces), "B")
        scans: dict[int, Scan] = {}
        glances = getattr(self.source, "glances", False)
        scanner = LocalExecutor(1) if glances else executor
        with closing(scanner.run(_scan, pieces, self.source)) as finished:
            for number, scan in finished:
                scans[number] = scan
                self.progress.advance(pieces[number].nbytes)
        self.progress.finish()
        ordered = [scans[number] for number in range(len(pieces))]
        first_wins = self.options.on_error != "fail"
        columns = self.source.merge(ordered, first_wins=first_wins)
        names: dict[str, set[str]] = {}
        for scan in ordered:
            for column, seen in scan.labels.items():
                names.setdefault(column, set()).update(seen)
        read = schemas.dataset_schema(self._with_origin(columns))
        steps = steps_of(self.options.preparing)
        return {
            "digest": digest,
            "files": self.listing,
            "pieces": [asdict(piece) for piece in pieces],
            "first_rows": first_rows(ordered),
            "rows": sum(scan.rows for scan in ordered),
            "read": schemas.to_json(read),
            "schema": schemas.to_json(prepared_schema(read, steps)),
            "labels": {column: sorted(seen, key=str.encode) for column, seen in names.items()},
        }

    def _with_origin(self, columns: pa.Schema) -> pa.Schema:
        name = self.options.provenance
        if name is None:
            return columns
        if name in columns.names:
            raise SchemaError(
                "the source has a column of this name",
                column=name,
                hint="Choose another for the origin: --provenance NAME",
            )
        return columns.append(schemas.origin_field(name))

    def _tasks(self, plan: dict[str, Any]) -> list[StagingTask]:
        pieces = [Piece(**piece) for piece in plan["pieces"]]
        groups = _groups(pieces, self.options.shard_size)
        return [
            StagingTask(number, tuple((pieces[i], plan["first_rows"][i]) for i in group))
            for number, group in enumerate(groups)
        ]

    def _shared(self, plan: dict[str, Any]) -> Staging:
        return Staging(
            source=self.source,
            read=plan["read"],
            schema=plan["schema"],
            labels=plan["labels"],
            preparing=self.options.preparing,
            form=self.options.format,
            shard_bytes=self.options.shard_size,
            on_error=self.options.on_error,
            dest=str(self.root),
            work=str(self.folder.work),
            quarantine=str(self._quarantine(plan)),
        )

    def _quarantine(self, plan: dict[str, Any]) -> Path:
        digest: str = plan["digest"]
        return self.root / "quarantine" / digest[:12]

    def _write(
        self, executor: Executor, plan: dict[str, Any], max_errors: int | None
    ) -> list[dict[str, Any]]:
        reasons: Counter[str] = Counter()

        def done(result: dict[str, Any]) -> None:
            reasons.update(result["reasons"])
            self.progress.advance(result["records"] + result["rejected"])
            check_bound(reasons.total(), reasons, max_errors)

        self.progress.start("convert", plan["rows"], "records")
        results = self.folder.run(
            "task",
            plan["digest"],
            executor,
            write_staging,
            self._tasks(plan),
            self._shared(plan),
            done,
        )
        self.progress.finish()
        return results

    def _written(self, plan: dict[str, Any], results: Sequence[dict[str, Any]]) -> Written:
        reasons: Counter[str] = Counter()
        for result in results:
            reasons.update(result["reasons"])
        records = sum(result["records"] for result in results)
        rejected = sum(result["rejected"] for result in results)
        if records + rejected != plan["rows"]:
            raise GeodataError(
                f"{plan['rows']} records in, but {records} written and {rejected} rejected",
                hint="The source changed while it was read; run it again with --restart",
            )
        kept = rejected and self.options.on_error == "quarantine"
        return Written(
            schema=plan["schema"],
            labels=plan["labels"],
            shards=[Shard.from_line(line) for result in results for line in result["shards"]],
            records_in=plan["rows"],
            records_out=records,
            rejected=rejected,
            reasons=dict(reasons),
            bytes_in=sum(file["nbytes"] for file in plan["files"]),
            quarantine=str(self._quarantine(plan)) if kept else None,
        )


def check_bound(rejected: int, reasons: dict[str, int], bound: int | None) -> None:
    """Raise TooManyBadRecords if more than `bound` records were rejected."""
    if bound is not None and rejected > bound:
        reason, count = Counter(reasons).most_common(1)[0]
        raise TooManyBadRecords(
            f"more than {bound} records were rejected; most often: {reason} ({count})",
            hint="Raise --max-errors or mend the source",
        )


def _scan(source: Source, piece: Piece) -> Scan:
    return source.scan(piece)


def _groups(pieces: Sequence[Piece], target: int) -> list[list[int]]:
    """Return runs of consecutive pieces of about `target` bytes, each one task."""
    groups: list[list[int]] = []
    room = 0
    for number, piece in enumerate(pieces):
        if not groups or piece.nbytes > room:
            groups.append([])
            room = target
        groups[-1].append(number)
        room -= piece.nbytes
    return groups
