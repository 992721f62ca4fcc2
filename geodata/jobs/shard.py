"""Staging dataset → shards by region and tag: survey, spill, write, commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geodata import schema as schemas
from geodata.catalog import Catalog, locate, make_access, region_roots, stamp
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.formats import FORMATS
from geodata.jobs.base import JobFolder, Progress, Silent, digest_of
from geodata.jobs.editing import edits_since
from geodata.jobs.origins import known_shards, sources_of
from geodata.jobs.sharding import Sharded, Sharding, rules_of, source_entry, told
from geodata.jobs.shardreport import RegionTotals, ShardReport
from geodata.manifest import Index, Version
from geodata.partition.finishing import Exif, Finishing
from geodata.prepare.packing import Packing
from geodata.prepare.tokens import TOKENS, Counting
from geodata.tags import STAGING, Tag

SHARD_BYTES = 256 << 20
MAX_SHARD_BYTES = 1 << 30
ALGORITHM = "shard-1"
OPERATION = "shard"


def shard(
    source: str,
    dest: str | None = None,
    *,
    config: GeodataConfig,
    format: str | None = None,
    shard_size: int = SHARD_BYTES,
    seed: int = 0,
    exif: Exif = "auto",
    pack: int | None = None,
    tokens: str | None = None,
    count_tokens: str | None = None,
    tokenizer: str | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ShardReport:
    """Partition the staging dataset `source` by region and tag.

    With `dest` all goes there, else to `dataset.root` and to the roots of the regions. `format`
    defaults to the source's. Images of personal data lose what cameras add unless `exif` is "keep";
    all do with "strip". `pack` makes sequences of so many tokens of the lists in column `tokens`
    (None: "tokens"); `count_tokens` names a column whose tokens are counted into the sidecars ("":
    the only one), a text if there is a `tokenizer` (a file, or "bytes"). Raises ConfigError,
    PolicyDenied, CommitConflict, StoreError.
    """
    began = time.monotonic()
    if not 0 < shard_size <= MAX_SHARD_BYTES:
        raise ConfigError(f"shards of {shard_size} bytes", hint="--shard-size is at most 1GiB")
    if tokenizer is not None and count_tokens is None:
        raise ConfigError("a tokenizer only counts here", hint="Add --count-tokens [COLUMN]")
    if tokens is not None and pack is None:
        raise ConfigError("--tokens names what is packed", hint="Add --pack LENGTH")
    finishing = Finishing(
        exif,
        None if pack is None else Packing(pack, tokens or TOKENS),
        None if count_tokens is None else Counting(count_tokens, tokenizer),
    )
    run = _prepare(
        source, dest, config, format, shard_size, seed, finishing, dry_run, progress or Silent()
    )
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
    finishing: Finishing,
    dry_run: bool,
    progress: Progress,
) -> _Run:
    if config.tagging is None:
        raise ConfigError("the config has no `tagging`", hint="It says where records may live")
    if dest is None and config.dataset is None:
        raise ConfigError("the config has no `dataset`", hint="Set dataset.root, or give DEST")
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
    finishing = finishing.checked(schemas.from_json(index.schema_), config.tagging)
    roots = region_roots(config, str(root))
    rules = rules_of(config, Path(place.root), root, roots, dry_run)
    digest = digest_of(
        {
            "source": [index.plan_digest, index.regions[STAGING].listing.sha256],
            **told(rules),
            "format": form,
            "shard_size": shard_size,
            "seed": seed,
            "algorithm": ALGORITHM,
            **({"roots": roots} if roots else {}),
            **finishing.to_json(),
        }
    )
    work = Sharding(
        staging=staging,
        index=index,
        shards=staging.shards(index, STAGING),
        catalog=Catalog(str(root), make_access(place.audit, here, "shard"), roots),
        audit=place.audit,
        here=here,
        rules=rules,
        form=form,
        shard_bytes=shard_size,
        seed=seed,
        finishing=finishing,
        digest=digest,
        folder=JobFolder(Path(place.root), f"shard-{digest_of([digest, str(root)])[:12]}"),
        progress=progress,
    )
    return _Run(config.dataset.name if config.dataset else root.name, work)


@dataclass(slots=True)
class _Run:
    name: str
    work: Sharding

    @property
    def folder(self) -> JobFolder:
        """Return where the job keeps what it has done."""
        return self.work.folder

    def survey(self, executor: Executor) -> dict[str, Any]:
        """Return bytes and records by tag and hash bin, and what is unknown, over all shards."""
        return self.work.survey(executor)

    def run(self, executor: Executor) -> ShardReport:
        """Do what is missing, and commit."""
        catalog = self.work.catalog
        versions = catalog.versions()
        latest = catalog.index() if versions else None
        if latest is not None and set(latest.regions) == {STAGING}:
            raise ConfigError("the destination is a staging dataset", file=catalog.root)
        known = sources_of(catalog, latest) if latest is not None else []
        if latest is not None and any(e.get("digest") == self.work.digest for e in known):
            self.work.forget()
            return self._report(latest, unchanged=True)
        if len(known) > 1:
            self._check_nothing_lost(known)
        undone = edits_since(catalog, latest, OPERATION) if latest is not None else []
        index = self._commit(self.work.run(executor), versions)
        self.work.forget()
        report = self._report(index)
        report.undone = undone
        return report

    def _check_nothing_lost(self, known: list[dict[str, Any]]) -> None:
        """Refuse to follow a version that was appended to by one that holds less."""
        taken = known_shards(self.work.catalog, known, self.work.staging)
        if taken - {shard.shard_id for shard in self.work.shards}:
            raise ConfigError(
                "records were appended there that this staging dataset has not",
                file=self.work.catalog.root,
                hint="Add to it with geodata append, or choose another destination",
            )

    def preview(self, survey: Mapping[str, Any]) -> ShardReport:
        """Return what a run would write, by the survey."""
        plan = self.work.plan(survey)
        regions: dict[str, RegionTotals] = {}
        for part in plan["tags"]:
            tag = Tag.from_json(part["tag"])
            total = regions.setdefault(tag.region, RegionTotals())
            total.records += part["records"]
            total.bytes += part["nbytes"]
            total.shards += len(part["cuts"])
            total.personal += part["records"] if tag.personal else 0
            total.unknown += part["unknown"]
        report = self._summary(None, regions, dry_run=True)
        catalog = self.work.catalog
        if catalog.versions():
            report.undone = edits_since(catalog, catalog.index(), OPERATION)
        return report

    def _commit(self, sharded: Sharded, known: Sequence[Version]) -> Index:
        work = self.work
        entry = source_entry(work)
        draft = Index(
            dataset=self.name,
            version="",
            **stamp(),
            plan_digest=work.digest,
            format=work.form,
            schema_=schemas.to_json(work.schema),
            labels=work.index.labels if work.finishing.packing is None else {},
            regions={},
            report={
                "operation": OPERATION,
                "unknown": sharded.unknown,
                "source": work.index.plan_digest,
                "sources": [entry],
                **sharded.done,
            },
        )
        return work.catalog.commit(draft, sharded.shards, known=known)

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
        report.stripped = index.report.get("stripped", 0)
        report.packed, report.counted = (index.report.get(n) for n in ("packed", "counted"))
        return report

    def _summary(
        self, version: str | None, regions: dict[str, RegionTotals], dry_run: bool = False
    ) -> ShardReport:
        return ShardReport(
            dataset=self.name,
            dest=self.work.catalog.root,
            version=version,
            records_in=self.work.records,
            records_out=sum(total.records for total in regions.values()),
            rejected=0,
            shards=sum(total.shards for total in regions.values()),
            bytes_in=self.work.index.nbytes,
            bytes_out=sum(total.bytes for total in regions.values()),
            unknown_region=sum(total.unknown for total in regions.values()),
            regions=regions,
            dry_run=dry_run,
        )
