"""The values of a new column, as a function or a table gives them: of one type, none changed.

A type that the user declares takes what is the same in it, as `--schema` does; one that was found
in the first values takes what it holds without loss. Anything else names both types and the record.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import SchemaError
from geodata.partition.addition import Making, Values
from geodata.prepare.columns import Changed, check_becomes, exactly
from geodata.schema import KEY
from geodata.sources.batches import Unfit
from geodata.sources.unite import conform

_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)
_MISFITS = (*_FAILURES, Changed, Unfit)
_HINT = "Say the type of the column with --type"


@dataclass(frozen=True, slots=True)
class Exact:
    """Values as `making` gives them, of a type that all of them have: `kind`, if it is known."""

    making: Making
    column: str
    kind: pa.DataType | None = None
    declared: bool = False

    def opened(self) -> Values:
        """Return what makes them, opened in the process that uses it."""
        values = self.making.opened()

        def exact(batch: pa.RecordBatch, shard: str) -> tuple[pa.Array, int]:
            try:
                made, missing = values(batch, shard)
            except pa.ArrowInvalid as error:  # of a table, whose offsets overflow
                raise _too_large(shard, self.column) from error
            given = NewValues.of(made, batch.column(KEY), shard, self.column)
            if self.kind is None:
                return given.found(), missing
            return given.held(self.kind, declared=self.declared), missing

        return exact


@dataclass(frozen=True, slots=True)
class NewValues:
    """Values made for the records of a unit, whose keys are those of their shard."""

    values: Sequence[Any]
    keys: pa.Array
    shard: str
    column: str | None = None

    @classmethod
    def of(cls, made: Any, keys: pa.Array, shard: str, column: str | None = None) -> NewValues:
        """Take what was made; SchemaError if it is not one value for each record."""
        if isinstance(made, pa.ChunkedArray):
            made = _whole(made, shard, column)
        if not hasattr(made, "__len__") or isinstance(made, (str, bytes, dict)):
            text = f"{type(made).__name__} is no list or array of values"
            raise SchemaError(text, shard=shard, column=column)
        if len(made) != len(keys):
            text = f"{len(made)} values for {len(keys)} records"
            raise SchemaError(text, shard=shard, column=column)
        return cls(made, keys, shard, column)

    def found(self) -> pa.Array:
        """Return them as an array of a type of their own; SchemaError if they have none."""
        try:
            return _arrow(self.values)
        except SchemaError as error:
            raise self._named(error) from error
        except _FAILURES as error:
            row = bisect_left(range(len(self.keys)), True, key=lambda n: self._differ(n + 1))
            before = _type(self.values[:row])
            raise self._misfit(before, row) from error

    def held(self, kind: pa.DataType, *, declared: bool) -> pa.Array:
        """Return them as an array of `kind`; SchemaError for the first that would be another."""
        try:
            return _held(self.values, kind, declared)
        except SchemaError as error:
            raise self._named(error) from error
        except _MISFITS as error:
            parts = []
            for row in range(len(self.keys)):  # each has a type of its own
                try:
                    parts.append(_held(self.values[row : row + 1], kind, declared))
                except (*_MISFITS, SchemaError):
                    raise self._misfit(str(kind), row) from error
            return pa.concat_arrays(parts)

    def _named(self, error: SchemaError) -> SchemaError:
        fields = {"shard": self.shard, "column": self.column}
        return SchemaError(error.message, hint=error.hint, **fields)

    def _differ(self, count: int) -> bool:
        """Return whether the first `count` have no type in common."""
        try:
            _arrow(self.values[:count])
        except _FAILURES:
            return True
        return False

    def _misfit(self, kind: str, row: int) -> SchemaError:
        return SchemaError(
            f"the column is {kind}, which cannot hold this record's {_type([self.values[row]])}",
            shard=self.shard,
            key=self.keys[row].as_py(),
            column=self.column,
            hint=_HINT,
        )


def _too_large(shard: str | None = None, column: str | None = None) -> SchemaError:
    """Return the error of values whose offsets 32 bits do not hold."""
    return SchemaError(
        "the values of the records of one unit take 2 GiB or more",
        shard=shard,
        column=column,
        hint="Put them into the source: units are cut by the bytes of their records",
    )


def _whole(chunked: pa.ChunkedArray, shard: str, column: str | None) -> pa.Array:
    try:
        return chunked.combine_chunks()
    except pa.ArrowInvalid as error:
        raise _too_large(shard, column) from error


def _arrow(values: Sequence[Any]) -> pa.Array:
    """Return values as an array of the type that they share."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        values = list(values)
    try:
        array = values if isinstance(values, pa.Array) else pa.array(values)
    except OverflowError:
        array = pa.array(values, pa.uint64())
    if isinstance(array, pa.ChunkedArray):
        raise _too_large()
    if pa.types.is_date(array.type) and any(isinstance(v, dt.datetime) for v in values):
        raise TypeError("an instant among dates")
    kind = schemas.plain_type(array.type, "")
    return array if array.type == kind else array.cast(kind)


def _held(values: Sequence[Any], kind: pa.DataType, declared: bool) -> pa.Array:
    if isinstance(values, pa.Array) and values.type == kind:
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_held(values, kind.storage_type, True))
    if pa.types.is_map(kind) and not isinstance(values, pa.Array):
        return pa.array(values, kind)
    array = _arrow(values)
    if not declared:
        return conform(array, kind, "")
    check_becomes(array.type, kind, "")
    return exactly(array, kind)


def _type(values: Sequence[Any]) -> str:
    """Return the name of the type of values: Arrow's, or Python's where it has none."""
    try:
        return str(_arrow(values).type)
    except (*_FAILURES, SchemaError):
        return type(values[0]).__name__
