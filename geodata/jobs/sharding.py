"""Classifies a staging dataset's shards: what `shard` and `append` have in common.

The survey counts bytes by tag and by hash of the key. From it the plan cuts each tag's records,
in the order of their hashes (the shuffle at write time), into shards of even size. Spilling sorts
each staging shard by destination; writing gathers one destination from all spills. A destination
is one task, so neither workers nor kills change any boundary.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import Catalog, holds
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor
from geodata.jobs.base import JobFolder, Progress
from geodata.jobs.deliveries import announce, withdraw
from geodata.jobs.origins import keep_shards
from geodata.manifest import Index, Shard
from geodata.partition.dedupe import LeftOut
from geodata.partition.finishing import Finishing, check_complete
from geodata.partition.fitting import Fitting
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
from geodata.stores import open_store
from geodata.tagging import load_subject_key, pseudonym

MAX_CLASSES = 1000
OPEN_CLASSES = 64


def rules_of(
    config: GeodataConfig,
    staging: Path,
    root: Path,
    roots: Mapping[str, str],
    dry_run: bool = False,
) -> Rules:
    """Return the rules of a config as of today, with the secrets for pseudonyms.

    These may lie in none of the roots, and are made now if this is their first use.
    """
    if config.tagging is None:
        raise ConfigError("the config has no `tagging`", hint="It says where records may live")
    apart = (root, staging, *map(Path, roots.values()))
    keys = {} if dry_run else _subject_keys(config, apart)
    return Rules(config.tagging, config.regions, dt.datetime.now(dt.UTC).date(), keys)


def told(rules: Rules) -> dict[str, Any]:
    """Return what decides how rules classify, as plain JSON; no secret is in it."""
    return {
        "tagging": rules.tagging.model_dump(),
        "regions": {name: region.jurisdiction for name, region in rules.regions.items()},
        "keys": {name: pseudonym(key, "the key itself") for name, key in rules.keys.items()},
    }


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


def source_entry(work: Sharding) -> dict[str, Any]:
    """Return what the index tells of what was classified, which is kept beside it."""
    return {
        "source": work.index.plan_digest,
        "digest": work.digest,
        "records": work.records,
        "finishing": work.finishing.to_json(),
        "seed": work.seed,
        "shards": keep_shards(work.catalog, work.shards),
    }


@dataclass(slots=True)
class Sharding:
    """Sends `shards` of the staging dataset `index` to the regions of the dataset in `catalog`.

    With `fitting` their records become those of a dataset that is there, but for those `left_out`,
    of which there are `repeats`. `digest` is of all that decides the result.
    """

    staging: Catalog
    index: Index
    shards: Sequence[Shard]
    catalog: Catalog
    audit: Path
    here: str
    rules: Rules
    form: str
    shard_bytes: int
    seed: int
    finishing: Finishing
    digest: str
    folder: JobFolder
    progress: Progress
    fitting: Fitting | None = None
    left_out: LeftOut | None = None
    repeats: int = 0

    @property
    def records(self) -> int:
        """Return how many records there are to classify."""
        return sum(shard.live for shard in self.shards) - self.repeats

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of what is written."""
        if self.fitting is not None:
            return schemas.from_json(self.fitting.schema)
        classified = self.rules.classifier().schema(schemas.from_json(self.index.schema_))
        return self.finishing.schema(classified)

    def run(self, executor: Executor) -> Sharded:
        """Plan or load the plan, and do what is missing."""
        plan = self.folder.load("plan")
        if plan is None or plan.get("digest", self.digest) != self.digest:
            plan = {**self.plan(self.survey(executor)), "digest": self.digest}
            self.folder.save("plan", plan)
        announce(self.folder, self._roots.values())
        self.rules = replace(self.rules, today=dt.date.fromisoformat(plan["today"]))
        self.folder.clear_work()
        spills = self._spill(executor, plan)
        shards, done = self._write(executor, plan, spills)
        written, tokens = sum(s.live for s in shards), sum(p.get("tokens", 0) for p in plan["tags"])
        check_complete(self.finishing, done, self.records, written, tokens)
        return self._sharded(plan, shards, done)

    def _sharded(
        self, plan: Mapping[str, Any], shards: Sequence[Shard], done: Mapping[str, int]
    ) -> Sharded:
        by_region: dict[str, list[Shard]] = {name: [] for name in self.rules.regions}
        for item in shards:
            by_region[item.tag.region].append(item)
        unknown = Counter(dict.fromkeys(by_region, 0))
        for part in plan["tags"]:
            unknown[part["tag"]["region"]] += part["unknown"]
        return Sharded(by_region, dict(unknown), self.finishing.report(done))

    def routing(self, plan: Mapping[str, Any] | None = None) -> Routing:
        """Return how records are classified, and by a plan where they go."""
        destinations = destinations_of(plan) if plan else ()
        return Routing(
            self.staging.root,
            self.index.schema_,
            self.index.format,
            self.rules,
            self.seed,
            self.form,
            self.finishing.packing,
            self.fitting,
            self.left_out,
            destinations,
        )

    def survey(self, executor: Executor) -> dict[str, Any]:
        """Return bytes and records by tag and hash bin, and what is unknown, over all shards."""
        self.progress.start("survey", self.records, "records")
        bins: dict[str, Counter[int]] = {}
        totals: dict[str, Counter[str]] = {}
        with closing(executor.run(survey_shard, self.shards, self.routing())) as finished:
            for _number, found in finished:
                for tag, part in found.items():
                    bins.setdefault(tag, Counter()).update(part["bins"])
                    totals.setdefault(tag, Counter()).update(part["totals"])
                records = sum(part["totals"]["records"] for part in found.values())
                self.progress.advance(records)
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

    def _spill(self, executor: Executor, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
        folder = self.folder.path / "spill"
        tasks = [
            SpillTask(shard, str(folder / f"{number:06}.arrow"))
            for number, shard in enumerate(self.shards)
        ]
        return self._stage("spill", "partition", executor, spill_shard, tasks, self.routing(plan))

    def _write(
        self, executor: Executor, plan: Mapping[str, Any], spills: Sequence[dict[str, Any]]
    ) -> tuple[list[Shard], Counter[str]]:
        """Return all shards, and the sums of what was done to their records."""
        output = Output(
            schema=schemas.to_json(self.schema),
            form=self.form,
            shard_bytes=self.shard_bytes,
            work=str(self.folder.work),
            roots=self._roots,
            audit=str(self.audit),
            here=self.here,
            finishing=self.finishing,
        )
        sources = sources_by_destination(spills)
        tasks = [
            WriteTask(number, destination.tag, sources[number])
            for number, destination in enumerate(destinations_of(plan))
        ]
        results = self._stage(
            "write", "write", executor, write_shard, tasks, output, self._delivered
        )
        done: Counter[str] = Counter()
        for result in results:
            done.update(result.get("done", {}))
        return [Shard.from_line(line) for result in results for line in result["shards"]], done

    def _stage(
        self,
        stage: str,
        shown: str,
        executor: Executor,
        function: Callable[[Any, Any], dict[str, Any]],
        tasks: Sequence[Any],
        shared: Any,
        usable: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> list[dict[str, Any]]:
        """Run a stage over all records, with progress."""
        self.progress.start(shown, self.records, "records")
        results = self.folder.run(
            stage,
            self.digest,
            executor,
            function,
            tasks,
            shared,
            lambda result: self.progress.advance(result["records"]),
            usable,
        )
        self.progress.finish()
        return results

    def _delivered(self, result: Mapping[str, Any]) -> bool:
        """Return whether the shards that a killed run delivered are there still."""
        made = [Shard.from_line(line) for line in result["shards"]]
        access = self.catalog.access
        stores = {
            name: open_store(r, region=name, access=access) for name, r in self._roots.items()
        }
        return all(
            holds(stores[shard.tag.region], ref.path)
            for shard in made
            for ref in shard.files.values()
        )

    @property
    def _roots(self) -> dict[str, str]:
        """Return where the shards of each region go."""
        return {name: self.catalog.root_of(name) for name in self.rules.regions}

    def forget(self) -> None:
        """Remove what the job kept: it is done, or there is nothing to do."""
        self.folder.remove()
        withdraw(self.folder, self._roots.values())


@dataclass(frozen=True, slots=True)
class Sharded:
    """What was written: shards and records of unknown region, by region, and what was done."""

    shards: dict[str, list[Shard]]
    unknown: dict[str, int]
    done: dict[str, Any]
