"""Documents' tokens laid end to end and cut into sequences of one length.

A sequence is a record of its own: `tokens` (a tensor of that length, so that every format and its
stock readers hold it as an array), `starts` (where in it documents begin; one that goes on from the
sequence before has no start), and `length` (how many tokens are real: padding is 0, and only in the
last sequence of a destination). Its key is that of the document its first token is of, with `@` and
the place of that token in the document. Documents without tokens leave no trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import ConfigError, SchemaError
from geodata.prepare.tokens import TOKENS, check_tokens, lengths_of
from geodata.schema import KEY, SUBJECT

Int64s = npt.NDArray[np.int64]

STARTS = "starts"
LENGTH = "length"
LEAST, MOST = 8, 1 << 24
OVERHEAD_BYTES = 256
"""Of a sequence beside its tokens, at most: key, starts, length, and what a format adds."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Sequences of `length` tokens, of the lists in `column`."""

    length: int
    column: str = TOKENS

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigError for a length out of bounds, or a column of other than lists."""
        if not LEAST <= self.length <= MOST:
            raise ConfigError(
                f"sequences of {self.length} tokens", hint=f"--pack is {LEAST} to {MOST}"
            )
        check_tokens(schema, self.column)

    @property
    def columns(self) -> list[str]:
        """Return the columns of documents that sequences are made of."""
        return [KEY, SUBJECT, self.column]

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the sequences."""
        kind = schema.field(self.column).type.value_type
        return pa.schema(
            [
                schema.field(KEY),
                schema.field(SUBJECT),
                pa.field(TOKENS, pa.fixed_shape_tensor(kind, [self.length])),
                pa.field(STARTS, pa.list_(pa.int32())),
                pa.field(LENGTH, pa.int32()),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return what decides the sequences, as plain JSON."""
        return {"length": self.length, "column": self.column}

    def tokens(self, batch: pa.RecordBatch) -> Int64s:
        """Return how many tokens each document has."""
        return lengths_of(batch.column(self.column))

    def pack(self, table: pa.Table) -> pa.Table:
        """Return the sequences of documents, in their order; SchemaError for a null token."""
        lists = table.column(self.column).combine_chunks()
        values = lists.flatten()
        if values.null_count:
            raise SchemaError("a token is null", column=self.column)
        lengths = lengths_of(lists)
        firsts = np.cumsum(lengths) - lengths
        documents = np.flatnonzero(lengths)
        begins = np.arange(-(-len(values) // self.length), dtype=np.int64) * self.length
        owner = np.searchsorted(firsts[documents], begins, side="right") - 1
        document = documents[owner]
        keys = table.column(KEY).take(pa.array(document)).to_pylist()
        offsets = (begins - firsts[document]).tolist()
        columns = [
            pa.array([f"{key}@{at}" for key, at in zip(keys, offsets, strict=True)], pa.string()),
            pa.nulls(len(begins), pa.string()),
            self._tensor(values, len(begins)),
            self._starts(firsts[documents], begins),
            pa.array(np.minimum(len(values) - begins, self.length), pa.int32()),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema(table.schema))

    def _tensor(self, values: pa.Array, count: int) -> pa.Array:
        numbers = values.to_numpy(zero_copy_only=False)
        padded = np.zeros(count * self.length, numbers.dtype)
        padded[: len(numbers)] = numbers
        kind = pa.fixed_shape_tensor(values.type, [self.length])
        stored = pa.FixedSizeListArray.from_arrays(pa.array(padded), self.length)
        return pa.ExtensionArray.from_storage(kind, stored.cast(kind.storage_type))

    def _starts(self, firsts: Int64s, begins: Int64s) -> pa.ListArray:
        """Return for each sequence where in it documents begin."""
        offsets = np.searchsorted(firsts, np.append(begins, np.iinfo(np.int64).max))
        places = pa.array(firsts % self.length, pa.int32())
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), places)
