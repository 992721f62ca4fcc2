"""Records of one more source, added to a dataset by a new version: nothing old is touched.

Into a staging dataset a source is converted as the dataset is. Into a classified one go the shards
of a staging dataset that it has not got, classified by the rules of the config; a raw corpus is
converted into a staging dataset first. Several may append at once: a commit that comes second goes
on top of the first, and is checked against it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, Place, locate, make_access
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.jobs.appendshards import ShardAppend
from geodata.jobs.appendsource import SourceAppend
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, digest_of
from geodata.jobs.convert import (
    REPORTED,
    ConvertReport,
    convert,
    destination,
    identity_of,
    planned,
)
from geodata.jobs.converting import Converting, check_named, keywords
from geodata.jobs.shard import SHARD_BYTES as REGION_SHARD_BYTES
from geodata.manifest import METADATA_DIR
from geodata.tags import STAGING

OF_RAW = ("kind source_id provenance on_error max_errors restart staging").split()
"""Options, beside those of reading and preparing, that say how a raw corpus is converted."""


@dataclass(slots=True)
class AppendReport:
    """What an append did; records_in = records_out + rejected + duplicates.

    `records` is what the dataset holds now; `regions` are those that got records, of a classified
    dataset. With `unchecked` records, which may not be read here, those added were not compared. Of
    `removed` files, which the source has no longer, the records stay.
    """

    source: str
    kind: str
    dest: str
    version: str
    records: int
    records_in: int = 0
    records_out: int = 0
    rejected: int = 0
    duplicates: int = 0
    shards: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    quarantine: str | None = None
    encodings: dict[str, Any] = field(default_factory=dict)
    regions: dict[str, int] = field(default_factory=dict)
    unchecked: int = 0
    removed: int = 0
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions(Converting):
    """Beside what every conversion takes: the `config`, and `staging`.

    A raw corpus on its way into a classified dataset becomes a staging dataset at `staging`, or is
    added to the one there; without, to one that goes again.
    """

    config: GeodataConfig | None = None
    staging: Path | None = None


@keywords(AppendOptions)
def append(source: str | Path, dataset: str | Path, options: AppendOptions) -> AppendReport:
    """Add the records of `source` to `dataset`, whose schema must hold them.

    Of a source that the dataset has already (by its id) only files that were added since are taken;
    if there is none, nothing is done. One of whose files some were removed since is refused unless
    `restart` accepts it: their records stay. Keys stay unique. `dedupe` leaves out records equal to
    one before, or to one that the dataset holds and that may be read here. The keywords are those
    of `Converting`, and of `AppendOptions`. Raises ConfigError for files that changed since,
    SchemaError for a column that does not fit or a key that is there, TooManyBadRecords,
    PolicyDenied, StoreError.
    """
    began = time.monotonic()
    check_named(source, "SOURCE")
    check_named(dataset, "DATASET")
    place = locate(str(dataset), options.config)
    if place.version is not None:
        raise ConfigError(
            "records are added to the newest version", hint="Name the dataset without a version"
        )
    catalog = Catalog.at(place, "append")
    if not _is_dataset(Path(source)):
        destination(source, place.root)
    if catalog.access.here == STAGING:
        if options.staging is not None:
            raise ConfigError("--staging goes with a classified dataset")
        report = _to_staging(source, options, catalog)
    else:
        report = _to_regions(source, options, place)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _to_staging(source: str | Path, options: AppendOptions, catalog: Catalog) -> AppendReport:
    """Convert a source as a staging dataset is, and add it."""
    how = planned(options, catalog.index().format)
    runner, opened = options.runner, options.opened(source)
    identity = identity_of(source, opened, options.reading)
    job = SourceAppend(
        catalog,
        opened,
        options.reading,
        identity,
        how,
        runner,
        options.shown,
        options.max_errors,
    )
    index, entry = job.run(options.restart)
    about = {"source": identity["source"], "kind": opened.kind, "dest": catalog.root}
    known = {name: entry[name] for name in REPORTED if name in entry}
    return AppendReport(
        **{**about, **known},
        version=index.version,
        records=index.records,
        removed=job.removed,
        unchanged=not entry,
    )


def _to_regions(source: str | Path, options: AppendOptions, place: Place) -> AppendReport:
    """Classify what is new of a staging dataset, which a raw corpus becomes first."""
    if _is_dataset(Path(source)):
        _check_converted(options)
        return _classified(source, options, place, Path(source).absolute(), None)
    form = Catalog.at(place, "append").index().format
    if options.staging is not None:
        staging = options.staging.absolute()
        made = _converted(source, options, staging, form, anew=False)
        return _classified(source, options, place, staging, made)
    area = JobFolder(Path(place.root), f"staging-{_digest_of(source, options)[:12]}")
    with area.held():
        made = _converted(source, options, area.path / "raw", form, anew=True)
        report = _classified(source, options, place, area.path / "raw", made)
        area.remove()
    return report


def _check_converted(options: AppendOptions) -> None:
    """Raise ConfigError for an option that says how to convert what is converted already."""
    usual = AppendOptions()
    other = [name for name in OF_RAW if getattr(options, name) != getattr(usual, name)]
    given = [f"--{name.replace('_', '-')}" for name in other]
    given += [*options.reading.options(), *options.preparing.options()]
    if given:
        raise ConfigError.not_for(given[0], "what is converted already", ["raw corpora"])


def _converted(
    source: str | Path, options: AppendOptions, staging: Path, form: str, anew: bool
) -> ConvertReport | AppendReport:
    """Convert a source into a staging dataset; add it to one that is there, or do it anew."""
    given = {**options.shared(), "shard_size": None}
    if _is_dataset(staging) and not anew:
        return append(source, staging, **given)
    return convert(source, staging, format=form, replace=anew, **given)


def _digest_of(source: str | Path, options: AppendOptions) -> str:
    """Return the digest of what is converted and how."""
    what = str(Path(source).absolute()), options.kind, options.source_id, options.provenance
    how = options.reading.to_json(), options.preparing.to_json(), options.dedupe
    return digest_of([*what, *how])


def _classified(
    source: str | Path,
    options: AppendOptions,
    place: Place,
    staging: Path,
    made: ConvertReport | AppendReport | None,
) -> AppendReport:
    """Classify what is new of the staging dataset, which was `made` of a raw corpus if not None."""
    access = make_access(place.audit, STAGING, "append")
    nbytes = options.shard_bytes(REGION_SHARD_BYTES)
    source_of = Catalog(str(staging), access)
    job = ShardAppend(place, source_of, nbytes, options.dedupe, options.runner, options.shown)
    added = job.run()
    rejected, duplicates = (made.rejected, made.duplicates) if made is not None else (0, 0)
    duplicates += added.duplicates
    return AppendReport(
        source=str(source) if made is None else made.source,
        kind="staging" if made is None else made.kind,
        dest=place.root,
        version=added.index.version,
        records=added.index.records,
        records_in=added.records + rejected + duplicates,
        records_out=added.records,
        rejected=rejected,
        duplicates=duplicates,
        shards=added.shards,
        bytes_in=added.bytes_in if made is None else made.bytes_in,
        bytes_out=added.bytes_out,
        reasons={} if made is None else made.reasons,
        ignored={} if made is None else made.ignored,
        quarantine=None if made is None else made.quarantine,
        encodings={} if made is None else made.encodings,
        regions=added.regions,
        unchecked=added.unchecked,
        removed=made.removed if isinstance(made, AppendReport) else 0,
        unchanged=added.unchanged,
    )


def _is_dataset(path: Path) -> bool:
    """Return whether a dataset lies in a folder; its indexes may be gone, but for their copies."""
    return any((path / METADATA_DIR).rglob("v*.json"))
