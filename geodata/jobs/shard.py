"""Staging dataset → shards by region and tag: survey, spill, write, commit.

The survey counts bytes by tag and by hash of the key. From it the plan cuts each tag's records,
in the order of their hashes (the shuffle at write time), into shards of even size. Spilling sorts
each staging shard by destination; writing gathers one destination from all spills. A destination
is one task, so neither workers nor kills change any boundary.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import Catalog, locate, make_access, region_roots, stamp
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.formats import FORMATS
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.manifest import Index, Shard
from geodata.partition.routing import (
    Output,
    Routing,
    Rules,
    SpillTask,
    WriteTask,
    cut_bins,
    destinations_of,
    sources_by_destination,
    spill_shard,
    survey_shard,
    write_shard,
)
from geodata.tagging import load_subject_key, pseudonym
from geodata.tags import STAGING, Tag

SHARD_BYTES = 256 << 20
MAX_SHARD_BYTES = 1 << 30
MAX_CLASSES = 1000
OPEN_CLASSES = 64
ALGORITHM = "shard-1"


@dataclass(slots=True)
class RegionTotals:
    """What a region got; `personal` of its `records` count as personal."""

    records: int = 0
    bytes: int = 0
    shards: int = 0
    personal: int = 0
    unknown: int = 0


@dataclass(slots=True)
class ShardReport:
    """What sharding did; records_in = records_out. In a dry run, bytes are those of Arrow."""

    dataset: str
    dest: str
    version: str | None
    records_in: int
    records_out: int
    rejected: int
    shards: int
    bytes_in: int
    bytes_out: int
    unknown_region: int
    regions: dict[str, RegionTotals]
    seconds: float = 0.0
    dry_run: bool = False
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def shard(
    source: str,
    dest: str | None = None,
    *,
    config: GeodataConfig,
    format: str | None = None,
    shard_size: int = SHARD_BYTES,
    seed: int = 0,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShardReport:
    """Partition the staging dataset `source` by region and tag.

    With `dest` all goes there, else to `dataset.root` and to the roots of the regions.

    `format` defaults to the source's. Raises ConfigError, PolicyDenied, CommitConflict, StoreError.
    """
    began = time.monotonic()
    if not 0 < shard_size <= MAX_SHARD_BYTES:
        raise ConfigError(f"shards of {shard_size} bytes", hint="--shard-size is at most 1GiB")
    run = _prepare(source, dest, config, format, shard_size, seed, dry_run, progress or Silent())
    executor = get_executor("local", workers)
    if dry_run:
        report = run.preview(run.survey(executor))
    else:
        with run.folder.held():
            report = run.run(executor)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _prepare(
    source: str,
    dest: str | None,
    config: GeodataConfig,
    format: str | None,
    shard_size: int,
    seed: int,
    dry_run: bool,
    progress: Progress,
) -> _Run:
    if config.tagging is None:
        raise ConfigError("the config has no tagging:", hint="It says where records may live")
    if dest is None and config.dataset is None:
        raise ConfigError("the config has no dataset:", hint="Set dataset.root, or give DEST")
    place = locate(source, config)
    if dest is not None and "://" in dest:
        raise ConfigError(f"'{dest}' is a URL", hint="A destination is a folder")
    root = Path(dest).absolute() if dest else config.resolve(config.dataset.root)  # type: ignore[union-attr]
    here = place.here()
    staging = Catalog(place.root, make_access(place.audit, STAGING, "shard"))
    index = staging.index(place.version)
    if set(index.regions) != {STAGING}:
        raise ConfigError(f"'{source}' is classified already", hint="Shard what convert wrote")
    form = format or index.format
    if form not in FORMATS:
        raise ConfigError(f"no format '{form}'", hint=f"Known: {', '.join(FORMATS)}")
    roots = region_roots(config, str(root))
    kept_apart = (root, Path(place.root), *map(Path, roots.values()))
    keys = {} if dry_run else _subject_keys(config, kept_apart)
    rules = Rules(config.tagging, config.regions, dt.datetime.now(dt.UTC).date(), keys)
    digest = digest_of(
        {
            "source": [index.plan_digest, index.regions[STAGING].listing.sha256],
            "tagging": config.tagging.model_dump(),
            "regions": {name: region.jurisdiction for name, region in config.regions.items()},
            "keys": {name: pseudonym(key, "the key itself") for name, key in keys.items()},
            "format": form,
            "shard_size": shard_size,
            "seed": seed,
            "algorithm": ALGORITHM,
            **({"roots": roots} if roots else {}),
        }
    )
    return _Run(
        name=config.dataset.name if config.dataset else root.name,
        staging=staging,
        index=index,
        catalog=Catalog(str(root), make_access(place.audit, here, "shard"), roots),
        audit=place.audit,
        here=here,
        rules=rules,
        form=form,
        shard_bytes=shard_size,
        seed=seed,
        digest=digest,
        folder=JobFolder(Path(place.root), f"shard-{digest_of([digest, str(root)])[:12]}"),
        progress=progress,
    )


def _subject_keys(config: GeodataConfig, roots: tuple[Path, ...]) -> dict[str, bytes]:
    """Return each region's secret for pseudonyms, made now if this is the first use."""
    if config.tagging is None or config.tagging.subject is None:
        return {}
    return {
        name: load_subject_key(
            config.resolve(region.subject_key or Path("keys") / f"{name}.subject.key"), roots
        )
        for name, region in config.regions.items()
    }


def _check_classes(totals: Mapping[str, Mapping[str, int]], shard_bytes: int) -> None:
    """Refuse rules whose many tags would leave shards far under their target size."""
    sizes = sorted(part["nbytes"] for part in totals.values())
    small = len(sizes) > OPEN_CLASSES and sizes[len(sizes) // 2] < shard_bytes // 100
    if len(sizes) > MAX_CLASSES or small:
        raise ConfigError(
            f"{len(sizes)} tag classes would shatter the shards",
            hint="Let regions and tagging.rules make fewer, or lower --shard-size",
        )


@dataclass(slots=True)
class _Run:
    name: str
    staging: Catalog
    index: Index
    catalog: Catalog
    audit: Path
    here: str
    rules: Rules
    form: str
    shard_bytes: int
    seed: int
    digest: str
    folder: JobFolder
    progress: Progress

    def run(self, executor: Executor) -> ShardReport:
        """Plan or load the plan, do what is missing, commit."""
        versions = self.catalog.versions()
        latest = self.catalog.index() if versions else None
        if latest is not None and set(latest.regions) == {STAGING}:
            raise ConfigError("the destination is a staging dataset", file=self.catalog.root)
        if latest is not None and latest.plan_digest == self.digest:
            self.folder.remove()
            return self._report(latest, unchanged=True)
        plan = self.folder.load("plan")
        if plan is None:
            plan = self.plan(self.survey(executor))
            self.folder.save("plan", plan)
        self.rules = replace(self.rules, today=dt.date.fromisoformat(plan["today"]))
        self.folder.clear_work()
        spills = self._spill(executor, plan)
        shards = self._write(executor, plan, spills)
        index = self._commit(plan, shards)
        self.folder.remove()
        return self._report(index)

    def _routing(self, plan: Mapping[str, Any] | None = None) -> Routing:
        destinations = destinations_of(plan) if plan else ()
        return Routing(
            self.staging.root, self.index.format, self.rules, self.seed, self.form, destinations
        )

    def survey(self, executor: Executor) -> dict[str, Any]:
        """Return bytes and records by tag and hash bin, and what is unknown, over all shards."""
        shards = self.staging.shards(self.index, STAGING)
        self.progress.start("survey", sum(shard.live for shard in shards), "records")
        bins: dict[str, Counter[int]] = {}
        totals: dict[str, Counter[str]] = {}
        with closing(executor.run(survey_shard, shards, self._routing())) as finished:
            for number, found in finished:
                for tag, part in found.items():
                    bins.setdefault(tag, Counter()).update(part["bins"])
                    totals.setdefault(tag, Counter()).update(part["totals"])
                self.progress.advance(shards[number].live)
        self.progress.finish()
        return {"bins": bins, "totals": totals}

    def plan(self, survey: Mapping[str, Any]) -> dict[str, Any]:
        """Return the destinations: for each tag its cuts, the upper bins of its shards."""
        bins, totals = survey["bins"], survey["totals"]
        _check_classes(totals, self.shard_bytes)
        tags = {tag.digest: tag for tag in self.rules.classifier().tags}
        ordered = sorted(bins, key=lambda digest: (tags[digest].region, digest))
        return {
            "today": self.rules.today.isoformat(),
            "tags": [
                {
                    "tag": tags[digest].to_json(),
                    "cuts": cut_bins(bins[digest], self.shard_bytes),
                    **totals[digest],
                }
                for digest in ordered
            ],
        }

    def preview(self, survey: Mapping[str, Any]) -> ShardReport:
        """Return what a run would write, by the survey."""
        plan = self.plan(survey)
        regions: dict[str, RegionTotals] = {}
        for part in plan["tags"]:
            tag = Tag.from_json(part["tag"])
            total = regions.setdefault(tag.region, RegionTotals())
            total.records += part["records"]
            total.bytes += part["nbytes"]
            total.shards += len(part["cuts"])
            total.personal += part["records"] if tag.personal else 0
            total.unknown += part["unknown"]
        return self._summary(None, regions, dry_run=True)

    def _spill(self, executor: Executor, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        folder = self.folder.path / "spill"
        tasks = [
            SpillTask(shard, str(folder / f"{number:06}.arrow"))
            for number, shard in enumerate(self.staging.shards(self.index, STAGING))
        ]
        return self._stage("spill", "partition", executor, spill_shard, tasks, self._routing(plan))

    def _write(
        self, executor: Executor, plan: Mapping[str, Any], spills: Sequence[dict[str, Any]]
    ) -> list[Shard]:
        output = Output(
            schema=schemas.to_json(self._schema),
            form=self.form,
            shard_bytes=self.shard_bytes,
            work=str(self.folder.work),
            roots={name: self.catalog.root_of(name) for name in self.rules.regions},
            audit=str(self.audit),
            here=self.here,
        )
        sources = sources_by_destination(spills)
        tasks = [
            WriteTask(number, destination.tag, sources[number])
            for number, destination in enumerate(destinations_of(plan))
        ]
        results = self._stage("write", "write", executor, write_shard, tasks, output)
        return [Shard.from_line(line) for result in results for line in result["shards"]]

    def _stage(
        self,
        stage: str,
        shown: str,
        executor: Executor,
        function: Callable[[Any, Any], dict[str, Any]],
        tasks: Sequence[Any],
        shared: Any,
    ) -> list[dict[str, Any]]:
        """Run a stage over all records, with progress."""
        self.progress.start(shown, self.index.records, "records")
        results = self.folder.run(
            stage,
            self.digest,
            executor,
            function,
            tasks,
            shared,
            lambda result: self.progress.advance(result["records"]),
        )
        self.progress.finish()
        return results

    @property
    def _schema(self) -> pa.Schema:
        return self.rules.classifier().schema(schemas.from_json(self.index.schema_))

    def _commit(self, plan: Mapping[str, Any], shards: Sequence[Shard]) -> Index:
        written = sum(shard.live for shard in shards)
        if written != self.index.records:
            raise ConfigError(f"{self.index.records} records in, but {written} written")
        by_region: dict[str, list[Shard]] = {name: [] for name in self.rules.regions}
        for item in shards:
            by_region[item.tag.region].append(item)
        unknown = Counter(dict.fromkeys(by_region, 0))
        for part in plan["tags"]:
            unknown[part["tag"]["region"]] += part["unknown"]
        draft = Index(
            dataset=self.name,
            version="",
            **stamp(),
            plan_digest=self.digest,
            format=self.form,
            schema_=schemas.to_json(self._schema),
            labels=self.index.labels,
            regions={},
            report={
                "operation": "shard",
                "unknown": dict(unknown),
                "source": self.index.plan_digest,
            },
        )
        return self.catalog.commit(draft, by_region)

    def _report(self, index: Index, unchanged: bool = False) -> ShardReport:
        unknown = index.report.get("unknown", {})
        regions = {}
        for name, entry in index.regions.items():
            personal = sum(t.records for t in entry.tags if Tag.from_json(t.tag).personal)
            regions[name] = RegionTotals(
                entry.records, entry.nbytes, entry.shards, personal, unknown.get(name, 0)
            )
        report = self._summary(index.version, regions)
        report.unchanged = unchanged
        return report

    def _summary(
        self, version: str | None, regions: dict[str, RegionTotals], dry_run: bool = False
    ) -> ShardReport:
        return ShardReport(
            dataset=self.name,
            dest=self.catalog.root,
            version=version,
            records_in=self.index.records,
            records_out=sum(total.records for total in regions.values()),
            rejected=0,
            shards=sum(total.shards for total in regions.values()),
            bytes_in=self.index.nbytes,
            bytes_out=sum(total.bytes for total in regions.values()),
            unknown_region=sum(total.unknown for total in regions.values()),
            regions=regions,
            dry_run=dry_run,
        )
