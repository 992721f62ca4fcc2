"""Leaves records out of the next version: survey, write the shards that hold some anew, commit.

This is an edit, no erasure: older versions hold the records still, until `gc` removes their shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.config import Condition, GeodataConfig
from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.jobs.base import Progress, Silent, digest_of
from geodata.jobs.editing import Edit, made_by
from geodata.jobs.editreport import EditReport, carried_out
from geodata.partition.opening import Placed
from geodata.partition.rewriting import Choice, Dropping, choose_rows, drop_rows
from geodata.tagging import holds

OPERATION = "drop"
NAMED = 20
"""Most keys that a report names."""


@dataclass(slots=True, kw_only=True)
class DropReport(EditReport):
    """What a drop did, or would do: the records dropped, of which shards.

    `emptied` of those shards had no other record. `missing` names some of the keys that were not
    found, `missing_keys` counts them.
    """

    emptied: int = 0
    missing_keys: int = 0
    missing: list[str] = field(default_factory=list)

    def to_keep(self) -> dict[str, Any]:
        """Return what the version keeps: not the keys that were not found."""
        return {k: v for k, v in asdict(self).items() if k != "missing"}


def drop(
    dataset: str,
    *,
    keys: Sequence[str] = (),
    where: Condition | None = None,
    config: GeodataConfig | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> DropReport:
    """Drop the records with the `keys`, or those for which `where` holds.

    Only shards that hold some are written anew, with the same tag and in the same order. Raises
    ConfigError, PolicyDenied, CommitConflict, CorruptShard, StoreError.
    """
    if bool(keys) == (where is not None):
        raise ConfigError("give keys, or a condition", hint="--key, --keys FILE or --where")
    wanted = sorted(set(keys))
    if bad := [key for key in wanted if not _is_text(key)]:
        raise ConfigError(f"a key is no text: {bad[0]!a}", hint="Keys are UTF-8")
    asked = {
        "keys": digest_of(wanted) if wanted else None,
        "where": where.model_dump(by_alias=True, exclude_none=True) if where else None,
    }
    edit = Edit.of(dataset, config, OPERATION, asked, progress or Silent())
    choice = Choice(pa.array(wanted, pa.string()) if wanted else None, where)
    _check_condition(edit, choice)
    run = _Drop(edit, choice, wanted, workers)
    return carried_out(edit, dry_run, lambda: run.survey(store=False)[0], run.run)


def read_keys(path: Path) -> list[str]:
    """Return the keys of a file, one a line; ConfigError if there is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not UTF-8"
        raise ConfigError(f"the keys cannot be read: {why}", file=str(path)) from error
    keys = [line.removesuffix("\r") for line in lines]
    found = [key for key in keys if key]
    if not found:
        raise ConfigError("the file holds no key", file=str(path), hint="One a line")
    return found


def _is_text(key: str) -> bool:
    """Return whether a key has no bytes of an argument that are not UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in key)


def _check_condition(edit: Edit, choice: Choice) -> None:
    """Raise ConfigError for a condition that no record of the dataset can be asked."""
    if choice.where is not None:
        schema = schemas.from_json(edit.index.schema_)
        nothing = [pa.nulls(0, each.type) for each in schema]
        holds(choice.where, pa.RecordBatch.from_arrays(nothing, schema=schema))


@dataclass(slots=True)
class _Drop:
    edit: Edit
    choice: Choice
    keys: list[str]
    workers: int | None

    def run(self) -> DropReport:
        """Do what is missing, and commit."""
        edit = self.edit
        known = edit.done()
        if known is not None:
            return DropReport.again(*known)
        edit.plan()
        report, affected = self.survey(store=True)
        if not affected:
            edit.forget()
            report.unchanged = True
            return report
        results = edit.run("write", self._executor(), drop_rows, affected, self._shared())
        added = made_by(affected, results)
        report.bytes_out = sum(shard.nbytes for made in added.values() for shard in made)
        gone = [placed.shard for placed in affected]
        report.version = edit.commit(added, gone, report.to_keep()).version
        return report

    def survey(self, *, store: bool) -> tuple[DropReport, list[Placed]]:
        """Return what is to be dropped, and the shards that hold it."""
        edit = self.edit
        results = edit.run(
            "survey", self._executor(), choose_rows, edit.shards, self._shared(), store=store
        )
        found = {number for result in results for number in result["keys"]}
        missing = [key for number, key in enumerate(self.keys) if number not in found]
        pairs = [(p, r["chosen"]) for p, r in zip(edit.shards, results, strict=True) if r["chosen"]]
        emptied = sum(chosen == placed.shard.live for placed, chosen in pairs)
        report = DropReport.of(
            edit,
            pairs,
            shards_out=len(pairs) - emptied,
            emptied=emptied,
            missing_keys=len(missing),
            missing=missing[:NAMED],
        )
        return report, [placed for placed, _chosen in pairs]

    def _shared(self) -> Dropping:
        return Dropping(self.edit.edited, self.choice)

    def _executor(self) -> Executor:
        return get_executor("local", self.workers)
