"""Finds records that are there already: fingerprints on disk, compared a bucket at a time.

A fingerprint is the 128-bit digest of a record's content, or of its key, and its place: which item
(a task of a conversion, a shard) it is of, and which row it has there. Items are in order, and of
equal records the first stays. Fingerprints lie in sorted runs, one or more an item, so that those
of a bucket (equal first bits) are a slice of each; memory holds one bucket.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata import schema as schemas
from geodata.canonical import row_digests
from geodata.durable import reading_kept, replacing
from geodata.formats import get_format
from geodata.formats.base import ShardReader
from geodata.manifest import Shard
from geodata.partition.opening import open_checking, open_in_place
from geodata.schema import KEY
from geodata.stores import Access, open_store

RUN_ROWS = 1 << 20
"""Most fingerprints of a run, and about as many as a bucket holds."""

PRINT = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])
REPEAT = np.dtype([("item", "<u8"), ("row", "<u8")])

Rows = npt.NDArray[np.uint64]
Table = npt.NDArray[np.void]


class Prints:
    """Takes the records of one item and writes their fingerprints as runs in a folder."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name
        self._parts: list[Table] = []
        self._held = self._rows = 0
        self._runs: list[str] = []

    def add(self, batch: pa.RecordBatch, keys: pa.Array) -> None:
        """Take rows, by the columns that count; one whose key is null is a tombstone, no record."""
        part = np.empty(batch.num_rows, PRINT)
        halves = row_digests(batch).view("<u8")
        part["high"], part["low"] = halves[:, 0], halves[:, 1]
        part["row"] = np.arange(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        if keys.null_count:
            part = part[pc.is_valid(keys).to_numpy(zero_copy_only=False)]
        self._parts.append(part)
        self._held += len(part)
        if self._held >= RUN_ROWS:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Write what is left; return the runs and how many rows were taken."""
        self._flush()
        return {"runs": self._runs, "records": self._rows}

    def _flush(self) -> None:
        if self._held:
            name = f"{self._name}-{len(self._runs):04}.npy"
            whole = np.concatenate(self._parts)
            _save(self._folder / name, whole[np.lexsort((whole["low"], whole["high"]))])
            self._runs.append(name)
        self._parts, self._held = [], 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Shards of a dataset, by which columns to compare their records, and where prints go."""

    root: str
    region: str
    access: Access
    form: str
    schema: dict[str, Any]
    columns: tuple[str, ...]
    folder: str
    stage: str

    def name(self, shard: Shard) -> str:
        """Return the digest of what decides the fingerprints of a shard."""
        about = repr([self.form, self.schema, self.columns, shard.to_line()])
        return hashlib.sha256(about.encode()).hexdigest()


def print_shard(stored: Stored, shard: Shard) -> dict[str, Any]:
    """Write the fingerprints of a shard's records."""
    prints = Prints(Path(stored.folder), f"{stored.stage}-{stored.name(shard)[:24]}")
    reader = open_stored(stored, shard)
    try:
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit, list(dict.fromkeys([KEY, *stored.columns])))
            prints.add(batch.select(list(stored.columns)), batch.column(KEY))
    finally:
        reader.close()
    return prints.close()


def open_stored(stored: Stored, shard: Shard) -> ShardReader:
    """Open a shard where it lies.

    Its units are compared with their digests where records are told apart by more than keys: by
    damage one would be lost, as a repeat. For keys alone, most of a shard is never read.
    """
    store = open_store(stored.root, region=stored.region, access=stored.access)
    form, schema = get_format(stored.form), schemas.from_json(stored.schema)
    if stored.columns == (KEY,):
        return open_in_place(form, store, shard, schema)
    return open_checking(form, store, shard, schema)


def key_at(stored: Stored, shard: Shard, row: int) -> str:
    """Return the key of a shard's record."""
    reader = open_stored(stored, shard)
    try:
        key: str = reader.take([row], [KEY]).column(0)[0].as_py()
        return key
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs to compare, each with the number of its item, and in how many buckets (2 ** bits).

    Repeats in items before `first` are no matter. What is found goes into files `name`-N.
    """

    folder: str
    name: str
    runs: tuple[tuple[int, str], ...]
    bits: int
    first: int


def bits_for(records: int) -> int:
    """Return how many first bits tell buckets apart, so that one fits in memory."""
    return max(records // RUN_ROWS, 0).bit_length()


def find_repeats(compared: Compared, bucket: int) -> dict[str, Any]:
    """Write the places of a bucket's records that have an equal one before them."""
    folder, name = Path(compared.folder), f"{compared.name}-{bucket:06}.npy"
    parts = [_bucket(folder / run, bucket, compared.bits) for _, run in compared.runs]
    items = np.repeat(
        np.array([item for item, _ in compared.runs], np.uint64), [len(part) for part in parts]
    )
    whole = np.concatenate([*parts, np.empty(0, PRINT)])
    order = np.lexsort((whole["row"], items, whole["low"], whole["high"]))
    whole, items = whole[order], items[order]
    again = np.zeros(len(whole), bool)
    again[1:] = (whole["high"][1:] == whole["high"][:-1]) & (whole["low"][1:] == whole["low"][:-1])
    again &= items >= compared.first
    found = np.empty(int(again.sum()), REPEAT)
    found["item"], found["row"] = items[again], whole["row"][again]
    _save(folder / name, np.sort(found, order=["item", "row"]))
    return {"file": name, "repeats": len(found), "records": len(whole)}


class Repeats:
    """The places of records that have an equal one before them, over all buckets."""

    def __init__(self, folder: Path, files: Sequence[str]):
        self._found = [_load(folder / name) for name in files]

    def rows(self, item: int) -> Rows:
        """Return which rows of an item repeat, ascending."""
        parts = []
        for found in self._found:
            items = found["item"]
            low, high = np.searchsorted(items, item), np.searchsorted(items, item, side="right")
            parts.append(found["row"][low:high])
        return np.sort(np.concatenate([*parts, np.empty(0, np.uint64)]))

    def first(self) -> tuple[int, int] | None:
        """Return item and row of the first record that repeats."""
        heads = [
            (int(found[0]["item"]), int(found[0]["row"])) for found in self._found if len(found)
        ]
        return min(heads, default=None)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Which records of shards are left out, as repeats: `items` are the numbers of the shards.

    `files` lie in `folder`; see `find_repeats`.
    """

    folder: str
    files: tuple[str, ...]
    items: Mapping[str, int]

    def rows(self, shard_id: str) -> Rows:
        """Return which rows of a shard are left out, ascending."""
        return Repeats(Path(self.folder), self.files).rows(self.items[shard_id])


def without(batch: pa.RecordBatch, repeated: Rows, first: int) -> pa.RecordBatch:
    """Return the rows that do not repeat, of a batch whose first row has the number `first`."""
    low, high = np.searchsorted(repeated, [first, first + batch.num_rows])
    if low == high:
        return batch
    kept = np.ones(batch.num_rows, bool)
    kept[(repeated[low:high] - np.uint64(first)).astype(np.int64)] = False
    return batch.filter(pa.array(kept))


def _bucket(path: Path, bucket: int, bits: int) -> Table:
    """Return the part of a run whose digests begin with the bits of the bucket."""
    run = _load(path)
    if not bits:
        return np.array(run)
    low = np.uint64(bucket << (64 - bits))
    high = np.uint64(((bucket + 1) << (64 - bits)) - 1)
    start = np.searchsorted(run["high"], low)
    return np.array(run[start : np.searchsorted(run["high"], high, side="right")])


def _load(path: Path) -> Table:
    with reading_kept(path):
        found: Table = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _save(path: Path, table: Table) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, table, allow_pickle=False)
