"""Raw corpus → a staging dataset: plan, write, commit.

The plan lists the source, finds the schema, and cuts the corpus into tasks, each of which owns
whole shards. A record is written, or rejected with its reason: nothing is lost silently.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import geodata
from geodata import schema as schemas
from geodata.catalog import Catalog, make_access
from geodata.errors import ConfigError, GeodataError, TooManyBadRecords
from geodata.executors import Executor, get_executor
from geodata.formats import FORMATS
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.manifest import Index, Shard
from geodata.partition.staging import OnError, Staging, StagingTask, write_staging
from geodata.sources.base import Piece, Scan, Source, first_rows, open_source
from geodata.tags import STAGING

PIECE_BYTES = 8 << 20
SHARD_BYTES = 64 << 20
MAX_SHARD_BYTES = 1 << 30
ALGORITHM = "convert-1"
REPORTED = (
    "source kind dest records_in records_out rejected shards bytes_in bytes_out reasons ignored "
    "quarantine"
).split()
"""Parts of the report that the index keeps."""


@dataclass(slots=True)
class ConvertReport:
    """What a conversion did; records_in = records_out + rejected."""

    source: str
    kind: str
    dest: str
    version: str
    records_in: int
    records_out: int
    rejected: int
    shards: int
    bytes_in: int
    bytes_out: int
    seconds: float
    schema: list[dict[str, Any]]
    reasons: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def convert(
    source: str | Path,
    dest: str | Path,
    *,
    format: str = "parquet",
    kind: str | None = None,
    source_id: str | None = None,
    on_error: OnError = "fail",
    max_errors: int | None = None,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    restart: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert the raw corpus at `source` into a staging dataset at `dest`.

    A rerun goes on where an earlier run stopped; if nothing changed it does nothing. With
    `on_error="fail"` the first bad record ends the job; else at most `max_errors` are set aside
    (None: any number). A destination that holds another source is refused unless `replace` makes
    this one its next version. Raises SchemaError, TooManyBadRecords, ConfigError, StoreError.
    """
    began = time.monotonic()
    if format not in FORMATS:
        raise ConfigError(f"no format '{format}'", hint=f"Known: {', '.join(FORMATS)}")
    if not 0 < shard_size <= MAX_SHARD_BYTES:
        raise ConfigError(f"shards of {shard_size} bytes", hint="--shard-size is at most 1GiB")
    root = _destination(Path(source), Path(dest))
    opened = open_source(Path(source), kind=kind, source_id=source_id)
    options = {
        "source": str(Path(source).absolute()),
        "kind": opened.kind,
        "source_id": opened.source_id,
        "format": format,
        "on_error": on_error,
        "shard_size": shard_size,
        "algorithm": ALGORITHM,
    }
    listing = [
        {"name": file.name, "nbytes": file.nbytes, "mtime_ns": file.mtime_ns}
        for file in opened.files
    ]
    digest = digest_of({**options, "files": listing})
    catalog = Catalog(str(root), make_access(root / "audit", STAGING, "convert"))
    folder = JobFolder(root, f"convert-{digest_of(options)[:12]}")
    with folder.held():
        latest = _latest(catalog)
        if latest is not None and latest.plan_digest == digest and not restart:
            folder.remove()
            _check_bound(latest.report["rejected"], latest.report["reasons"], max_errors)
            return _report(latest, began, unchanged=True)
        if latest is not None and latest.report["source"] != options["source"] and not replace:
            raise ConfigError(
                f"{latest.version} there was made of {latest.report['source']}",
                file=str(root),
                hint="Choose another destination, or --replace it by a new version",
            )
        run = _Run(opened, options, listing, digest, catalog, folder, root, progress or Silent())
        index = run.run(get_executor("local", workers), max_errors, restart)
        return _report(index, began)


def _destination(source: Path, dest: Path) -> Path:
    """Return the root of the dataset to be, which may not become part of its own source."""
    root = dest.absolute()
    try:
        str(root).encode()
    except UnicodeEncodeError as error:
        raise ConfigError("the destination's name is not UTF-8") from error
    if source.is_dir() and root.resolve().is_relative_to(source.resolve()):
        raise ConfigError("the destination lies in the source", file=str(dest))
    return root


def _latest(catalog: Catalog) -> Index | None:
    """Return the newest version of a staging dataset, None of one to be."""
    if not catalog.versions():
        return None
    index = catalog.index()
    if set(index.regions) != {STAGING}:
        raise ConfigError(
            "the destination holds a classified dataset", file=catalog.root, hint="Choose another"
        )
    return index


def _check_bound(rejected: int, reasons: dict[str, int], bound: int | None) -> None:
    if bound is not None and rejected > bound:
        reason, count = Counter(reasons).most_common(1)[0]
        raise TooManyBadRecords(
            f"more than {bound} records were rejected; most often: {reason} ({count})",
            hint="Raise --max-errors or mend the source",
        )


def _report(index: Index, began: float, unchanged: bool = False) -> ConvertReport:
    known = {name: index.report[name] for name in REPORTED}
    return ConvertReport(
        **known,
        version=index.version,
        schema=index.schema_["fields"],
        seconds=round(time.monotonic() - began, 3),
        unchanged=unchanged,
    )


@dataclass(slots=True)
class _Run:
    source: Source
    options: dict[str, Any]
    listing: list[dict[str, Any]]
    digest: str
    catalog: Catalog
    folder: JobFolder
    root: Path
    progress: Progress

    def run(self, executor: Executor, max_errors: int | None, restart: bool) -> Index:
        """Plan or load the plan, write what is missing, commit."""
        failed = self.folder.load("failed")
        if restart or (failed is not None and failed["digest"] != self.digest):
            self.folder.clear()  # the source was mended since bad records ended the last run
        plan = self.folder.load("plan")
        if plan is None:
            plan = self._plan(executor)
            self.folder.save("plan", plan)
        elif plan["digest"] != self.digest:
            raise ConfigError(
                f"the source changed since this conversion was planned: {self._changed(plan)}",
                hint="Run it again with --restart to start over",
            )
        self.folder.clear_work()
        try:
            results = self._write(executor, plan, max_errors)
        except TooManyBadRecords:
            self.folder.save("failed", {"digest": self.digest})
            raise
        index = self._commit(plan, results)
        self.folder.remove()
        return index

    def _changed(self, plan: dict[str, Any]) -> str:
        before = {file["name"]: file for file in plan["files"]}
        after = {file["name"]: file for file in self.listing}
        names = sorted(before.keys() | after.keys())
        return next((n for n in names if before.get(n) != after.get(n)), "its options")

    def _plan(self, executor: Executor) -> dict[str, Any]:
        pieces = self.source.pieces(PIECE_BYTES)
        self.progress.start("scan", sum(piece.nbytes for piece in pieces), "B")
        scans: dict[int, Scan] = {}
        with closing(executor.run(_scan, pieces, self.source)) as finished:
            for number, scan in finished:
                scans[number] = scan
                self.progress.advance(pieces[number].nbytes)
        self.progress.finish()
        ordered = [scans[number] for number in range(len(pieces))]
        first_wins = self.options["on_error"] != "fail"
        columns = self.source.merge(ordered, first_wins=first_wins)
        names: dict[str, set[str]] = {}
        for scan in ordered:
            for column, seen in scan.labels.items():
                names.setdefault(column, set()).update(seen)
        return {
            "digest": self.digest,
            "files": self.listing,
            "pieces": [asdict(piece) for piece in pieces],
            "first_rows": first_rows(ordered),
            "rows": sum(scan.rows for scan in ordered),
            "schema": schemas.to_json(schemas.dataset_schema(columns)),
            "labels": {column: sorted(seen, key=str.encode) for column, seen in names.items()},
        }

    def _tasks(self, plan: dict[str, Any]) -> list[StagingTask]:
        pieces = [Piece(**piece) for piece in plan["pieces"]]
        groups = _groups(pieces, self.options["shard_size"])
        return [
            StagingTask(number, tuple((pieces[i], plan["first_rows"][i]) for i in group))
            for number, group in enumerate(groups)
        ]

    def _shared(self, plan: dict[str, Any]) -> Staging:
        return Staging(
            source=self.source,
            schema=plan["schema"],
            labels=plan["labels"],
            form=self.options["format"],
            shard_bytes=self.options["shard_size"],
            on_error=self.options["on_error"],
            dest=str(self.root),
            work=str(self.folder.work),
            quarantine=str(self._quarantine),
        )

    @property
    def _quarantine(self) -> Path:
        return self.root / "quarantine" / self.digest[:12]

    def _write(
        self, executor: Executor, plan: dict[str, Any], max_errors: int | None
    ) -> list[dict[str, Any]]:
        reasons: Counter[str] = Counter()

        def done(result: dict[str, Any]) -> None:
            reasons.update(result["reasons"])
            self.progress.advance(result["records"] + result["rejected"])
            _check_bound(reasons.total(), reasons, max_errors)

        self.progress.start("convert", plan["rows"], "records")
        results = self.folder.run(
            "task",
            self.digest,
            executor,
            write_staging,
            self._tasks(plan),
            self._shared(plan),
            done,
        )
        self.progress.finish()
        return results

    def _commit(self, plan: dict[str, Any], results: Sequence[dict[str, Any]]) -> Index:
        shards = [Shard.from_line(line) for result in results for line in result["shards"]]
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
        quarantined = rejected and self.options["on_error"] == "quarantine"
        report = {
            "source": self.options["source"],
            "kind": self.source.kind,
            "dest": str(self.root),
            "records_in": plan["rows"],
            "records_out": records,
            "rejected": rejected,
            "shards": len(shards),
            "bytes_in": sum(file["nbytes"] for file in self.listing),
            "bytes_out": sum(shard.nbytes for shard in shards),
            "reasons": dict(reasons),
            "ignored": self.source.ignored,
            "quarantine": str(self._quarantine) if quarantined else None,
        }
        draft = Index(
            dataset=self.root.name,
            version="",
            created_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            created_by=f"geodata {geodata.__version__}",
            plan_digest=self.digest,
            format=self.options["format"],
            schema_=plan["schema"],
            labels=plan["labels"],
            regions={},
            report=report,
        )
        return self.catalog.commit(draft, {STAGING: shards})


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
