"""Records of one more source, added to a dataset by a new version: nothing old is touched.

Into a staging dataset a source is converted as the dataset is. Into a classified one go the shards
of a staging dataset that it has not got, classified by the rules of the config; a raw corpus is
converted into a staging dataset first. Several may append at once: a commit that comes second goes
on top of the first, and is checked against it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, Place, locate, make_access
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.jobs.appendshards import ShardAppend
from geodata.jobs.appendsource import SourceAppend
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.jobs.convert import (
    REPORTED,
    SHARD_BYTES,
    ConvertReport,
    convert,
    destination,
    identity_of,
)
from geodata.jobs.planning import Options
from geodata.jobs.shard import SHARD_BYTES as REGION_SHARD_BYTES
from geodata.manifest import METADATA_DIR
from geodata.partition.rejects import OnError
from geodata.prepare import AS_IS, Preparing
from geodata.sources.base import AS_FOUND, Reading, open_source
from geodata.tags import STAGING


@dataclass(slots=True)
class AppendReport:
    """What an append did; records_in = records_out + rejected + duplicates.

    `records` is what the dataset holds now; `regions` are those that got records, of a classified
    dataset. The keys of `unchecked` records, which may not be read here, were not compared.
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
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def append(
    source: str | Path,
    dataset: str | Path,
    *,
    config: GeodataConfig | None = None,
    kind: str | None = None,
    source_id: str | None = None,
    reading: Reading = AS_FOUND,
    preparing: Preparing = AS_IS,
    provenance: str | None = None,
    on_error: OnError = "fail",
    max_errors: int | None = None,
    dedupe: bool = False,
    shard_size: int | None = None,
    staging: Path | None = None,
    workers: int | None = None,
    executor: str = "local",
    ray_address: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> AppendReport:
    """Add the records of `source` to `dataset`, whose schema must hold them.

    Of a source that the dataset has already (by its id) only files that were added since are taken;
    if there is none, nothing is done. Keys stay unique. `dedupe` leaves out records equal to one
    before or in a staging dataset. A raw corpus on its way into a classified dataset becomes a
    staging dataset at `staging`, or is added to the one there; without, to one that goes again.
    Raises ConfigError for files that changed since, SchemaError for a column that does not fit or a
    key that is there, TooManyBadRecords, PolicyDenied, StoreError.
    """
    began = time.monotonic()
    place = locate(str(dataset), config)
    if place.version is not None:
        raise ConfigError(
            "records are added to the newest version", hint="Name the dataset without a version"
        )
    asked = _Asked(
        source=source,
        kind=kind,
        source_id=source_id,
        reading=reading,
        preparing=preparing,
        provenance=provenance,
        on_error=on_error,
        max_errors=max_errors,
        dedupe=dedupe,
        workers=workers,
        executor=executor,
        ray_address=ray_address,
        restart=restart,
        progress=progress or Silent(),
    )
    catalog = Catalog.at(place, "append")
    if not _is_dataset(Path(source)):
        destination(Path(source), Path(place.root))
    if catalog.access.here == STAGING:
        if staging is not None:
            raise ConfigError("--staging goes with a classified dataset")
        report = _to_staging(asked, catalog, shard_size or SHARD_BYTES)
    else:
        report = _to_regions(asked, place, shard_size or REGION_SHARD_BYTES, staging)
    report.seconds = round(time.monotonic() - began, 3)
    return report


@dataclass(frozen=True, slots=True)
class _Asked:
    """A source, and how the user wants it converted."""

    source: str | Path
    kind: str | None
    source_id: str | None
    reading: Reading
    preparing: Preparing
    provenance: str | None
    on_error: OnError
    max_errors: int | None
    dedupe: bool
    restart: bool
    workers: int | None
    executor: str
    ray_address: str | None
    progress: Progress

    @property
    def runner(self) -> Executor:
        """Return what runs the tasks."""
        return get_executor(self.executor, self.workers, self.ray_address)

    def converted(self, staging: Path, form: str, anew: bool) -> ConvertReport | AppendReport:
        """Convert the source into a staging dataset; add it to one that is there, or do it anew."""
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        if _is_dataset(staging) and not anew:
            return append(dataset=staging, **given)
        return convert(dest=staging, format=form, replace=anew, **given)

    @property
    def digest(self) -> str:
        """Return the digest of what is converted and how."""
        what = str(Path(self.source).absolute()), self.kind, self.source_id, self.provenance
        how = self.reading.to_json(), self.preparing.to_json(), self.dedupe
        return digest_of([*what, *how])


def _to_staging(asked: _Asked, catalog: Catalog, shard_bytes: int) -> AppendReport:
    """Convert a source as a staging dataset is, and add it."""
    runner = asked.runner
    opened = open_source(
        asked.source, kind=asked.kind, source_id=asked.source_id, reading=asked.reading
    )
    options = Options(
        catalog.index().format,
        asked.on_error,
        shard_bytes,
        asked.preparing,
        asked.provenance,
        asked.dedupe,
    )
    identity = identity_of(asked.source, opened, asked.reading)
    job = SourceAppend(
        catalog, opened, asked.reading, identity, options, runner, asked.progress, asked.max_errors
    )
    index, entry = job.run(asked.restart)
    about = {"source": identity["source"], "kind": opened.kind, "dest": catalog.root}
    known = {name: entry[name] for name in REPORTED if name in entry}
    return AppendReport(
        **{**about, **known}, version=index.version, records=index.records, unchanged=not entry
    )


def _to_regions(
    asked: _Asked, place: Place, shard_bytes: int, staging: Path | None
) -> AppendReport:
    """Classify what is new of a staging dataset, which a raw corpus becomes first."""
    source = Path(asked.source)
    if _is_dataset(source):
        if staging is not None or asked.dedupe:
            raise ConfigError(
                "the source is converted already: --staging and --dedupe are not for it"
            )
        return _classified(asked, place, shard_bytes, source.absolute(), None)
    form = Catalog.at(place, "append").index().format
    if staging is not None:
        made = asked.converted(staging, form, anew=False)
        return _classified(asked, place, shard_bytes, staging.absolute(), made)
    area = JobFolder(Path(place.root), f"staging-{asked.digest[:12]}")
    with area.held():
        made = asked.converted(area.path / "raw", form, anew=True)
        report = _classified(asked, place, shard_bytes, area.path / "raw", made)
        area.remove()
    return report


def _classified(
    asked: _Asked,
    place: Place,
    shard_bytes: int,
    staging: Path,
    made: ConvertReport | AppendReport | None,
) -> AppendReport:
    """Classify what is new of the staging dataset, which was `made` of a raw corpus if not None."""
    access = make_access(place.audit, STAGING, "append")
    job = ShardAppend(
        place, Catalog(str(staging), access), shard_bytes, asked.runner, asked.progress
    )
    added = job.run()
    rejected, duplicates = (made.rejected, made.duplicates) if made is not None else (0, 0)
    return AppendReport(
        source=str(asked.source) if made is None else made.source,
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
        unchanged=not added.records,
    )


def _is_dataset(path: Path) -> bool:
    """Return whether a dataset lies in a folder."""
    return any((path / METADATA_DIR).glob("v*.json"))
