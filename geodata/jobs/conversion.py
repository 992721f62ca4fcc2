"""Runs a conversion: what `convert` and `append` have in common.

The plan lists the source, finds the schema, and cuts the corpus into tasks, each of which owns
whole shards. A record is written, left out as a repeat, or rejected with its reason: nothing is
lost silently.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geodata import schema as schemas
from geodata.durable import replacing
from geodata.errors import ConfigError, GeodataError, SchemaError, TooManyBadRecords
from geodata.executors import Executor
from geodata.jobs.base import NAME_CHARS, JobFolder, Progress, digest_of
from geodata.jobs.comparing import print_shards, prints_folder, repeats_among
from geodata.jobs.listed import Listed
from geodata.jobs.planning import Options, Planner
from geodata.jobs.target import Target
from geodata.manifest import Shard
from geodata.partition.dedupe import Repeats, Stored
from geodata.partition.rejects import Reasons, check_bound, reasons_of
from geodata.partition.staging import (
    Misfit,
    Staging,
    StagingTask,
    print_staging,
    write_staging,
)
from geodata.schema import data_fields
from geodata.sources.base import Source
from geodata.sources.unchanged import check_unchanged


@dataclass(slots=True)
class Written:
    """What a conversion wrote: records_in = records_out + rejected + duplicates."""

    schema: dict[str, Any]
    labels: dict[str, list[str]]
    shards: list[Shard]
    records_in: int
    records_out: int
    rejected: int
    duplicates: int
    reasons: dict[str, int]
    bytes_in: int
    quarantine: str | None
    own_keys: bool
    encodings: dict[str, Any]
    ignored: dict[str, int]


@dataclass(slots=True)
class Conversion:
    """A conversion of `source` whose shards are written into the staging store at `root`.

    `identity` is plain JSON that names the source and how it is read. With a `target` the records
    are to fit the dataset there, of whose shards `held` are compared with when repeats go.
    """

    source: Source
    options: Options
    identity: dict[str, Any]
    folder: JobFolder
    root: Path
    progress: Progress
    target: Target | None = None
    held: tuple[Stored, Sequence[Shard]] | None = None
    listed: Listed = field(init=False)
    digest: str = field(init=False)
    """Of all that decides the result."""

    def __post_init__(self) -> None:
        self.listed = Listed(self.source)
        given = {**self.identity, **self.options.to_json()}
        self.digest = digest_of({**given, "files": self.listed.digest})

    def run(self, executor: Executor, max_errors: int | None, restart: bool) -> Written:
        """Plan or load the plan, and write what is missing."""
        try:
            plan = self._planned(executor, restart)
            try:
                results = self._write(executor, plan, max_errors)
            except Misfit:
                plan = self._made(executor, sampled=False)
                results = self._write(executor, plan, max_errors)
            if not self.source.reads_own_files:
                check_unchanged(self.source, range(len(self.source.files)))
            return self._written(plan, results)
        except (TooManyBadRecords, SchemaError):
            self.folder.save("failed", {"digest": self.digest})
            raise

    def _planned(self, executor: Executor, restart: bool) -> dict[str, Any]:
        """Return the plan; made anew if the source was mended since the last run failed."""
        plan = self.folder.load("plan")
        changed = plan and self._changed(plan)
        failed = self.folder.load("failed") is not None
        if restart and not changed:
            self.folder.clear()
            plan = None
        elif changed and not (restart or failed):
            raise ConfigError(
                f"the source changed since this conversion was planned: {changed}",
                hint="Run it again with --restart to go on with it as it is now",
            )
        if plan is None or plan["digest"] != self._basis:
            plan = self._made(executor, sampled=self._planner.samples)
            self.folder.forget("failed")
        return plan

    @property
    def _basis(self) -> str:
        """Return the digest of what a plan is made of."""
        return digest_of([self.digest, self.target and self.target.digest])

    def _made(self, executor: Executor, *, sampled: bool) -> dict[str, Any]:
        """Return a new plan, which is kept."""
        made = self._planner.plan(self.folder, executor, self.progress, sampled=sampled)
        plan = {**made, "digest": self._basis, "files": self.listed.digest}
        self.listed.write(self._list)
        self.folder.save("plan", plan)
        return plan

    def _changed(self, plan: dict[str, Any]) -> str | None:
        """Return the first file that is not as it was planned."""
        same = plan["files"] == self.listed.digest
        return None if same else self.listed.difference(self._list)

    @property
    def _list(self) -> Path:
        return self.folder.path / "files"

    @property
    def _planner(self) -> Planner:
        return Planner(self.source, self.options, self.identity, self.listed, self.target)

    def _shared(self, plan: dict[str, Any], max_errors: int | None) -> Staging:
        return Staging(
            source=self.source,
            read=plan["read"],
            schema=plan["schema"],
            labels=plan["labels"],
            preparing=self.options.preparing,
            form=self.options.format,
            shard_bytes=self.options.shard_size,
            on_error=self.options.on_error,
            max_errors=max_errors,
            dest=str(self.root),
            work=str(self.folder.work),
            quarantine=str(self._own_quarantine),
            prints=str(prints_folder(self.folder)),
            columns=tuple(f.name for f in data_fields(schemas.from_json(plan["schema"]))),
            sampled=plan.get("sampled", False),
        )

    def _write(
        self, executor: Executor, plan: dict[str, Any], max_errors: int | None
    ) -> list[dict[str, Any]]:
        self.folder.clear_work()
        shared, tasks = self._shared(plan, max_errors), self._planner.tasks(plan)
        if self.options.dedupe:
            shared, tasks = self._without_repeats(executor, plan, shared, tasks)
        reasons = Reasons()

        def done(result: dict[str, Any]) -> None:
            if result["misfit"]:
                raise Misfit
            reasons.update(result["reasons"])
            self.progress.advance(result["records"] + result["rejected"] + result["duplicates"])
            check_bound(reasons, max_errors)

        self.progress.start("convert", plan["rows"], "records")
        names = [task.name for task in tasks]
        try:
            results = self.folder.run(
                "task", names, executor, write_staging, tasks, shared, done, self._usable
            )
        except TooManyBadRecords:
            self._set_aside(tasks)
            raise
        self.progress.finish()
        self._set_aside(tasks)
        return results

    def _usable(self, result: dict[str, Any]) -> bool:
        """Return whether a kept result holds for this run too, and its shards are still there."""
        if result.get("misfit", True):
            return False
        if result["rejected"] and result["on_error"] != self.options.on_error:
            return False
        refs = (ref for line in result["shards"] for ref in Shard.from_line(line).files.values())
        return all((self.root / ref.path).is_file() for ref in refs)

    def _without_repeats(
        self, executor: Executor, plan: dict[str, Any], shared: Staging, tasks: list[StagingTask]
    ) -> tuple[Staging, list[StagingTask]]:
        """Find the records that repeat one before, here or in the dataset, and tell the tasks."""
        held = []
        if self.held is not None:
            stored, shards = self.held
            stored = replace(stored, schema=shared.schema, columns=shared.columns)
            held = print_shards(self.folder, executor, stored, shards, self.progress)
        self.progress.start("compare", plan["rows"], "records")
        own = self.folder.run(
            "print",
            [task.name for task in tasks],
            executor,
            print_staging,
            tasks,
            shared,
            lambda result: self.progress.advance(result["records"] + result["rejected"]),
            lambda result: not result["rejected"] or self.options.on_error != "fail",
        )
        files = repeats_among(self.folder, executor, [*held, *own], len(held))
        self.progress.finish()
        repeats = Repeats(prints_folder(self.folder), files)
        marked = []
        for item, task in enumerate(tasks, len(held)):
            rows = repeats.rows(item)
            left_out = hashlib.sha256(rows.tobytes()).hexdigest()
            name = digest_of([task.name, left_out])[:NAME_CHARS] if len(rows) else task.name
            marked.append(replace(task, item=item, name=name))
        return replace(shared, repeats=files), marked

    @property
    def _own_quarantine(self) -> Path:
        return self.folder.path / "quarantine"

    @property
    def _quarantine(self) -> Path:
        return self.root / "quarantine" / self.digest[:12]

    def _set_aside(self, tasks: Sequence[StagingTask]) -> None:
        """Let the quarantine of each task be seen where it stays when the job's folder goes."""
        if self.options.on_error == "quarantine":
            for task in tasks:
                own = self._own_quarantine / f"{task.name}.jsonl"
                if own.is_file():
                    _link(own, self._quarantine / f"task-{task.number:06}.jsonl")

    def _written(self, plan: dict[str, Any], results: Sequence[dict[str, Any]]) -> Written:
        found = {
            name: sum(result[name] for result in results)
            for name in ("records", "rejected", "duplicates")
        }
        if sum(found.values()) != plan["rows"]:
            raise GeodataError(
                f"{plan['rows']} records in, but {found['records']} written, "
                f"{found['rejected']} rejected and {found['duplicates']} left out as repeats",
                hint="The source changed while it was read; run it again with --restart",
            )
        kept = found["rejected"] and self.options.on_error == "quarantine"
        return Written(
            schema=plan["schema"],
            labels=plan["labels"],
            shards=[Shard.from_line(line) for result in results for line in result["shards"]],
            records_in=plan["rows"],
            records_out=found["records"],
            rejected=found["rejected"],
            duplicates=found["duplicates"],
            reasons=reasons_of(result["reasons"] for result in results).most_common(),
            bytes_in=self.listed.nbytes,
            quarantine=str(self._quarantine) if kept else None,
            own_keys=any(result["own_keys"] for result in results),
            encodings=plan["encodings"],
            ignored=dict(Counter(self.source.ignored) + Counter(plan.get("ignored"))),
        )


def _link(path: Path, target: Path) -> None:
    """Let a finished file be at `target` too, without a copy where the filesystem can."""
    if target.exists() and target.samefile(path):
        return
    with replacing(target) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
