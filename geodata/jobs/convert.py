"""Raw corpora → a staging dataset: plan, write, commit."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, make_access, stamp
from geodata.errors import ConfigError
from geodata.executors import get_executor
from geodata.formats import FORMATS
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.jobs.conversion import Conversion, Options, Written, check_bound
from geodata.manifest import Index
from geodata.partition.staging import OnError
from geodata.prepare import AS_IS, Preparing
from geodata.sources.base import AS_FOUND, Reading, Source, location, open_source
from geodata.tags import STAGING

SHARD_BYTES = 64 << 20
MAX_SHARD_BYTES = 1 << 30
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
    reading: Reading = AS_FOUND,
    preparing: Preparing = AS_IS,
    provenance: str | None = None,
    on_error: OnError = "fail",
    max_errors: int | None = None,
    shard_size: int = SHARD_BYTES,
    workers: int | None = None,
    executor: str = "local",
    ray_address: str | None = None,
    restart: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert the raw corpus at `source` into a staging dataset at `dest`.

    A rerun goes on where an earlier run stopped; if nothing changed it does nothing. With
    `on_error="fail"` the first bad record ends the job; else at most `max_errors` are set aside
    (None: any number). `provenance` names a column that keeps where each record stood. A
    destination that holds another source is refused unless `replace` makes this one its next
    version. Raises SchemaError, TooManyBadRecords, ConfigError, StoreError.
    """
    began = time.monotonic()
    if format not in FORMATS:
        raise ConfigError(f"no format '{format}'", hint=f"Known: {', '.join(FORMATS)}")
    if not 0 < shard_size <= MAX_SHARD_BYTES:
        raise ConfigError(f"shards of {shard_size} bytes", hint="--shard-size is at most 1GiB")
    root = _destination(Path(source), Path(dest))
    runner = get_executor(executor, workers, ray_address)
    opened = open_source(source, kind=kind, source_id=source_id, reading=reading)
    options = Options(format, on_error, shard_size, preparing, provenance)
    identity = {**identity_of(source, opened, reading), **options.to_json()}
    catalog = Catalog(str(root), make_access(root / "audit", STAGING, "convert"))
    folder = JobFolder(root, f"convert-{digest_of(identity)[:12]}")
    run = Conversion(opened, options, identity, folder, root, progress or Silent())
    digest = run.digest
    with folder.held():
        latest = _latest(catalog)
        if latest is not None and latest.plan_digest == digest and not restart:
            folder.remove()
            check_bound(latest.report["rejected"], latest.report["reasons"], max_errors)
            return _report(latest, began, unchanged=True)
        if latest is not None and latest.report["source"] != identity["source"] and not replace:
            raise ConfigError(
                f"{latest.version} there was made of {latest.report['source']}",
                file=str(root),
                hint="Choose another destination, or --replace it by a new version",
            )
        written = run.run(runner, max_errors, restart)
        index = catalog.commit(_draft(run, written, digest), {STAGING: written.shards})
        folder.remove()
        return _report(index, began)


def identity_of(source: str | Path, opened: Source, reading: Reading) -> dict[str, Any]:
    """Return what names a source and how it is read, as plain JSON."""
    given = reading.to_json()
    return {
        "source": location(source, opened),
        "kind": opened.kind,
        "source_id": opened.source_id,
        **({"reading": given} if given else {}),
    }


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


def _report(index: Index, began: float, unchanged: bool = False) -> ConvertReport:
    known = {name: index.report[name] for name in REPORTED}
    return ConvertReport(
        **known,
        version=index.version,
        schema=index.schema_["fields"],
        seconds=round(time.monotonic() - began, 3),
        unchanged=unchanged,
    )


def _draft(run: Conversion, written: Written, digest: str) -> Index:
    report = {
        "operation": "convert",
        "source": run.identity["source"],
        "kind": run.source.kind,
        "dest": str(run.root),
        "records_in": written.records_in,
        "records_out": written.records_out,
        "rejected": written.rejected,
        "shards": len(written.shards),
        "bytes_in": written.bytes_in,
        "bytes_out": sum(shard.nbytes for shard in written.shards),
        "reasons": written.reasons,
        "ignored": run.source.ignored,
        "quarantine": written.quarantine,
    }
    return Index(
        dataset=run.root.name,
        version="",
        **stamp(),
        plan_digest=digest,
        format=run.options.format,
        schema_=written.schema,
        labels=written.labels,
        regions={},
        report=report,
    )
