"""A shard whose columns lie in several files: the main one, and one for each column added later.

A column's file is a shard of the same format and the same units that holds `__key__` and the
column. A shard's files have names: `main`, `index` and `units` (the sidecar); those of a column
NAME are `columns/NAME`, `index/NAME` and `units/NAME`. A column's file goes before a column of that
name in the main file. A column of the dataset that no file of a shard holds is null there; one that
a file holds in a type that widens to the dataset's is of the wider type (see `widening`).

`open_shard` is the one way from a shard's files to its records, `as_written` from these to what the
shard's content digest was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from geodata.errors import CorruptShard
from geodata.formats.base import Format, MappedReader, ShardReader
from geodata.formats.slices import Slices
from geodata.formats.units import check_rows, select
from geodata.formats.widening import widened, widens

File = TypeVar("File")

MAIN = "main"
_COLUMNS = "columns/"


def column_part(name: str) -> str:
    """Return the name of the file that holds a column of its own."""
    return _COLUMNS + name


def column_files(files: Mapping[str, File]) -> dict[str, File]:
    """Return the files that hold a column of their own, by column."""
    found = (part for part in sorted(files) if part.startswith(_COLUMNS))
    return {part.removeprefix(_COLUMNS): files[part] for part in found}


def data_parts(files: Mapping[str, object]) -> list[str]:
    """Return the names of the files that hold records: the main one, then those of columns."""
    return [MAIN, *map(column_part, column_files(files))]


def beside(part: str, what: str) -> str:
    """Return the name of the `index` or the `units` of a file that holds records."""
    _head, slash, name = part.partition("/")
    return f"{what}{slash}{name}"


def is_sidecar(part: str) -> bool:
    """Return whether a file is a sidecar, which no reader opens."""
    return part.partition("/")[0] == "units"


def is_index(part: str) -> bool:
    """Return whether a file is an index, by which records of another are found."""
    return part.partition("/")[0] == "index"


def open_shard(form: Format, paths: Mapping[str, Path], schema: pa.Schema) -> ShardReader:
    """Open a shard by its files as records of the dataset's `schema`.

    CorruptShard where a file has other units than the main one, or a column of a type that does not
    widen to the dataset's.
    """
    opened: dict[str, ShardReader] = {}
    try:
        for part in data_parts(paths):
            opened[part] = form.open(paths[part], paths.get(beside(part, "index")))
        main, columns = opened[MAIN], column_files(opened)
        if not columns and main.schema.equals(schema):
            return main
        kind = MappedJoinedReader if isinstance(main, MappedReader) else JoinedReader
        return kind(schema, main, columns, paths[MAIN].name)
    except BaseException:
        for reader in opened.values():
            reader.close()
        raise


def held_schema(reader: ShardReader) -> pa.Schema:
    """Return the columns that a shard's files hold; the others of its schema are null."""
    if not isinstance(reader, JoinedReader):
        return reader.schema
    return select(reader.schema, list(reader.owners))


def as_written(reader: ShardReader) -> ShardReader:
    """Return the columns that a shard's files hold, of the types that these have; closed with it.

    They are in the order of the reader's schema.
    """
    if not isinstance(reader, JoinedReader):
        return reader
    return JoinedReader(reader.written, reader.main, reader.columns, reader.name)


class JoinedReader:
    """Reads a shard from several files; files without a wanted column are not touched."""

    def __init__(
        self, schema: pa.Schema, main: ShardReader, columns: Mapping[str, ShardReader], name: str
    ):
        self.schema = schema
        self.metadata: Mapping[str, str] = main.metadata
        self.num_rows = main.num_rows
        self.unit_slots: Sequence[int] = main.unit_slots
        self.main, self.columns, self.name = main, columns, name
        self.owners = {field.name: main for field in schema if field.name in main.schema.names}
        """Which file holds a column."""
        self.owners |= {column: file for column, file in columns.items() if column in schema.names}
        for file in columns.values():
            if list(file.unit_slots) != list(main.unit_slots):
                raise CorruptShard("a column has other units than its shard", shard=name)
        self.written = pa.schema([self._written(field) for field in held_schema(self)])
        """The columns that the files hold, of the types that these have there."""

    def _written(self, field: pa.Field) -> pa.Field:
        """Return a field of the schema as a file has it; CorruptShard where it does not fit."""
        held = self.owners[field.name].schema
        if field.name not in held.names:
            text = "the file of a column lacks it"
            raise CorruptShard(text, shard=self.name, column=field.name)
        found = held.field(field.name).type
        if not widens(found, field.type):
            text = f"a column is {found}, not {field.type}"
            raise CorruptShard(text, shard=self.name, column=field.name)
        return field.with_type(found)

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a unit, from the files that hold the columns."""
        schema = select(self.schema, columns)
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        count = self.unit_slots[unit]
        return self._joined(schema, count, lambda file, names: file.read_unit(unit, names))

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, from the files that hold the columns."""
        schema = select(self.schema, columns)
        count = len(check_rows(rows, self.num_rows))
        return self._joined(schema, count, lambda file, names: file.take(rows, names))

    def close(self) -> None:
        """Release all files."""
        for file in self._files:
            file.close()

    @property
    def _files(self) -> list[ShardReader]:
        return [self.main, *self.columns.values()]

    def _joined(
        self,
        schema: pa.Schema,
        count: int,
        read: Callable[[ShardReader, list[str]], pa.RecordBatch],
    ) -> pa.RecordBatch:
        arrays: dict[str, pa.Array] = {}
        for file in self._files:
            own = self._own(file, schema.names)
            if own:
                arrays.update(zip(own, read(file, own).select(own).columns, strict=True))
        made = [
            widened(arrays[field.name], field.type)
            if field.name in arrays
            else pa.nulls(count, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(made, schema=schema)

    def _own(self, file: ShardReader, names: Sequence[str]) -> list[str]:
        """Return which of these columns a file is read for."""
        return [name for name in names if self.owners.get(name) is file]


class MappedJoinedReader(JoinedReader):
    """One whose files also tell where bytes lie plain in them."""

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return where the values of a unit lie, for those of the columns that are plain."""
        found: dict[str, Slices] = {}
        for file in self._files:
            own = [name for name in self._own(file, columns) if self._is_as_written(name)]
            if own and isinstance(file, MappedReader):
                found.update(file.runs(unit, own))
        return found

    def _is_as_written(self, column: str) -> bool:
        return bool(self.written.field(column).type == self.schema.field(column).type)
