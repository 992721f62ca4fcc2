"""Writes shards anew without some of their rows, or several as one; each function is one task.

Rows keep their order, and a shard its tag. Columns that lie in files of their own go into the main
file of what is written; tombstones, which are no records, go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.catalog import read_units
from geodata.config import Condition
from geodata.errors import CorruptShard
from geodata.formats import ShardReader
from geodata.formats.joined import held_schema
from geodata.order import hash_keys
from geodata.partition.cutter import ShardCutter
from geodata.partition.opening import Edited, Placed
from geodata.partition.sealing import with_tokens
from geodata.schema import KEY
from geodata.tagging import holds

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

_UNBOUNDED = 1 << 62
"""Bytes of a shard that is to be one."""

_BATCH_ROWS = 1 << 16
_HASH = "__hash__"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which records are meant: those with the `keys`, sorted, or those for which `where` holds."""

    keys: pa.Array | None = None
    where: Condition | None = None

    def columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns that decide."""
        name = KEY if self.where is None or self.where.field is None else self.where.field
        return list(dict.fromkeys([KEY, name if name in schema.names else name.partition(".")[0]]))

    def rows(self, reader: ShardReader) -> tuple[Bools, list[int]]:
        """Return which rows of a shard are meant, and the numbers of the keys found there."""
        names, keys = self.columns(reader.schema), []
        meant = [np.zeros(0, np.bool_)]
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit, names)
            if self.where is None:
                keys.append(batch.column(KEY))
            else:
                meant.append(holds(self.where, batch) & _valid(batch.column(KEY)))
        if self.where is not None:
            return np.concatenate(meant), []
        column = pa.chunked_array(keys, pa.string())
        found = pc.index_in(column, value_set=self.keys).combine_chunks()
        return _valid(found), found.drop_null().to_pylist()


@dataclass(frozen=True, slots=True)
class Dropping:
    """What the tasks of a drop share."""

    edited: Edited
    choice: Choice


def choose_rows(shared: Dropping, placed: Placed) -> dict[str, Any]:
    """Return how many records of a shard are meant, and the numbers of the keys it holds."""
    with shared.edited.opened(placed, check=False) as reader:
        rows, keys = shared.choice.rows(reader)
    return {"records": placed.shard.live, "chosen": int(rows.sum()), "keys": keys}


def drop_rows(shared: Dropping, placed: Placed) -> dict[str, Any]:
    """Write a shard without the records that are meant; none where all of them are."""
    shard, edited = placed.shard, shared.edited
    with edited.opened(placed, check=False) as reader:
        schema = held_schema(reader)
        gone, _keys = shared.choice.rows(reader)
    cutter = _cutter(edited, placed, schema, shard.summary)
    counts = []
    for batch, tokens in _records(edited, placed, schema, gone):
        cutter.write(batch)
        counts.append(tokens)
    return _delivered(edited, placed, cutter, shard.live - int(gone.sum()), _joined(counts))


@dataclass(frozen=True, slots=True)
class Measuring:
    """What the tasks that measure shards share; `added` are the columns that were added."""

    edited: Edited
    added: frozenset[str]


def measure_shard(shared: Measuring, placed: Placed) -> dict[str, Any]:
    """Return the bytes that a shard's records take in shards' terms, and what the shard holds.

    Of added columns those that are null throughout are `unfilled`.
    """
    edited = shared.edited
    planned, counted = 0, bool(_tokens(edited, placed).size)
    with edited.opened(placed, check=False) as reader:
        schema = held_schema(reader)
        unfilled = shared.added.intersection(schema.names)
        for batch in _units(reader, schema):
            living = _living(batch)
            planned += int(edited.format.row_nbytes(living).sum())
            unfilled = frozenset(
                name for name in unfilled if living.column(name).null_count == len(living)
            )
    held = {"columns": schema.names, "unfilled": sorted(unfilled), "counted": counted}
    return {"records": placed.shard.live, "planned": planned, **held}


@dataclass(frozen=True, slots=True)
class Merge:
    """Shards that are to be one: of one tag, the same columns, all with tokens counted or none.

    `shuffled` puts the records in the order of their keys' hashes, as `shard` does.
    """

    shards: tuple[Placed, ...]
    shuffled: bool


def merge_shards(edited: Edited, merge: Merge) -> dict[str, Any]:
    """Write several shards as one; where the order is that of hashes, all are held in memory."""
    first = merge.shards[0]
    with edited.opened(first, check=False) as reader:
        schema = held_schema(reader)
    summary = _common([placed.shard.summary for placed in merge.shards])
    cutter = _cutter(edited, first, schema, summary)
    counts: list[Int64s] = []

    def records() -> Iterator[pa.RecordBatch]:
        for placed in merge.shards:
            for batch, tokens in _records(edited, placed, schema):
                counts.append(tokens)
                yield batch

    live = sum(placed.shard.live for placed in merge.shards)
    if not merge.shuffled:
        for batch in records():
            cutter.write(batch)
        return _delivered(edited, first, cutter, live, _joined(counts))
    table = pa.Table.from_batches(records(), schema)
    order = _hash_order(table.column(KEY))
    for batch in table.take(pa.array(order)).to_batches(max_chunksize=_BATCH_ROWS):
        cutter.write(batch)
    whole = _joined(counts)
    return _delivered(edited, first, cutter, live, whole[order] if len(whole) == live else whole)


def _records(
    edited: Edited, placed: Placed, schema: pa.Schema, gone: Bools | None = None
) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
    """Yield the records of a shard but those gone, and their tokens where they were counted."""
    tokens, first = _tokens(edited, placed), 0
    with edited.opened(placed) as reader:
        for batch in _units(reader, schema):
            rows = slice(first, first + batch.num_rows)
            kept = _valid(batch.column(KEY))
            if gone is not None:
                kept &= ~gone[rows]
            whole = kept.all()
            counts = tokens[rows] if whole or not tokens.size else tokens[rows][kept]
            yield batch if whole else batch.filter(pa.array(kept)), counts
            first = rows.stop


def _tokens(edited: Edited, placed: Placed) -> Int64s:
    """Return the tokens of each slot of a shard, by its sidecar; none where none were counted."""
    units = read_units(edited.store(placed), placed.shard.files["units"])
    return np.array([count for unit in units.tokens or () for count in unit], np.int64)


def _joined(counts: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.zeros(0, np.int64), *counts])


def _hash_order(keys: pa.ChunkedArray) -> Int64s:
    """Return the order of the keys' hashes."""
    hashes = hash_keys(keys.to_pylist(), "shard", 0)
    table = pa.table({_HASH: pa.array(hashes, pa.uint64()), KEY: keys})
    order = pc.sort_indices(table, [(_HASH, "ascending"), (KEY, "ascending")])
    places: Int64s = order.to_numpy().astype(np.int64)
    return places


def _units(reader: ShardReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for unit in range(len(reader.unit_slots)):
        yield reader.read_unit(unit, schema.names)


def _cutter(
    edited: Edited, placed: Placed, schema: pa.Schema, summary: Mapping[str, Any]
) -> ShardCutter:
    return ShardCutter(
        edited.format,
        schema,
        shard_bytes=_UNBOUNDED,
        tag=placed.shard.tag,
        summary=summary,
        work=Path(edited.work[placed.region]),
        name=f"from-{placed.shard.shard_id}",
    )


def _delivered(
    edited: Edited, placed: Placed, cutter: ShardCutter, live: int, tokens: Int64s
) -> dict[str, Any]:
    """Deliver what a cutter made, which must be `live` records; return its lines."""
    made = cutter.close()
    written = sum(sealed.shard.live for sealed in made)
    if written != live:
        raise CorruptShard(
            f"{live} records by the manifest, but {written} were found",
            shard=placed.shard.shard_id,
            hint="geodata verify tells what is damaged",
        )
    if len(tokens) == live:
        made = [with_tokens(sealed, tokens) for sealed in made]
    store = edited.store(placed)
    return {"records": live, "shards": [sealed.deliver(store).to_line() for sealed in made]}


def _common(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several shards say of their tags; where they differ, all of it."""
    whole: dict[str, Any] = {}
    for name in sorted({name for summary in summaries for name in summary}):
        values: list[Any] = []
        for summary in summaries:
            found = summary.get(name, [])
            values += found if isinstance(found, list) else [found]
        distinct = sorted(set(map(str, values)))
        whole[name] = values[0] if len(distinct) == 1 else distinct
    return whole


def _living(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without its tombstones."""
    keys = batch.column(KEY)
    return batch.filter(keys.is_valid()) if keys.null_count else batch


def _valid(array: pa.Array) -> Bools:
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
