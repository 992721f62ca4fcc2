"""A table of two columns, key and value, that records are joined with.

It is stored as Arrow IPC in the order of the keys' hashes and mapped by each process that looks
things up, so that it is in memory once however many do. Making it holds both columns in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata import schema as schemas
from geodata.durable import replacing
from geodata.errors import ConfigError, SchemaError
from geodata.order import hash_keys
from geodata.sources.base import Reject, Source, first_rows

Int64s = npt.NDArray[np.int64]

PIECE_BYTES = 8 << 20
_HASH, _KEY, _VALUE, _PLACE = "hash", "key", "value", "place"


class Table:
    """The columns of a raw table that a join needs: `on` holds keys, `value` what is looked up."""

    def __init__(self, source: Source, on: str, value: str):
        self._source, self._on, self._value = source, on, value
        self._pieces = source.pieces(PIECE_BYTES)
        self._scans = [source.scan(piece) for piece in self._pieces]
        self._schema = schemas.dataset_schema(source.merge(self._scans))
        for name in (on, value):
            if name not in self._schema.names:
                known = ", ".join(n for n in self._schema.names if n not in schemas.SYSTEM)
                raise ConfigError(
                    f"the table has no column '{name}'",
                    file=str(source.root),
                    hint=f"It has {known}",
                )

    @property
    def field(self) -> pa.Field:
        """Return the field that is looked up."""
        return self._schema.field(self._value)

    def store(self, path: Path) -> None:
        """Write the table, sorted; SchemaError where two rows have one key."""
        table = pa.Table.from_batches(self._rows(), self._stored())
        hashes = pa.array(hash_keys(table.column(_KEY).to_pylist(), "join"), pa.uint64())
        order = pa.table({_HASH: hashes, _KEY: table.column(_KEY)})
        places = pc.sort_indices(order, [(_HASH, "ascending"), (_KEY, "ascending")])
        try:
            table = table.append_column(_HASH, hashes).take(places)
            stored = _whole(table.drop_columns([_PLACE]))
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"column '{self._value}' of the table has more than 2 GiB",
                file=str(self._source.root),
                hint="Join a part at a time",
            ) from error
        _check_keys(table)
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), stored.schema) as file:
            file.write_batch(stored)

    def _stored(self) -> pa.Schema:
        place = schemas.origin_field(_PLACE).type
        return pa.schema([(_KEY, pa.large_string()), (_VALUE, self.field.type), (_PLACE, place)])

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield key, value and place in the table; a row without a key matches nothing."""
        place = "origin"
        while place in self._schema.names:
            place += "_"
        read = self._schema.append(schemas.origin_field(place))
        for piece, first in zip(self._pieces, first_rows(self._scans), strict=True):
            for batch in self._source.read(piece, first, read, {}, _refuse):
                keys = as_text(batch.column(self._on), self._on)
                columns = [keys, batch.column(self._value), batch.column(place)]
                made = pa.RecordBatch.from_arrays(columns, schema=self._stored())
                yield made.filter(keys.is_valid())


def _refuse(bad: Reject) -> None:
    raise SchemaError(f"a row of the table: {bad.reason}", file=bad.file, row=bad.row)


def _check_keys(table: pa.Table) -> None:
    """Raise SchemaError if two neighbours of a sorted table have one key."""
    keys = table.column(_KEY)
    twice = pc.equal(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1))
    if not pc.any(twice).as_py():
        return
    at = pc.index(twice, True).as_py()
    first, second = (table.column(_PLACE)[place].as_py() or {} for place in (at, at + 1))
    elsewhere = "" if first.get("file") == second.get("file") else f" of {second['file']}"
    rows = f": row {first.get('row')} and row {second.get('row')}{elsewhere}" if first else ""
    raise SchemaError(
        f"two rows of the table have one key{rows}",
        file=first.get("file"),
        key=keys[at].as_py(),
        hint="A key stands in one row",
    )


def _whole(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch; ArrowInvalid if a column needs more than one."""
    batches = table.combine_chunks().to_batches() if len(table) else [_empty(table.schema)]
    if len(batches) > 1:
        raise pa.ArrowInvalid("offsets of 32 bits do not reach so far")
    return batches[0]


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def as_text(array: pa.Array, name: str) -> pa.Array:
    """Return a column of keys as text; ConfigError for a type that cannot be one."""
    kind = array.type
    if pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string(), pa.bool_()):
        return array.cast(pa.large_string())
    raise ConfigError(f"{name} is {kind}; records are joined on text or whole numbers")


class Lookup:
    """A stored table, mapped."""

    def __init__(self, path: Path):
        with pa.memory_map(str(path)) as file:
            stored = pa.ipc.open_file(file).get_batch(0)
        self._hashes = stored.column(_HASH).to_numpy()
        self._keys = stored.column(_KEY)
        self.values: pa.Array = stored.column(_VALUE)

    def find(self, keys: pa.Array) -> pa.Array:
        """Return for each key, as text, the place of its value, null where there is none."""
        hashes = hash_keys(keys.to_pylist(), "join")
        start = np.searchsorted(self._hashes, hashes, "left")
        stop = np.searchsorted(self._hashes, hashes, "right")
        found = np.full(len(keys), -1, np.int64)
        for step in range(int((stop - start).max(initial=0))):
            rows = np.flatnonzero(start + step < stop)
            places = start[rows] + step
            same = pc.equal(self._keys.take(pa.array(places)), keys.take(pa.array(rows)))
            equal = same.fill_null(False).to_numpy(zero_copy_only=False)
            found[rows[equal]] = places[equal]
        return pa.array(found, mask=found < 0)
