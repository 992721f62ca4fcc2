"""Where each member of a tar shard lies: found by one scan, kept as an Arrow file beside it.

The Arrow file has one row a record: `key`, then for `.json` and for each column with members of
its own a struct of `offset` and `size` in the tar (-1: no member). Its schema's metadata hold, as
JSON under `geodata.index`, the shard's schema, metadata and units, the tar's size, and a digest of
all its bytes but the records' contents, which the tar's last member repeats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.durable import sync
from geodata.errors import CorruptShard, GeodataError, ObjectNotFound
from geodata.formats.base import FORMAT_VERSION, UnitRange, check_version
from geodata.formats.slices import Slices
from geodata.formats.units import starts_of
from geodata.formats.webdataset.columns import plan
from geodata.formats.webdataset.tarball import Entry, entries, key_of
from geodata.schema import from_json, to_json

HEAD = b"__geodata__/shard.json"
"""The first member: format version, schema, metadata."""
TAIL = b"__geodata__/end.json"
"""The last member: rows, slots per unit, digest."""
TOMBSTONE = b"__geodata__/tombstone/"

_INDEX = b"geodata.index"
_PLACE = pa.struct([("offset", pa.int64()), ("size", pa.int64())])


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The layout of one tar shard.

    `tail` is where its last member starts; `keys` is a large_string array, `places` are arrays of
    structs for `.json` and then for the plan's members.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    nbytes: int
    tail: int
    digest: str
    units: list[UnitRange]
    keys: pa.Array
    places: list[pa.Array]

    def slices(self, data: pa.Buffer) -> list[Slices]:
        """Return the contents of `.json` and of each member of the plan, in rows."""
        return [
            Slices(data, *(place.field(i).to_numpy() for i in range(_PLACE.num_fields)))
            for place in self.places
        ]


def scan(data: pa.Buffer, shard: str) -> TarIndex:
    """Return the index of a tar shard; CorruptShard where it contradicts itself."""
    view = memoryview(data)
    with _corrupt(shard):
        return _Scan(view, shard).run()


def load(path: Path, data: pa.Buffer, shard: str) -> TarIndex:
    """Return the index kept at `path` of the tar shard `data`; CorruptShard if it is another's."""
    with _corrupt(path.name), pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate()
        about = json.loads(batch.schema.metadata[_INDEX])
        check_version(about["format_version"], path.name)
        index = TarIndex(
            schema=from_json(about["schema"]),
            metadata=about["metadata"],
            nbytes=about["nbytes"],
            tail=about["tail"],
            digest=about["digest"],
            units=[UnitRange(*unit) for unit in about["units"]],
            keys=batch.column(0),
            places=batch.columns[1:],
        )
        _check_shape(index)
    if index.nbytes != len(data) or _tail(data, index.tail, shard)["digest"] != index.digest:
        raise CorruptShard(f"not the shard of {path.name}", shard=shard, hint="Rebuild the index")
    return index


def _check_shape(index: TarIndex) -> None:
    rows = sum(unit.slots for unit in index.units)
    if len(index.keys) != rows or len(index.places) != 1 + len(plan(index.schema).members):
        raise ValueError("an index that contradicts itself")


def save(index: TarIndex, path: Path) -> None:
    """Write the index as an Arrow file and sync it."""
    about = {
        "format_version": FORMAT_VERSION,
        "schema": to_json(index.schema),
        "metadata": dict(index.metadata),
        "nbytes": index.nbytes,
        "tail": index.tail,
        "digest": index.digest,
        "units": [[unit.offset, unit.length, unit.slots] for unit in index.units],
    }
    columns = [index.schema.field(member.column).name for member in plan(index.schema).members]
    fields = [pa.field(name, _PLACE) for name in (".json", *columns)]
    schema = pa.schema([pa.field("key", pa.large_string()), *fields], {_INDEX: json.dumps(about)})
    batch = pa.RecordBatch.from_arrays([index.keys, *index.places], schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    sync(path)


class _Scan:
    """One pass over the headers of a tar shard."""

    def __init__(self, view: memoryview, shard: str):
        self._view, self._shard = view, shard
        self._entries = entries(view, shard)
        self._hash = hashlib.sha256()
        self._keys: list[str | None] = []
        self._starts: list[int] = []
        self._found: list[tuple[int, int, int, int]] = []
        self._stem, self._last = b"", -1
        self._seen: set[bytes] = set()

    def run(self) -> TarIndex:
        """Return what the tar holds."""
        about = self._head()
        schema = from_json(about["schema"])
        members = plan(schema).members
        numbers = {suffix: i for i, m in enumerate(members, 1) for suffix in m.suffixes}
        numbers[b".json"] = 0
        tail = self._records(numbers)
        told = _tail(self._view, tail.start, self._shard)
        if told["digest"] != self._hash.hexdigest() or told["rows"] != len(self._keys):
            raise CorruptShard("members were added, lost or renamed", shard=self._shard)
        return TarIndex(
            schema=schema,
            metadata=about["metadata"],
            nbytes=len(self._view),
            tail=tail.start,
            digest=told["digest"],
            units=self._units(told["unit_slots"], tail.start),
            keys=pa.array(self._keys, pa.large_string()),
            places=self._places(len(members) + 1),
        )

    def _head(self) -> dict[str, Any]:
        if bytes(self._view[: len(HEAD) + 1]) != HEAD + b"\0":
            raise CorruptShard("no shard of geodata", shard=self._shard)
        first = next(self._entries)
        content = self._view[first.offset : first.offset + first.size]
        self._hash.update(self._view[: first.offset])
        self._hash.update(content)
        about: dict[str, Any] = json.loads(bytes(content))
        check_version(about.get("format_version"), self._shard)
        return about

    def _records(self, numbers: dict[bytes, int]) -> Entry:
        """Note every member, and return the last."""
        for entry in self._entries:
            if entry.name == TAIL:
                return entry
            self._hash.update(self._view[entry.start : entry.offset])
            if entry.name.startswith(TOMBSTONE):
                self._begin(None, entry)
            else:
                self._member(entry, numbers)
        raise CorruptShard("the last member is missing", shard=self._shard)

    def _member(self, entry: Entry, numbers: dict[bytes, int]) -> None:
        stem, dot, rest = entry.name.partition(b".")
        number = numbers.get(dot + rest)
        if number == 0 and stem not in self._seen:
            self._begin(stem, entry)
        elif number is None or stem != self._stem or number <= self._last:
            fault = "an unknown, repeated or misplaced member"
            raise CorruptShard(fault, shard=self._shard, file=entry.name.decode())
        self._last = number
        self._found.append((number, len(self._keys) - 1, entry.offset, entry.size))

    def _begin(self, stem: bytes | None, entry: Entry) -> None:
        self._keys.append(None if stem is None else key_of(stem))
        self._starts.append(entry.start)
        self._stem, self._last = stem or b"", -1
        self._seen.add(self._stem)

    def _units(self, slots: list[int], end: int) -> list[UnitRange]:
        if sum(slots) != len(self._keys):
            raise CorruptShard("its units do not hold its rows", shard=self._shard)
        bounds = [*(self._starts[first] for first in starts_of(slots)[:-1]), end]
        return [
            UnitRange(start, stop - start, count)
            for (start, stop), count in zip(pairwise(bounds), slots, strict=True)
        ]

    def _places(self, count: int) -> list[pa.Array]:
        found = np.array(self._found, np.int64).reshape(-1, 4)
        offsets: npt.NDArray[np.int64] = np.zeros((count, len(self._keys)), np.int64)
        sizes = np.full_like(offsets, -1)
        offsets[found[:, 0], found[:, 1]] = found[:, 2]
        sizes[found[:, 0], found[:, 1]] = found[:, 3]
        fields = list(_PLACE)
        return [
            pa.StructArray.from_arrays([pa.array(offset), pa.array(size)], fields=fields)
            for offset, size in zip(offsets, sizes, strict=True)
        ]


def _tail(data: pa.Buffer | memoryview, start: int, shard: str) -> dict[str, Any]:
    """Return what the last member, which starts here, says."""
    view = memoryview(data)[start:]
    with _corrupt(shard):
        (entry,) = entries(view, shard)
        content: dict[str, Any] = json.loads(bytes(view[entry.offset : entry.offset + entry.size]))
        return {name: content[name] for name in ("rows", "unit_slots", "digest")}


@contextmanager
def _corrupt(shard: str) -> Iterator[None]:
    """Name the file instead of what the reading of it stumbled over."""
    try:
        yield
    except GeodataError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound("no such file", file=shard) from None
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        text = f"not readable as a tar shard ({type(error).__name__})"
        raise CorruptShard(text, shard=shard) from None
