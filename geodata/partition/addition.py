"""Writes the file of a new column beside each shard; each call of `add_to_shard` is one task.

The values come from a function of the user's, or from a table that records are joined with.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from geodata import schema as schemas
from geodata.canonical import ContentHasher
from geodata.durable import storing
from geodata.errors import ConfigError, GeodataError, SchemaError
from geodata.formats import ShardReader, unit_bytes_for
from geodata.formats.joined import as_written, held_schema
from geodata.formats.slices import spread
from geodata.partition.cutter import metadata_of
from geodata.partition.finishing import Exif, strips, without_extras
from geodata.partition.joining import Lookup, as_text
from geodata.partition.opening import Edited, Placed
from geodata.partition.sealing import Sealed, seal_column
from geodata.schema import KEY

Values = Callable[[pa.RecordBatch, str], tuple[Any, int]]
"""From the records of a unit, and their shard's id: the values, and how many were not found."""


class Making(Protocol):
    """Where the values of a new column come from; small and picklable."""

    def opened(self) -> Values:
        """Return what makes them, opened in the process that uses it."""


@dataclass(frozen=True, slots=True)
class Computing:
    """A function `module:function` of record batch → array, list or numpy array of equal length."""

    name: str
    folder: str
    """From which the module is imported, beside what is installed."""

    def opened(self) -> Values:
        """Import the function."""
        function = load_function(self.name, self.folder)

        def values(batch: pa.RecordBatch, shard: str) -> tuple[Any, int]:
            try:
                return function(batch), 0
            except (Exception, SystemExit) as error:
                raise GeodataError(
                    f"{self.name} raised {type(error).__name__}{_line_of(error, function)}",
                    shard=shard,
                    key=_first_failing(function, batch),
                    hint="Mend it and run the same command again",
                ) from error

        return values


@dataclass(frozen=True, slots=True)
class Joining:
    """The value of the row of a stored table whose key is that of the record in column `on`."""

    path: str
    on: str

    def opened(self) -> Values:
        """Map the table."""
        lookup = Lookup(Path(self.path))

        def values(batch: pa.RecordBatch, _shard: str) -> tuple[Any, int]:
            places = lookup.find(as_text(batch.column(self.on), self.on))
            return lookup.values.take(places), places.null_count

        return values


@dataclass(frozen=True, slots=True)
class Addition:
    """What the tasks share; `schema` is that of the version to be, `column` the one added.

    A shard that holds the column keeps it unless `replace`; with `fill` only if it has a value.
    Values that are numbers of labels lie below `labels`.
    """

    edited: Edited
    schema: dict[str, Any]
    column: str
    making: Making
    replace: bool
    fill: bool
    exif: Exif = "auto"
    labels: int | None = None

    def keeps(self, reader: ShardReader) -> bool:
        """Return whether a shard keeps the column that it holds."""
        if self.replace or self.column not in held_schema(reader).names:
            return False
        if not self.fill:
            return True
        units = range(len(reader.unit_slots))
        values = (reader.read_unit(unit, [self.column]).column(0) for unit in units)
        return any(found.null_count < len(found) for found in values)


def add_to_shard(shared: Addition, placed: Placed) -> dict[str, Any]:
    """Write a shard's file of the column; return its new line, none where it keeps its own."""
    edited, shard = shared.edited, placed.shard
    done: dict[str, Any] = {
        "records": shard.live,
        "changed": False,
        "shards": [],
        "missing": 0,
        "stripped": 0,
        "bytes": 0,
    }
    with edited.opened(placed) as reader:
        if shared.keeps(reader):
            return done
        sealed = _written(shared, placed, reader, done)
    made = sealed.deliver(edited.store(placed))
    refs = [made.files[part] for part in sealed.paths]
    nbytes = sum(ref.nbytes for ref in refs)
    return {**done, "changed": True, "shards": [made.to_line()], "bytes": nbytes}


def preview(shared: Addition, placed: Placed) -> dict[str, Any]:
    """Return what `add_to_shard` would find, writing nothing: a function is not called."""
    done: dict[str, Any] = {"records": placed.shard.live, "missing": 0, "changed": True}
    making = shared.making
    with shared.edited.opened(placed, check=False) as reader:
        if shared.keeps(reader):
            return {**done, "changed": False}
        if isinstance(making, Joining):
            values = making.opened()
            for unit in range(len(reader.unit_slots)):
                batch = _live(reader.read_unit(unit, list(dict.fromkeys([KEY, making.on]))))
                done["missing"] += values(batch, placed.shard.shard_id)[1]
    return done


def _written(shared: Addition, placed: Placed, reader: ShardReader, done: dict[str, Any]) -> Sealed:
    """Return the shard with its new column, whose file lies in the work folder; count in `done`."""
    edited, shard, name = shared.edited, placed.shard, shared.column
    whole = schemas.from_json(shared.schema)
    field = whole.field(name)
    own = pa.schema([whole.field(KEY), field])
    content = _Content(reader, whole, field, shard.content_digest)
    path = Path(edited.work[placed.region]) / f"column-{shard.shard_id}{edited.format.suffix}"
    values, strip = shared.making.opened(), strips(shared.exif, shard.tag)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = edited.format.create(
            path,
            own,
            unit_bytes=unit_bytes_for(own),
            metadata=metadata_of(shard.tag),
            unit_slots=reader.unit_slots,
        )
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit)
            made, missing = _values(values, batch, field, shard.shard_id)
            done["missing"] += missing
            _check_labels(made, shared.labels, shard.shard_id, name)
            column = pa.RecordBatch.from_arrays([batch.column(KEY), made], schema=own)
            if strip:
                column, count = without_extras(column, "Leave them with --exif keep")
                done["stripped"] += count
            content.add(unit, batch, column.column(1))
            writer.write(column)
        writer.close()
    return seal_column(edited.format, path, shard, name, content.hexdigest())


class _Content:
    """The digest of what a shard's files hold, each column as it is there, and of one added."""

    def __init__(self, reader: ShardReader, whole: pa.Schema, added: pa.Field, like: str):
        self._written, self._added = as_written(reader), added.name
        kept = [field for field in self._written.schema if field.name != added.name]
        self._narrow = [f.name for f in kept if f.type != reader.schema.field(f.name).type]
        types = {field.name: field.type for field in [*kept, added]}
        held = [field for field in whole if field.name in types]
        self._schema = pa.schema([field.with_type(types[field.name]) for field in held])
        self._hasher = ContentHasher(self._schema, like)

    def add(self, unit: int, batch: pa.RecordBatch, values: pa.Array) -> None:
        """Take a unit's rows, which were read as those of the dataset, and their new values."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        if self._narrow:
            narrow = self._written.read_unit(unit, self._narrow)
            arrays |= dict(zip(narrow.schema.names, narrow.columns, strict=True))
        arrays[self._added] = values
        columns = [arrays[name] for name in self._schema.names]
        self._hasher.update(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def hexdigest(self) -> str:
        """Return the digest of all that was taken."""
        return self._hasher.hexdigest()


def _check_labels(values: pa.Array, labels: int | None, shard: str, name: str) -> None:
    """Raise SchemaError for a number that is none of a label."""
    if labels is None or values.null_count == len(values):
        return
    least, most = (value.as_py() for value in pc.min_max(values).values())
    if least < 0 or most >= labels:
        raise SchemaError(
            f"the column holds numbers of {labels} labels, 0 to {labels - 1}",
            shard=shard,
            column=name,
            hint=f"For numbers that are no labels give their type: --type {values.type}",
        )


def _values(
    values: Values, batch: pa.RecordBatch, field: pa.Field, shard: str
) -> tuple[pa.Array, int]:
    """Return the values of a unit's records, null in tombstones, and how many were not found."""
    live = batch.column(KEY).is_valid().to_numpy(zero_copy_only=False)
    records = _live(batch)
    if records.num_rows == 0:
        return pa.nulls(batch.num_rows, field.type), 0
    found, missing = values(records, shard)
    return (found if live.all() else spread(found, live)), missing


def first_type(making: Making, edited: Edited, placed: Placed) -> pa.DataType | None:
    """Return the type of the values that are made first for a shard; None if all are null."""
    values = making.opened()
    with edited.opened(placed, check=False) as reader:
        for unit in range(len(reader.unit_slots)):
            records = _live(reader.read_unit(unit))
            if records.num_rows:
                found, _missing = values(records, placed.shard.shard_id)
                if found.null_count < len(found):
                    return found.type
    return None


def load_function(name: str, folder: str) -> Callable[[pa.RecordBatch], Any]:
    """Import `module:function` with `folder` on the path; ConfigError if there is none."""
    module, _, attribute = name.partition(":")
    if not module or not attribute.isidentifier():
        raise ConfigError(f"'{name}' is no function", hint="Write it as module:function")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"'{module}' cannot be imported: {type(error).__name__}: {error}",
            hint="It is looked for in the working directory and among installed packages",
        ) from error
    if not callable(found):
        raise ConfigError(f"'{module}' has no function '{attribute}'")
    function: Callable[[pa.RecordBatch], Any] = found
    return function


def _first_failing(function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch) -> str | None:
    """Return the key of the first record for which a function fails, found by halving."""
    while batch.num_rows > 1:
        half = batch.slice(0, batch.num_rows // 2)
        batch = half if _fails(function, half) else batch.slice(half.num_rows)
    key: str | None = batch.column(KEY)[0].as_py()
    return key if _fails(function, batch) else None


def _fails(function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch) -> bool:
    try:
        function(batch)
    except (Exception, SystemExit):
        return True
    return False


def _line_of(error: BaseException, function: Callable[[pa.RecordBatch], Any]) -> str:
    """Return the last line of the function's own file that an error passed."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if code and frame.filename == code.co_filename]
    return f" in {Path(code.co_filename).name}, line {lines[-1]}" if code and lines else ""


def _live(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = batch.column(KEY)
    return batch.filter(keys.is_valid()) if keys.null_count else batch
