"""(shard, rows) → record batch, from the cache or the store; torch-free.

Units are decoded whole and kept within a budget of bytes, so rows of one unit cost one decode; but
what lies plain in a mapped file is copied once, from there to its place in the batch. Handles are
opened by the process that reads, never carried over a fork.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata import schema as schemas
from geodata.cache import Cache
from geodata.catalog import Catalog, tag_of_file
from geodata.catalog.checking import DAMAGED, check_digest, check_size
from geodata.errors import CorruptShard, ObjectNotFound
from geodata.formats import MappedReader, ShardReader, get_format
from geodata.formats.base import MEDIA_UNIT_BYTES
from geodata.formats.joined import is_index, is_sidecar, open_shard
from geodata.formats.slices import Slices, merged, runs_of
from geodata.formats.units import select
from geodata.manifest import FileRef, Index, Shard, Version
from geodata.policy import Movement

Int64s = npt.NDArray[np.int64]
Read = TypeVar("Read")

OPEN_SHARDS = 128
CACHE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit as it is kept: where bytes lie in the mapped file, and the other columns, decoded.

    One that is `mapped` points into its shard's file. `nbytes` is what it counts in the budget: a
    small one as much as a unit of media, since a mapping or a handful of objects hangs on it.
    """

    schema: pa.Schema
    runs: Mapping[str, Slices]
    rest: pa.RecordBatch | None
    mapped: bool
    nbytes: int

    @classmethod
    def of(cls, reader: ShardReader, unit: int, columns: Sequence[str]) -> _Unit:
        """Return these columns of a unit."""
        schema = select(reader.schema, columns)
        mapped = reader if isinstance(reader, MappedReader) else None
        runs = mapped.runs(unit, schema.names) if mapped else {}
        nbytes = sum(places.offsets.nbytes + places.sizes.nbytes for places in runs.values())
        others = [name for name in schema.names if name not in runs]
        rest = reader.read_unit(unit, others) if others else None
        nbytes += rest.nbytes if rest else 0
        return cls(schema, runs, rest, mapped is not None, max(nbytes, MEDIA_UNIT_BYTES))

    def part(self, shard: str, number: int, rows: Int64s, places: Int64s) -> _Part:
        """Return some rows of this unit, which has that number in its shard."""
        runs = {name: found.pick(rows) for name, found in self.runs.items()}
        rest = None if self.rest is None else self.rest.take(pa.array(rows))
        return _Part(shard, number, self.schema, runs, rest, places)


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a unit, and which rows of a batch they become."""

    shard: str
    number: int
    schema: pa.Schema
    runs: Mapping[str, Slices]
    rest: pa.RecordBatch | None
    places: Int64s

    def slices(self, name: str) -> Slices:
        """Return where the values of a column of strings or binaries lie."""
        if name in self.runs:
            return self.runs[name]
        assert self.rest is not None
        return runs_of(self.rest.column(name))


class Reader:
    """Reads rows of the shards of one version, by shard id.

    `homes` maps shard ids to (home region, shard). Each shard passes the gate when it is first
    opened, cached or not; those in `admitted` have been written to the audit log already. When an
    object is gone, because an erasure rewrote the shard, the newest revision is loaded and reading
    goes on.
    """

    def __init__(
        self,
        catalog: Catalog,
        index: Index,
        homes: Mapping[str, tuple[str, Shard]],
        *,
        cache: Cache | None = None,
        memory_budget: int = 1 << 30,
        admitted: frozenset[str] = frozenset(),
    ):
        self._catalog, self._index, self._homes = catalog, index, dict(homes)
        self._admitted = admitted
        self._cache, self._budget = cache, memory_budget
        self._form, self._schema = get_format(index.format), schemas.from_json(index.schema_)
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._open: OrderedDict[str, ShardReader] = OrderedDict()
        self._units: OrderedDict[tuple[str, int, tuple[str, ...]], _Unit] = OrderedDict()
        self._held = 0
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(min(OPEN_SHARDS, soft // 8), 1)
        self._starts = {
            name: np.concatenate([[0], np.cumsum(shard.slots)])
            for name, (_home, shard) in self._homes.items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {
            "catalog": self._catalog,
            "index": self._index,
            "homes": self._homes,
            "cache": self._cache,
            "memory_budget": self._budget,
            "admitted": self._admitted,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def rows(
        self, names: Sequence[str], shards: Int64s, rows: Int64s, columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return row `rows[i]` of shard `names[shards[i]]` as row i; there is at least one."""
        if self._pid != os.getpid():
            self._reset()
        parts = list(self._parts(names, shards, rows, columns))
        try:
            return _batch(parts, len(rows))
        except ValueError:  # decoding tells which shard has such text, or mends it
            for part in parts:
                self._read(part.shard, part.number, columns)
            return _batch(list(self._parts(names, shards, rows, columns)), len(rows))

    def _parts(
        self, names: Sequence[str], shards: Int64s, rows: Int64s, columns: Sequence[str]
    ) -> Iterator[_Part]:
        """Yield the rows by unit, in the order of their first places."""
        numbers = np.empty(len(rows), np.int64)
        for shard in np.unique(shards):
            own = np.flatnonzero(shards == shard)
            starts = self._starts[names[shard]]
            numbers[own] = np.searchsorted(starts, rows[own], side="right") - 1
        for places in _alike(shards, numbers):
            name, number = names[shards[places[0]]], int(numbers[places[0]])
            unit, first = self._unit(name, number, columns), self._starts[name][number]
            yield unit.part(name, number, rows[places] - first, places)

    def _unit(self, shard: str, number: int, columns: Sequence[str]) -> _Unit:
        """Return a unit, kept for the next call while the budget allows."""
        key = (shard, number, tuple(columns))
        known = self._units.get(key)
        if known is not None:
            self._units.move_to_end(key)
            if shard in self._open:
                self._open.move_to_end(shard)
            return known
        unit = self._mending(shard, lambda reader: _Unit.of(reader, number, columns))
        self._units[key] = unit
        self._held += unit.nbytes
        while self._held > self._budget and len(self._units) > 1:
            self._held -= self._units.popitem(last=False)[1].nbytes
        return unit

    def batches(self, shard: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all units of a shard, without keeping them."""
        for unit in range(len(self._homes[shard][1].slots)):
            yield self._read(shard, unit, columns)

    def _read(self, shard: str, unit: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        return self._mending(shard, lambda reader: reader.read_unit(unit, columns))

    def _mending(self, shard: str, read: Callable[[ShardReader], Read]) -> Read:
        """Read from a shard; what a disk has damaged in the cache is fetched anew, once."""
        try:
            return read(self._opened(shard))
        except CorruptShard:
            if not self._mend(self._homes[shard][1]):
                raise
            self._shut(shard)
            return read(self._opened(shard))

    def _mend(self, shard: Shard) -> bool:
        """Drop damaged entries of a shard from the cache; return whether there were some."""
        if self._cache is None:
            return False
        refs = [ref for part, ref in shard.files.items() if not is_sidecar(part)]
        damaged = [self._cache.drop_if_damaged(ref.sha256) for ref in refs]
        return any(damaged)

    def close(self) -> None:
        """Release all handles and decoded units."""
        if self._pid == os.getpid():
            for reader in self._open.values():
                reader.close()
        self._reset()

    def _opened(self, name: str) -> ShardReader:
        if self._pid != os.getpid():
            self._reset()
        known = self._open.get(name)
        if known is not None:
            self._open.move_to_end(name)
            return known
        self._pass_gate(name)
        try:
            reader = self._open_held(name)
        except ObjectNotFound:
            self._follow_revision(name)
            reader = self._open_held(name)
        self._open[name] = reader
        if len(self._open) > self._most_open:
            self._shut(next(iter(self._open)))
        return reader

    def _shut(self, name: str) -> None:
        """Close a shard and let go of its mapping, which keeps an evicted file on the disk."""
        reader = self._open.pop(name, None)
        if reader is None:
            return
        for key in [key for key, unit in self._units.items() if key[0] == name and unit.mapped]:
            self._held -= self._units.pop(key).nbytes
        reader.close()

    def _pass_gate(self, name: str) -> None:
        home, shard = self._homes[name]
        access = self._catalog.access
        movement = Movement("read", shard.tag, home, access.here, access.purpose, name, shard.live)
        if name in self._admitted and access.gate.decide(movement).allowed:
            return
        access.gate.check(movement)
        self._admitted |= {name}

    def _open_held(self, name: str) -> ShardReader:
        """Open a shard from the cache, or past it where others evict faster than we open."""
        for _attempt in range(CACHE_ATTEMPTS if self._cache else 0):
            reader = self._open_shard(name, self._cache)
            if reader is not None:
                return reader
        reader = self._open_shard(name, None)
        if reader is None:
            raise ObjectNotFound("a shard's file is missing", shard=name)
        return reader

    def _open_shard(self, name: str, cache: Cache | None) -> ShardReader | None:
        """Open a shard; None if a file was gone again before it was opened."""
        home, shard = self._homes[name]
        parts = sorted(part for part in shard.files if not is_sidecar(part))
        paths = {part: self._path(home, shard, part, cache) for part in parts}
        try:
            reader = open_shard(self._form, paths, self._schema)
        except (ObjectNotFound, FileNotFoundError):
            return None
        except CorruptShard:
            if cache is not None and self._mend(shard):
                return None
            raise
        if tuple(reader.unit_slots) != shard.slots:
            raise CorruptShard("the shard has other units than its manifest", shard=name)
        return reader

    def _path(self, home: str, shard: Shard, part: str, cache: Cache | None) -> Path:
        """Return the local path of a file of a shard: from the cache, else from a local store."""
        ref = shard.files[part]
        tag, about = tag_of_file(shard, part), shard.shard_id
        store = self._catalog.store(self._index, home)

        def fill(path: Path) -> None:
            store.fetch(ref.path, path, tag, about, shard.live)

        cached = _cached(cache, ref, about, fill)
        if cached is not None:
            return cached
        path = store.local_path(ref.path, tag, about, shard.live)
        if path is None:
            raise CorruptShard("no tier can hold the shard", shard=about)
        if is_index(part):
            check_digest(path, ref, about)  # it is small, and decides which records there are
        else:
            check_size(path, ref, about)
        return path

    def _follow_revision(self, name: str) -> None:
        """Load the newest revision of the version: an erasure may have rewritten the shard."""
        index = self._catalog.index(Version(self._index.id.number))
        if index.version == self._index.version:
            home, shard = self._homes[name]
            raise ObjectNotFound(
                "a shard's file is missing", shard=name, region=home, file=shard.main.path
            )
        self._index = index
        for region in index.regions:
            for shard in self._catalog.shards(index, region):
                if shard.shard_id in self._homes:
                    self._homes[shard.shard_id] = (region, shard)


def _alike(shards: Int64s, units: Int64s) -> list[Int64s]:
    """Return the places of equal pairs together, ascending, in the order of the first."""
    order = np.lexsort((units, shards))
    changes = np.diff(shards[order]).astype(bool) | np.diff(units[order]).astype(bool)
    return sorted(np.split(order, np.flatnonzero(changes) + 1), key=lambda places: int(places[0]))


def _batch(parts: Sequence[_Part], count: int) -> pa.RecordBatch:
    """Return the rows of all parts at their places; ValueError for text that is not UTF-8."""
    schema, arrays = parts[0].schema, []
    plain = {name for part in parts for name in part.runs}
    rest = iter(_rest(parts, [name for name in schema.names if name not in plain]))
    for field in schema:
        if field.name in plain:
            pieces = ((part.slices(field.name), part.places) for part in parts)
            arrays.append(merged(pieces, count, field.type))
        else:
            arrays.append(next(rest))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rest(parts: Sequence[_Part], names: Sequence[str]) -> list[pa.Array]:
    """Return decoded columns, in order; a step's lanes lie one after another already."""
    if not names:
        return []
    whole = (part.rest for part in parts if part.rest is not None)
    taken = [rest if rest.num_columns == len(names) else rest.select(names) for rest in whole]
    order = np.concatenate([part.places for part in parts])
    rest = pa.concat_batches(taken)
    if (np.diff(order) < 0).any():
        rest = rest.take(pa.array(np.argsort(order)))
    columns: list[pa.Array] = rest.columns
    return columns


def _cached(
    cache: Cache | None, ref: FileRef, about: str, fill: Callable[[Path], None]
) -> Path | None:
    if cache is None:
        return None
    try:
        return cache.get(ref.sha256, ref.nbytes, fill)
    except CorruptShard as error:
        raise CorruptShard(error.message, shard=about, file=ref.path, hint=DAMAGED) from error
