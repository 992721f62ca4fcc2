"""Merges small shards, folds columns of their own into the main file, and drops tombstones.

Appends and drops leave shards far under the target size, which cost an open and a seek each. Those
of one tag, region and set of columns, all with their tokens counted or none, become shards of about
the target; a shard of at least half of it that is one file without tombstones stays as it is. Those
in which an added column is null throughout stay apart, so that it can be completed. What is in the
records stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.formats.joined import column_files, data_parts
from geodata.jobs.base import Progress, Silent
from geodata.jobs.editing import Edit, made_by
from geodata.jobs.editreport import EditReport, carried_out
from geodata.manifest import Index, Shard
from geodata.partition.opening import Placed
from geodata.partition.rewriting import Measuring, Merge, measure_shard, merge_shards
from geodata.tags import STAGING

OPERATION = "compact"
SHARD_BYTES = 256 << 20
STAGING_BYTES = 64 << 20
MAX_SHARD_BYTES = 1 << 30


@dataclass(slots=True, kw_only=True)
class CompactReport(EditReport):
    """What was merged, or would be: the shards that give way, and all their records."""


def compact(
    dataset: str,
    *,
    shard_size: int | None = None,
    config: GeodataConfig | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CompactReport:
    """Merge shards far under `shard_size` (default: that of `convert`, or of `shard`).

    Records of a merged shard of a classified dataset are in the order of their keys' hashes, those
    of staging in the order of the shards. Raises ConfigError, PolicyDenied, CommitConflict,
    CorruptShard, StoreError.
    """
    if shard_size is not None and not 0 < shard_size <= MAX_SHARD_BYTES:
        raise ConfigError(f"shards of {shard_size} bytes", hint="--shard-size is at most 1GiB")
    asked = {"shard_size": shard_size}
    edit = Edit.of(dataset, config, OPERATION, asked, progress or Silent())
    run = _Compact(edit, shard_size or _usual(edit.index), workers)
    return carried_out(edit, dry_run, lambda: run.summary(run.merges(store=False)), run.run)


def _usual(index: Index) -> int:
    return STAGING_BYTES if set(index.regions) == {STAGING} else SHARD_BYTES


@dataclass(slots=True)
class _Compact:
    edit: Edit
    target: int
    workers: int | None

    def run(self) -> CompactReport:
        """Do what is missing, and commit."""
        edit = self.edit
        known = edit.done()
        if known is not None:
            return CompactReport.again(*known)
        edit.plan()
        merges = self.merges(store=True)
        report = self.summary(merges)
        if not merges:
            edit.forget()
            report.unchanged = True
            return report
        basis = [[placed.shard.to_line() for placed in merge.shards] for merge in merges]
        results = edit.run(
            "write", self._executor(), merge_shards, merges, edit.edited, basis=basis
        )
        added = made_by([merge.shards[0] for merge in merges], results)
        made = [shard for shards in added.values() for shard in shards]
        report.shards_out, report.bytes_out = len(made), sum(shard.nbytes for shard in made)
        gone = [placed.shard for merge in merges for placed in merge.shards]
        report.version = edit.commit(added, gone, report.to_keep()).version
        return report

    def merges(self, *, store: bool) -> list[Merge]:
        """Return which shards are to be one, measured by the bytes by which shards are cut."""
        asked = [placed for placed in self.edit.shards if self._may_grow(placed.shard)]
        shared = Measuring(self.edit.edited, self.edit.added_columns())
        found = self.edit.run("survey", self._executor(), measure_shard, asked, shared, store=store)
        groups: dict[str, list[tuple[Placed, int]]] = {}
        for placed, measured in zip(asked, found, strict=True):
            held = measured["counted"], measured["columns"], measured["unfilled"]
            group = (placed.region, placed.shard.tag.digest, *held)
            groups.setdefault(json.dumps(group), []).append((placed, measured["planned"]))
        packed = (run for _key, group in sorted(groups.items()) for run in self._packed(group))
        return [Merge(tuple(run), len(run) > 1 and run[0].region != STAGING) for run in packed]

    def _may_grow(self, shard: Shard) -> bool:
        """Return whether a shard's file is small, or one that is written anew anyhow."""
        nbytes = sum(shard.files[part].nbytes for part in data_parts(shard.files))
        return 2 * nbytes < self.target or _is_loose(shard)

    def _packed(self, group: Sequence[tuple[Placed, int]]) -> Iterator[list[Placed]]:
        """Yield runs of shards that fit the target together, in their order; each is one to be."""
        run: list[Placed] = []
        held = 0
        for placed, planned in group:
            if 2 * planned >= self.target:
                if _is_loose(placed.shard):
                    yield [placed]
                continue
            if run and held + planned > self.target:
                yield from _worthwhile(run)
                run, held = [], 0
            run.append(placed)
            held += planned
        yield from _worthwhile(run)

    def summary(self, merges: Sequence[Merge]) -> CompactReport:
        """Return what merging does."""
        about = [(placed, placed.shard.live) for merge in merges for placed in merge.shards]
        return CompactReport.of(self.edit, about, shards_out=len(merges))

    def _executor(self) -> Executor:
        return get_executor("local", self.workers)


def _is_loose(shard: Shard) -> bool:
    """Return whether a shard has columns in files of their own, or tombstones."""
    return bool(column_files(shard.files)) or shard.live < sum(shard.slots)


def _worthwhile(run: list[Placed]) -> Iterator[list[Placed]]:
    if len(run) > 1 or (run and _is_loose(run[0].shard)):
        yield run
