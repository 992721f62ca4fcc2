"""Adds a source to a staging dataset: it is converted as the dataset is, into shards of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from geodata import schema as schemas
from geodata.catalog import COMMIT_ATTEMPTS, Catalog, Change
from geodata.errors import CommitConflict, SchemaError
from geodata.executors import Executor
from geodata.jobs.base import JobFolder, Progress, digest_of
from geodata.jobs.comparing import check_same, print_shards, prints_folder, repeats_among
from geodata.jobs.conversion import Conversion, Written
from geodata.jobs.convert import REPORTED, entry_of, folder_of
from geodata.jobs.origins import fresh_part, keep_files, sources_of
from geodata.jobs.planning import Options
from geodata.jobs.target import Target
from geodata.manifest import Index, Shard
from geodata.partition.dedupe import Repeats, Stored, key_at
from geodata.schema import KEY
from geodata.sources.base import Source
from geodata.sources.options import Reading
from geodata.stores import open_store
from geodata.tags import STAGING


@dataclass(slots=True)
class SourceAppend:
    """Adds what a staging dataset has not got of the source `opened`."""

    catalog: Catalog
    opened: Source
    reading: Reading
    identity: dict[str, Any]
    options: Options
    executor: Executor
    progress: Progress
    max_errors: int | None
    root: Path = field(init=False)
    folder: JobFolder = field(init=False)
    removed: int = field(init=False, default=0)
    """Files that the dataset took and the source has no longer."""

    def __post_init__(self) -> None:
        origin = Target.of(self.catalog.index()).origin
        if self.options.provenance not in (None, origin):
            raise SchemaError(
                "the dataset does not keep where records stood",
                column=self.options.provenance,
                hint=f"It does so in '{origin}'" if origin else "Leave --provenance out",
            )
        self.options = replace(self.options, provenance=origin)
        self.root = Path(self.catalog.root)
        self.folder = folder_of("append", self.root, self.identity, self.options)

    def run(self, restart: bool) -> tuple[Index, dict[str, Any]]:
        """Convert and commit; return the version and what it tells of the source, if it is new."""
        with self.folder.held():
            return self._run(restart)

    def _run(self, restart: bool) -> tuple[Index, dict[str, Any]]:
        store = open_store(self.root, region=STAGING, access=self.catalog.access)
        less = restart
        for _attempt in range(COMMIT_ATTEMPTS):
            base = self.catalog.index()
            known = sources_of(self.catalog, base)
            source, self.removed = fresh_part(self.opened, known, store, self.reading, less)
            if source is None:
                self.folder.remove()
                return base, {}
            run = self._conversion(base, source)
            written = run.run(self.executor, self.max_errors, restart)
            restart = False
            entry = entry_of(run, written)
            if _may_meet(entry, known):
                self._check_keys(base, written.shards)
            files = keep_files(store, run.listed, self.folder.work)
            change = _change(run, base, written, [*known, {**entry, "files": files}])
            try:
                index = self.catalog.amend(base, change, partial(check_same, base))
            except CommitConflict:
                if self.catalog.index().version == base.version:
                    raise
                continue
            self.folder.remove()
            return index, entry
        raise CommitConflict("other writers were always faster", file=str(self.root))

    def _conversion(self, base: Index, source: Source) -> Conversion:
        return Conversion(
            source,
            self.options,
            self.identity,
            self.folder,
            self.root,
            self.progress,
            target=Target.of(base),
            held=(self._stored(base, (), "held"), self.catalog.shards(base, STAGING)),
        )

    def _stored(self, base: Index, columns: tuple[str, ...], stage: str) -> Stored:
        return Stored(
            root=str(self.root),
            region=STAGING,
            access=self.catalog.access,
            form=base.format,
            schema=base.schema_,
            columns=columns,
            folder=str(prints_folder(self.folder)),
            stage=stage,
        )

    def _check_keys(self, base: Index, added: Sequence[Shard]) -> None:
        """Raise SchemaError if a key of the shards to add is that of another record."""
        held = self.catalog.shards(base, STAGING)
        stored, shards = self._stored(base, (KEY,), "keys"), [*held, *added]
        prints = print_shards(self.folder, self.executor, stored, shards, self.progress)
        files = repeats_among(self.folder, self.executor, prints, len(held))
        found = Repeats(prints_folder(self.folder), files).first()
        if found is not None:
            item, row = found
            self.folder.save("failed", {})
            raise SchemaError(
                "two records have one key",
                key=key_at(stored, shards[item], row),
                hint="Keys are unique: mend the source's __key__, or choose a --source-id",
            )


def _change(
    run: Conversion, base: Index, written: Written, sources: list[dict[str, Any]]
) -> Change:
    known = {name: sources[-1][name] for name in REPORTED}
    schema = schemas.from_json(written.schema)
    return Change(
        operation="append",
        plan_digest=digest_of(["append", run.digest]),
        added={STAGING: written.shards},
        fields=Target.of(base).changes(schema, written.labels),
        report={**known, "records": base.records + written.records_out, "sources": sources},
    )


def _may_meet(entry: dict[str, Any], known: Sequence[dict[str, Any]]) -> bool:
    """Return whether a source could have keys of another: of its own, or as ids allow.

    Files of one source have names of their own, and so have the records in them.
    """
    if entry["own_keys"] or not known:
        return True
    name = entry["source_id"]
    return any(
        other.get("own_keys", True)
        or (other["source_id"] == name and other["kind"] != entry["kind"])
        or other["source_id"].startswith(f"{name}#")
        or name.startswith(f"{other['source_id']}#")
        for other in known
    )
