"""What edits of a dataset share: what they go on, where they go on after a kill, their commit.

An edit makes a new version on top of the newest one. Shards are read and written in the region
where they lie; those that policy does not let this region read stay as they are, and are counted:
run the same edit in their region. Results are stored shard by shard, bound to the shard and to what
is done with it, so that a rerun redoes none, even where another version came in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog, Change, holds, locate
from geodata.config import GeodataConfig
from geodata.errors import ConfigError, GeodataError, PolicyDenied
from geodata.executors import Executor, in_order
from geodata.formats.joined import column_files
from geodata.jobs.base import JobFolder, Progress, digest_of
from geodata.manifest import Index, Shard, Version
from geodata.partition.opening import Edited, Placed
from geodata.policy import Movement

EDITS = ("add-column", "drop")
"""Operations that a dataset made anew of its source would undo."""


@dataclass(slots=True)
class Edit:
    """An edit of the version `index`; `shards` may be read here, those `left` may not.

    `identity` is the digest of all that the user asks for.
    """

    operation: str
    identity: str
    catalog: Catalog
    index: Index
    shards: list[Placed]
    left: list[Placed]
    folder: JobFolder
    works: dict[str, JobFolder]
    progress: Progress
    began: float

    @classmethod
    def of(
        cls,
        reference: str,
        config: GeodataConfig | None,
        operation: str,
        asked: Mapping[str, Any],
        progress: Progress,
    ) -> Edit:
        """Return the edit of the newest version of a dataset.

        ConfigError if `reference` names an older one, PolicyDenied if no record may be read here.
        """
        began = time.monotonic()
        place = locate(reference, config)
        catalog = Catalog.at(place, operation)
        index = catalog.index()
        if place.version is not None and catalog.index(place.version).version != index.version:
            raise ConfigError(
                f"{place.version} is not the newest version",
                hint=f"An edit goes on top of {index.version}: name the dataset alone",
            )
        shards, left = _readable(catalog, index, operation)
        identity = digest_of(
            {
                "operation": operation,
                "here": catalog.access.here,
                "left": sorted(placed.shard.shard_id for placed in left),
                **asked,
            }
        )
        name = f"{operation}-{identity[:12]}"
        folder = JobFolder(Path(place.root), name)
        roots = {region: catalog.store(index, region).url for region in index.regions}
        works = {region: JobFolder(Path(root), name) for region, root in roots.items()}
        return cls(
            operation, identity, catalog, index, shards, left, folder, works, progress, began
        )

    @property
    def digest(self) -> str:
        """Return the digest of all that decides the result."""
        lists = {name: entry.listing.sha256 for name, entry in self.index.regions.items()}
        return digest_of([self.identity, self.index.plan_digest, self.index.schema_, lists])

    @property
    def edited(self) -> Edited:
        """Return how shards are opened, and where files are made."""
        work = {region: str(folder.work) for region, folder in self.works.items()}
        return Edited(self.index.schema_, self.index.format, self.catalog.access, work)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the edit while the body runs, without what a killed run was making.

        An edit that fails before a shard is finished leaves nothing.
        """
        with self.folder.held():
            for folder in self.works.values():
                folder.clear_work()
            try:
                yield
            except GeodataError:
                if not any(self.folder.path.glob("*-*.json")):
                    self.forget()
                raise

    def done(self, *, repeat: bool = False) -> tuple[Index, dict[str, Any]] | None:
        """Return the version that this edit made, and its report, if it is there already.

        That is the newest version, unless the edit is to `repeat`; or the one that a killed run
        committed.
        """
        plan = self.folder.load("plan")
        found = self._landed(plan) if plan is not None else None
        if found is None and not repeat and self.index.report.get("identity") == self.identity:
            found = self.index
        if found is None:
            return None
        self.forget()
        report: dict[str, Any] = found.report["done"]
        return found, report

    def _landed(self, plan: Mapping[str, Any]) -> Index | None:
        base = Version.parse(plan["base"])
        for version in self.catalog.versions():
            if version > base and not version.revision:
                index = self.catalog.index(version)
                if index.plan_digest == plan["digest"]:
                    return index
        return None

    def plan(self) -> None:
        """Write down what is about to be done."""
        self.folder.save("plan", {"base": self.index.version, "digest": self.digest})

    def run(
        self,
        stage: str,
        executor: Executor,
        function: Callable[[Any, Any], dict[str, Any]],
        tasks: Sequence[Any],
        shared: Any,
        *,
        basis: Sequence[Any] = (),
        store: bool = True,
    ) -> list[dict[str, Any]]:
        """Run a stage, with progress by records; with `store` results are kept for a rerun.

        `basis` is what decides each result beside the identity and the schema; default: the shard
        that a task is.
        """
        total = sum(placed.shard.live for placed in _shards_in(tasks))
        self.progress.start(f"{self.operation}: {stage}", total, "records")

        def advance(result: dict[str, Any]) -> None:
            self.progress.advance(result["records"])

        if store:
            known = basis or [task.shard.to_line() for task in tasks]
            names = [digest_of([self.identity, self.index.schema_, part]) for part in known]
            results = self.folder.run(
                stage, names, executor, function, tasks, shared, advance, self._usable
            )
        else:
            results = in_order(
                executor, function, tasks, shared, lambda _task, found: advance(found)
            )
        self.progress.finish()
        return results

    def _usable(self, result: Mapping[str, Any]) -> bool:
        """Return whether the files of shards that were made by a killed run are there still."""
        made = [Shard.from_line(line) for line in result.get("shards", ())]
        return all(
            holds(self.catalog.store(self.index, shard.tag.region), ref.path)
            for shard in made
            for ref in shard.files.values()
        )

    def commit(
        self,
        added: Mapping[str, Sequence[Shard]],
        gone: Iterable[Shard],
        report: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Index:
        """Commit the edit: shards that are `gone` give way to those `added`, by region.

        The version keeps the `report`, and `more` to tell. CommitConflict if another writer changed
        one of the shards, or the schema.
        """
        change = Change(
            operation=self.operation,
            plan_digest=self.digest,
            added=added,
            removed=list(gone),
            fields=fields or {},
            report={"identity": self.identity, "done": dict(report), **(more or {})},
        )
        index = self.catalog.amend(self.index, change)
        self.forget()
        return index

    def forget(self) -> None:
        """Remove what the job kept, in every region: it is done, or nothing was to do."""
        for folder in self.works.values():
            if folder.path != self.folder.path:
                folder.remove()
        self.folder.remove()

    def added_columns(self) -> frozenset[str]:
        """Return the columns that were added, null in shards of an append until they are again."""
        shards = [placed.shard for placed in (*self.shards, *self.left)]
        files = (name for shard in shards for name in column_files(shard.files))
        return frozenset([*self.index.report.get("columns", ()), *files])

    def left_behind(self) -> dict[str, int]:
        """Return by region how many records may not be read here."""
        found: dict[str, int] = {}
        for placed in self.left:
            found[placed.region] = found.get(placed.region, 0) + placed.shard.live
        return found


def _readable(catalog: Catalog, index: Index, purpose: str) -> tuple[list[Placed], list[Placed]]:
    """Return the shards that policy lets this region read, and the others, which are logged."""
    gate, here = catalog.access.gate, catalog.access.here
    shards: list[Placed] = []
    left: list[Placed] = []
    for region in sorted(index.regions):
        root = catalog.store(index, region).url
        for shard in catalog.shards(index, region):
            move = Movement("read", shard.tag, region, here, purpose, shard.shard_id, shard.live)
            if gate.decide(move).allowed:
                shards.append(Placed(root, region, shard))
            else:
                gate.record(move)
                left.append(Placed(root, region, shard))
    if left and not shards:
        raise PolicyDenied(
            f"{here} may read none of the {index.records:,} records",
            hint="Run the same command in the region where they lie",
        )
    return shards, left


def edits_since(catalog: Catalog, index: Index, operation: str) -> list[str]:
    """Return what changed records or columns since `operation` made the dataset, oldest first.

    Each as in `drop of v000002`; a version that was removed ends the search.
    """
    found: list[str] = []
    while (made := index.report.get("operation")) != operation:
        if made in EDITS:
            found.append(f"{made} of {index.version}")
        before = index.report["of"] if made == "rollback" else index.parent
        if before is None or Version.parse(before) not in catalog.versions():
            break
        index = catalog.exactly(Version.parse(before))
    return found[::-1]


def made_by(
    tasks: Sequence[Placed], results: Sequence[Mapping[str, Any]]
) -> dict[str, list[Shard]]:
    """Return the shards that tasks made, by the region of what each was made of."""
    added: dict[str, list[Shard]] = {}
    for placed, result in zip(tasks, results, strict=True):
        shards = [Shard.from_line(line) for line in result["shards"]]
        added.setdefault(placed.region, []).extend(shards)
    return added


def _shards_in(tasks: Sequence[Any]) -> Iterator[Placed]:
    for task in tasks:
        yield from [task] if isinstance(task, Placed) else task.shards
