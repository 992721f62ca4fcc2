"""Raw corpora → a staging dataset: plan, write, commit."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, make_access, stamp
from geodata.durable import storing
from geodata.errors import ConfigError
from geodata.formats import FORMATS
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, digest_of
from geodata.jobs.conversion import Conversion, Written
from geodata.jobs.converting import Converting, check_named, keywords
from geodata.jobs.origins import keep_files, sources_of
from geodata.jobs.planning import Options
from geodata.manifest import Index
from geodata.partition.rejects import check_bound, reasons_of
from geodata.sources.base import Source
from geodata.sources.opening import location
from geodata.sources.options import Reading
from geodata.stores import open_store
from geodata.tags import STAGING

SHARD_BYTES = 64 << 20
REPORTED = (
    "source kind dest records_in records_out rejected duplicates shards bytes_in bytes_out reasons "
    "ignored quarantine encodings"
).split()
"""Parts of the report that the index keeps of each source."""


@dataclass(slots=True)
class ConvertReport:
    """What a conversion did; records_in = records_out + rejected + duplicates."""

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
    duplicates: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    encodings: dict[str, Any] = field(default_factory=dict)
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions(Converting):
    """Beside what every conversion takes: the `format` of the shards, and `replace`.

    A destination that holds another source, or more than this one, is refused unless `replace`
    makes this one its next version.
    """

    format: str = "parquet"
    replace: bool = False


@keywords(ConvertOptions)
def convert(source: str | Path, dest: str | Path, options: ConvertOptions) -> ConvertReport:
    """Convert the raw corpus at `source` into a staging dataset at `dest`.

    A rerun goes on where an earlier run stopped; if nothing changed it does nothing. A source that
    changed since a run was stopped is refused unless bad records had ended that run, or `restart`
    accepts it. The keywords are those of `Converting`, and of `ConvertOptions`. Raises SchemaError,
    TooManyBadRecords, ConfigError, StoreError.
    """
    began = time.monotonic()
    how = planned(options, options.format)
    root = destination(source, dest)
    runner, opened = options.runner, options.opened(source)
    identity = identity_of(source, opened, options.reading)
    catalog = Catalog(str(root), make_access(root / "audit", STAGING, "convert"))
    folder = folder_of("convert", root, identity, how)
    run = Conversion(opened, how, identity, folder, root, options.shown)
    with folder.held():
        versions = catalog.versions()
        latest = _latest(catalog)
        known = sources_of(catalog, latest) if latest is not None else []
        mine = next((entry for entry in known if entry["digest"] == run.digest), None)
        if latest is not None and mine is not None and not options.restart:
            folder.remove()
            check_bound(reasons_of([mine["reasons"]]), options.max_errors)
            return _report(mine, latest, began, unchanged=True)
        if latest is not None and not options.replace:
            _check_replaceable(latest, known, identity["source"], root)
        written = run.run(runner, options.max_errors, options.restart)
        entry = entry_of(run, written)
        store = open_store(root, region=STAGING, access=catalog.access)
        files = keep_files(store, run.listed, folder.work)
        draft = _draft(run, written, {**entry, "files": files})
        index = catalog.commit(draft, {STAGING: written.shards}, known=versions)
        folder.remove()
        return _report(entry, index, began)


def planned(options: Converting, format: str) -> Options:
    """Return what decides the result of a conversion; ConfigError if there is no such format."""
    if format not in FORMATS:
        raise ConfigError(f"no format '{format}'", hint=f"Known: {', '.join(FORMATS)}")
    return Options(
        format,
        options.on_error,
        options.shard_bytes(SHARD_BYTES),
        options.preparing,
        options.provenance,
        options.dedupe,
    )


def folder_of(what: str, root: Path, identity: dict[str, Any], options: Options) -> JobFolder:
    """Return the folder of a job; runs that differ in what becomes of bad records share it."""
    return JobFolder(root, f"{what}-{digest_of({**identity, **options.of_a_task()})[:12]}")


def identity_of(source: str | Path, opened: Source, reading: Reading) -> dict[str, Any]:
    """Return what names a source and how it is read, as plain JSON."""
    given = reading.to_json()
    return {
        "source": location(source, opened),
        "kind": opened.kind,
        "source_id": opened.source_id,
        **({"reading": given} if given else {}),
    }


def destination(source: str | Path, dest: str | Path) -> Path:
    """Return the root of the dataset to be, which may not become part of its own source."""
    check_named(source, "SOURCE")
    check_named(dest, "DEST")
    source, dest = Path(source), Path(dest)
    if re.match(r"\w+:/", str(dest)):
        raise ConfigError(
            "a staging dataset lies in a folder of this machine, not at a URL", file=str(dest)
        )
    root = dest.absolute()
    try:
        str(root).encode()
    except UnicodeEncodeError as error:
        raise ConfigError("the destination's name is not UTF-8") from error
    with storing(root):
        there = next(path for path in (root, *root.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError("the destination is to be a folder, and this is a file", file=str(there))
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


def _check_replaceable(latest: Index, known: list[dict[str, Any]], source: str, root: Path) -> None:
    """Refuse to follow a version that holds something else, or more than was converted."""
    operation = latest.report.get("operation")
    if operation != "convert":
        raise ConfigError(
            f"{latest.version} there was made by {operation}, which a new version would undo",
            file=str(root),
            hint="Add to it with geodata append, or --replace it by a version of this source alone",
        )
    if known[0]["source"] != source:
        raise ConfigError(
            f"{latest.version} there was made of {known[0]['source']}",
            file=str(root),
            hint="Choose another destination, add to it with geodata append, or --replace it by a "
            "new version",
        )


def entry_of(run: Conversion, written: Written) -> dict[str, Any]:
    """Return what the index tells of a source."""
    return {
        "source": run.identity["source"],
        "source_id": run.source.source_id,
        "kind": run.source.kind,
        "dest": str(run.root),
        "digest": run.digest,
        "records_in": written.records_in,
        "records_out": written.records_out,
        "rejected": written.rejected,
        "duplicates": written.duplicates,
        "shards": len(written.shards),
        "bytes_in": written.bytes_in,
        "bytes_out": sum(shard.nbytes for shard in written.shards),
        "reasons": written.reasons,
        "ignored": written.ignored,
        "quarantine": written.quarantine,
        "own_keys": written.own_keys,
        "encodings": written.encodings,
    }


def _report(
    entry: dict[str, Any], index: Index, began: float, unchanged: bool = False
) -> ConvertReport:
    known = {name: entry[name] for name in REPORTED if name in entry}
    return ConvertReport(
        **known,
        version=index.version,
        schema=index.schema_["fields"],
        seconds=round(time.monotonic() - began, 3),
        unchanged=unchanged,
    )


def _draft(run: Conversion, written: Written, entry: dict[str, Any]) -> Index:
    known = {name: entry[name] for name in REPORTED}
    return Index(
        dataset=run.root.name,
        version="",
        **stamp(),
        plan_digest=run.digest,
        format=run.options.format,
        schema_=written.schema,
        labels=written.labels,
        regions={},
        report={"operation": "convert", **known, "sources": [entry]},
    )
