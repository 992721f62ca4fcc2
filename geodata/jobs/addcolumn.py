"""Adds a column to a dataset: one file beside each shard, whose main file stays untouched.

Shards keep their ids and units, so the order of records is as before. Where policy keeps some
shards from this region, they are without the column, null to readers, until the same command runs
in their region: a shard that holds the column keeps it, unless it is replaced. Run again after an
append, it fills the shards in which the column is null throughout.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.config import GeodataConfig
from geodata.errors import ConfigError, PolicyDenied
from geodata.executors import Executor, get_executor
from geodata.jobs.base import Progress, Silent
from geodata.jobs.editing import Edit, made_by
from geodata.jobs.editreport import EditReport, carried_out
from geodata.jobs.newvalues import Exact
from geodata.partition.addition import (
    Addition,
    Computing,
    Joining,
    Making,
    add_to_shard,
    first_type,
    load_function,
    preview,
)
from geodata.partition.finishing import Exif
from geodata.partition.joining import Table
from geodata.policy import FREE
from geodata.prepare.typenames import parse_type
from geodata.schema import KEY, SYSTEM
from geodata.sources import open_source

OPERATION = "add-column"
TABLES = ("csv", "jsonl", "parquet")
"""Kinds of sources that can be joined."""

REPLACE = "--replace makes it anew"

MEDIA = ("image", "audio", "text")
"""Types of a column beside those of Arrow: encoded bytes and text, files of their own in tars."""


@dataclass(slots=True, kw_only=True)
class AddColumnReport(EditReport):
    """What was added, or would be: to which records, and shards, which all stay.

    `bytes_out` are those of the new files beside them. `missing` records have no row in the table
    and are null. `kept` shards had the column already; records that may not be read here are
    without it. `free` records may be read in every region, and so may what a table gave them.
    `stripped` counts images that lost what cameras add.
    """

    column: str
    type: str
    missing: int = 0
    kept: int = 0
    free: int = 0
    stripped: int = 0


def add_column(
    dataset: str,
    name: str,
    *,
    function: str | None = None,
    join: str | Path | None = None,
    on: str | None = None,
    column: str | None = None,
    type: str | None = None,
    replace: bool = False,
    exif: Exif = "auto",
    config: GeodataConfig | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> AddColumnReport:
    """Add the column `name`: made by a `function`, or looked up in the table `join`.

    `function` is `module:function`; it is given the records of a unit as a `pyarrow.RecordBatch`
    with all columns and returns as many values: an Arrow array, a list or a numpy array. Or the
    value of `column` (default: `name`) in the row of the table (CSV, JSON lines, Parquet) whose
    `on` is that of the record, in its column of that name, else its `__key__`; null without one.
    The two columns of the table are held in memory while they are sorted, then mapped. `type` is
    an Arrow type, or image, audio, text; default: that of the first values, or of the table's
    column. Images in personal data lose what cameras add unless `exif` is "keep"; all do with
    "strip". Raises ConfigError, SchemaError, PolicyDenied, CommitConflict, CorruptShard,
    StoreError.
    """
    if (function is None) == (join is None):
        raise ConfigError("give a function, or a table", hint="--function, or --join and --on")
    for option, value in ("--on", on), ("--column", column):
        if value is not None and function is not None:
            raise ConfigError.not_for(option, "--function", ["--join"])
    _check_name(name)
    given = None if type is None else field_of(name, type)
    source: _Computed | _Joined
    if function is not None:
        source = _Computed(function)
    else:
        source = _Joined(str(join), on, column or name)
    asked = {"column": name, "type": type, "replace": replace, "exif": exif, **source.identity()}
    edit = Edit.of(dataset, config, OPERATION, asked, progress or Silent())
    run = _Adding(edit, name, given, source, replace, exif, get_executor("local", workers))
    return carried_out(edit, dry_run, run.preview, run.run)


def field_of(name: str, kind: str) -> pa.Field:
    """Return the field of a type's name: one of Arrow's, or image, audio, text."""
    return schemas.media_field(name, kind) if kind in MEDIA else pa.field(name, parse_type(kind))


def _check_name(name: str) -> None:
    if not name or name in SYSTEM or (name.startswith("__") and name.endswith("__")):
        raise ConfigError(f"'{name}' is no name for a column")


class _Computed:
    """Values made by a function of the user's."""

    def __init__(self, name: str):
        self._making = Computing(name, str(Path.cwd()))
        load_function(name, self._making.folder)

    def identity(self) -> dict[str, Any]:
        """Return the function with its module's code, and that of modules beside it in use."""
        own = self._making.name.partition(":")[0]
        beside = Path(self._making.folder)
        used = {own} | {name for name, module in sys.modules.items() if _lies_in(module, beside)}
        return {"function": self._making.name, "code": {name: _code_of(name) for name in used}}

    def prepare(self, folder: Path, schema: pa.Schema) -> Making:  # noqa: ARG002
        """Return the function."""
        return self._making

    def field(self, edit: Edit, name: str) -> pa.Field:
        """Return the field of the first values that are not null."""
        for placed in edit.shards:
            kind = first_type(Exact(self._making, name), edit.edited, placed)
            if kind is not None:
                return pa.field(name, kind)
        raise ConfigError("all values are null", hint="Say the type of the column with --type")


def _lies_in(module: ModuleType | None, folder: Path) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and Path(path).parent == folder


def _code_of(module: str) -> str:
    try:
        code = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        code = ""
    return hashlib.sha256(code.encode()).hexdigest()


class _Joined:
    """Values looked up in a table."""

    def __init__(self, path: str, on: str | None, column: str):
        if on is None:
            raise ConfigError("the table needs a column of keys", hint="Name it with --on")
        self._source = open_source(path)
        if self._source.kind not in TABLES:
            raise ConfigError(f"a table is {', '.join(TABLES)}, not {self._source.kind}", file=path)
        self._on, self._column = on, column
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """Return the table, whose types are found now."""
        if self._table is None:
            self._table = Table(self._source, self._on, self._column)
        return self._table

    def identity(self) -> dict[str, Any]:
        """Return the table's files, and what is looked up."""
        files = [[file.name, file.nbytes, file.mtime_ns] for file in self._source.files]
        root = str(self._source.root.absolute())
        return {"table": root, "files": files, "on": self._on, "value": self._column}

    def prepare(self, folder: Path, schema: pa.Schema) -> Making:
        """Store the table in a folder, unless a killed run did."""
        path = folder / "sorted.arrow"
        if not path.exists():
            self.table.store(path)
        return Joining(str(path), self._on if self._on in schema.names else KEY)

    def field(self, edit: Edit, name: str) -> pa.Field:  # noqa: ARG002
        """Return the table's field under the name of the column."""
        return self.table.field.with_name(name)


@dataclass(slots=True)
class _Adding:
    edit: Edit
    name: str
    given: pa.Field | None
    source: _Computed | _Joined
    replace: bool
    exif: Exif
    executor: Executor

    def run(self) -> AddColumnReport:
        """Do what is missing, and commit."""
        edit = self.edit
        known = edit.done(repeat=self.replace)
        if known is not None:
            return AddColumnReport.again(*known)
        edit.plan()
        made = self.field()
        home = edit.works.get(edit.catalog.access.here, edit.folder)
        shared = self._exact(self._shared(made, home.path / "table"), made)
        results = edit.run(
            "write",
            self.executor,
            add_to_shard,
            edit.shards,
            shared,
            basis=[[placed.shard.to_line(), shared.schema] for placed in edit.shards],
        )
        try:
            report = self._report(made, results)
        except ConfigError:
            edit.forget()
            raise
        added = made_by(edit.shards, results)
        pairs = zip(edit.shards, results, strict=True)
        gone = [placed.shard for placed, result in pairs if result["shards"]]
        report.bytes_out = sum(result["bytes"] for result in results)
        fields = {"schema_": shared.schema, "labels": self._labels(made)}
        more = {"columns": sorted({*edit.added_columns(), self.name})}
        report.version = edit.commit(added, gone, report.to_keep(), fields, more).version
        return report

    def preview(self) -> AddColumnReport:
        """Return what a run would do; of a function, only the type is found out."""
        made = self.field()
        with tempfile.TemporaryDirectory() as folder:
            shared = self._shared(made, Path(folder))
            results = self.edit.run(
                "look", self.executor, preview, self.edit.shards, shared, store=False
            )
        return self._report(made, results)

    def field(self) -> pa.Field:
        """Return the field to be: as it is where a column is completed, else that of the values."""
        schema = schemas.from_json(self.edit.index.schema_)
        known = schema.field(self.name) if self.name in schema.names else None
        if known is not None and not self.replace:
            if self.given is not None and self.given.type != known.type:
                raise ConfigError(
                    f"the dataset has a column '{self.name}' of {known.type}", hint=REPLACE
                )
            return known
        counted = self.edit.index.report.get("counted") or {}
        if counted.get("column") == self.name:
            raise ConfigError(
                f"the tokens of column '{self.name}' are counted",
                hint="Give another name, and shard anew with --count-tokens",
            )
        found = self.given or self.source.field(self.edit, self.name)
        made = schemas.dataset_schema(pa.schema([found])).field(self.name)
        if known is None or made.type != known.type:
            if known is not None and self.edit.left:
                raise PolicyDenied(
                    f"a column can become {made.type} only in all records, and some may not be "
                    f"read in {self.edit.catalog.access.here}",
                    column=self.name,
                    hint=f"Give another name, or --type {known.type}",
                )
            return made
        return made if self.given is not None else known

    def _shared(self, made: pa.Field, folder: Path) -> Addition:
        if self.exif != "auto" and schemas.media_of(made) != "image":
            hint = None if self.given else "Declare it with --type image"
            raise ConfigError(f"--exif is for images, and the values are {made.type}", hint=hint)
        schema = schemas.from_json(self.edit.index.schema_)
        making = self.source.prepare(folder, schema)
        place = schema.get_field_index(self.name)
        after = schema.append(made) if place < 0 else schema.set(place, made)
        return Addition(
            edited=self.edit.edited,
            schema=schemas.to_json(after),
            column=self.name,
            making=making,
            replace=self.replace,
            fill=self.name in self.edit.added_columns(),
            exif=self.exif,
            labels=len(self._labels(made)[self.name]) if schemas.is_label(made) else None,
        )

    def _exact(self, shared: Addition, made: pa.Field) -> Addition:
        """Return what the tasks share with values that are of the column's type, or refused."""
        known = schemas.from_json(self.edit.index.schema_).names
        declared = self.given is not None or (self.name in known and not self.replace)
        return replace(shared, making=Exact(shared.making, self.name, made.type, declared))

    def _labels(self, made: pa.Field) -> dict[str, list[str]]:
        known = self.edit.index.labels
        if schemas.is_label(made):
            return known
        return {name: values for name, values in known.items() if name != self.name}

    def _report(self, made: pa.Field, results: Sequence[dict[str, Any]]) -> AddColumnReport:
        """Return what was done; ConfigError where that is nothing, or nothing was found."""
        edit = self.edit
        pairs = zip(edit.shards, results, strict=True)
        changed = [placed for placed, result in pairs if result["changed"]]
        report = AddColumnReport.of(
            edit,
            [(placed, placed.shard.live) for placed in changed],
            shards_out=len(changed),
            column=self.name,
            type=str(made.type),
            missing=sum(result["missing"] for result in results),
            kept=len(edit.shards) - len(changed),
            free=sum(p.shard.live for p in changed if p.shard.tag.data_category in FREE),
            stripped=sum(result.get("stripped", 0) for result in results),
        )
        if not edit.shards:
            raise ConfigError("the dataset holds no record")
        if not changed:
            raise ConfigError(f"the dataset has a column '{self.name}' already", hint=REPLACE)
        if report.missing == report.records > 0:
            raise ConfigError(
                "no record has a row in the table",
                column=self.name,
                hint="--on names a column of both, or the table's column of record keys",
            )
        return report
