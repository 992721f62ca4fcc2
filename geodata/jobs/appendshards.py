"""Adds to a classified dataset what it has not got of a staging dataset, by the config's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import COMMIT_ATTEMPTS, Catalog, Change, Place
from geodata.config import TaggingSection
from geodata.errors import CommitConflict, ConfigError
from geodata.executors import Executor
from geodata.jobs.appendheld import Held
from geodata.jobs.base import JobFolder, Progress, digest_of
from geodata.jobs.comparing import check_same
from geodata.jobs.origins import known_shards, sources_of
from geodata.jobs.sharding import Sharded, Sharding, rules_of, source_entry, told
from geodata.jobs.target import Target
from geodata.manifest import Index
from geodata.partition.finishing import Finishing
from geodata.partition.fitting import Fitting
from geodata.partition.routing import Rules
from geodata.prepare.tokens import BYTES, Counting, tokenizer_digest
from geodata.schema import is_label
from geodata.tags import STAGING

ALGORITHM = "append-1"


@dataclass(slots=True)
class Added:
    """What was added: the version, records by region, and what else the report says of it.

    `duplicates` were left out as repeats. With `unchecked` records, which may not be read here,
    those added were not compared.
    """

    index: Index
    records: int = 0
    duplicates: int = 0
    bytes_in: int = 0
    shards: int = 0
    bytes_out: int = 0
    regions: dict[str, int] = field(default_factory=dict)
    unchecked: int = 0
    unchanged: bool = False


@dataclass(slots=True)
class ShardAppend:
    """Classifies the shards of the staging dataset at `staging` that `place` has not got.

    With `dedupe` records go that are equal to one before, or to one of the dataset that may be read
    here: in all columns as they are stored there, the subject's pseudonym among them.
    """

    place: Place
    staging: Catalog
    shard_bytes: int
    dedupe: bool
    executor: Executor
    progress: Progress

    def run(self) -> Added:
        """Write and commit; anew if another writer was faster."""
        catalog = Catalog.at(self.place, "append")
        folder = JobFolder(Path(self.staging.root), f"append-{digest_of(catalog.root)[:12]}")
        with folder.held():
            for _attempt in range(COMMIT_ATTEMPTS):
                base = catalog.index()
                known = sources_of(catalog, base)
                work = self._work(catalog, base, known, folder)
                if not work.shards:
                    work.forget()
                    return Added(base, unchanged=True)
                held = Held.of(catalog, base, self.executor)
                if self.dedupe:
                    work = held.without_repeats(work)
                held.check_keys(work)
                sharded = work.run(self.executor)
                change = _change(work, base, known, sharded)
                try:
                    index = catalog.amend(base, change, partial(check_same, base))
                except CommitConflict:
                    if catalog.index().version == base.version:
                        raise
                    continue
                work.forget()
                return _added(index, work, sharded, held.unread)
        raise CommitConflict("other writers were always faster", file=catalog.root)

    def _work(
        self,
        catalog: Catalog,
        base: Index,
        known: Sequence[dict[str, Any]],
        folder: JobFolder,
    ) -> Sharding:
        config = self.place.config
        if config is None or config.tagging is None:
            raise ConfigError("the config has no `tagging`", hint="It says where records may live")
        index = self.staging.index()
        if set(index.regions) != {STAGING}:
            raise ConfigError(
                "the source is classified already",
                file=self.staging.root,
                hint="Append what convert wrote, or a raw corpus",
            )
        taken = known_shards(catalog, known, self.staging)
        every = self.staging.shards(index, STAGING)
        shards = [shard for shard in every if shard.shard_id not in taken]
        root, staging = Path(catalog.root), Path(self.staging.root)
        rules = rules_of(config, staging, root, catalog.roots)
        finishing = _as_before(known, schemas.from_json(index.schema_), config.tagging)
        fitting = _fitting(base, index, rules)
        digest = digest_of(
            {
                "fitting": asdict(fitting),
                "shards": [shard.shard_id for shard in shards],
                **told(rules),
                **finishing.to_json(),
                "format": base.format,
                "shard_size": self.shard_bytes,
                "algorithm": ALGORITHM,
            }
        )
        return Sharding(
            staging=self.staging,
            index=index,
            shards=shards,
            catalog=catalog,
            audit=self.place.audit,
            here=self.place.here(),
            rules=rules,
            form=base.format,
            shard_bytes=self.shard_bytes,
            seed=known[-1].get("seed", 0) if known else 0,
            finishing=finishing,
            digest=digest,
            folder=folder,
            progress=self.progress,
            fitting=fitting,
        )


def _as_before(
    known: Sequence[dict[str, Any]], schema: pa.Schema, tagging: TaggingSection
) -> Finishing:
    """Return what was done to the dataset's records before they were written."""
    done: dict[str, Any] = {"exif": "auto"}
    if known:
        done = known[-1].get("finishing", done)
    if "pack" in done:
        raise ConfigError(
            "the dataset holds packed sequences", hint="Pack all documents anew: geodata shard"
        )
    counting = None
    if "count" in done:
        tokenizer = done["count"]["tokenizer"]
        if tokenizer not in (None, tokenizer_digest(BYTES)):
            raise ConfigError(
                "the dataset's tokens were counted by a tokenizer that is not kept with it",
                hint="Count all anew: geodata shard --count-tokens --tokenizer FILE",
            )
        counting = Counting(done["count"]["column"], tokenizer and BYTES)
    return Finishing(done.get("exif", "keep"), None, counting).checked(schema, tagging)


def _fitting(base: Index, index: Index, rules: Rules) -> Fitting:
    """Return how records of a staging dataset become those of the version `base`."""
    target = Target.of(base)
    schema = rules.classifier().schema(schemas.from_json(index.schema_))
    wide = schemas.to_json(target.widened(schema))
    columns = [field.name for field in schema if is_label(field) and field.name in index.labels]
    grown = target.grown({name: set(index.labels[name]) for name in columns})
    places = {name: {value: n for n, value in enumerate(grown[name])} for name in columns}
    labels = {n: tuple(places[n][value] for value in index.labels[n]) for n in columns}
    return Fitting(wide, labels, grown)


def _change(
    work: Sharding, base: Index, known: Sequence[dict[str, Any]], sharded: Sharded
) -> Change:
    assert work.fitting is not None
    added = {region: shards for region, shards in sharded.shards.items() if shards}
    return Change(
        operation="append",
        plan_digest=work.digest,
        added=added,
        fields=Target.of(base).changes(work.schema, dict(work.fitting.grown)),
        report={
            "unknown": sharded.unknown,
            "records": base.records + work.records,
            "source": work.index.plan_digest,
            "sources": [*known, source_entry(work)],
            **sharded.done,
        },
    )


def _added(index: Index, work: Sharding, sharded: Sharded, unchecked: int) -> Added:
    shards = [shard for found in sharded.shards.values() for shard in found]
    regions = {
        region: sum(shard.live for shard in found)
        for region, found in sharded.shards.items()
        if found
    }
    return Added(
        index=index,
        records=work.records,
        duplicates=work.repeats,
        bytes_in=sum(shard.nbytes for shard in work.shards),
        shards=len(shards),
        bytes_out=sum(shard.nbytes for shard in shards),
        regions=regions,
        unchecked=unchecked,
    )
