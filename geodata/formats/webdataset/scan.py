"""The index of a tar shard, made from the shard alone by one pass over its members' headers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import CorruptShard
from geodata.formats.base import UnitRange, check_version
from geodata.formats.units import starts_of
from geodata.formats.webdataset.columns import plan
from geodata.formats.webdataset.index import (
    HEAD,
    PLACE,
    TAIL,
    TOMBSTONE,
    TarIndex,
    corrupt,
    ending,
)
from geodata.formats.webdataset.segments import Codec, unpacked
from geodata.formats.webdataset.tarball import Entry, entries, key_of
from geodata.schema import from_json

_NONE = b"."
"""What no member's stem is."""


def scan(data: pa.Buffer, shard: str, codec: Codec | None = None) -> TarIndex:
    """Return the index of a tar shard; CorruptShard where it contradicts itself."""
    with corrupt(shard):
        return _Scan(memoryview(data).cast("B"), shard, codec).run()


class _Scan:
    """One pass over the headers of a tar shard."""

    def __init__(self, data: memoryview, shard: str, codec: Codec | None):
        self._data, self._shard, self._codec = data, shard, codec
        self._segments = codec.segments(data) if codec else []
        self._segment = 0
        self._view = self._opened()
        """In which members have their places."""
        self._rows = [0] * len(self._segments)
        self._entries = self._members()
        self._hash = hashlib.sha256()
        self._keys: list[str | None] = []
        self._starts: list[int] = []
        self._found: list[tuple[int, int, int, int]] = []
        self._stem, self._last = _NONE, -1
        self._seen: set[bytes] = set()

    def run(self) -> TarIndex:
        """Return what the tar holds."""
        about = self._head()
        schema = from_json(about["schema"])
        members = plan(schema).members
        numbers = {suffix: i for i, m in enumerate(members, 1) for suffix in m.suffixes}
        numbers[b".json"] = 0
        tail = self._records(numbers)
        told = ending(self._view, tail.start, self._shard)
        if told["digest"] != self._hash.hexdigest() or told["rows"] != len(self._keys):
            raise CorruptShard("members were added, lost or renamed", shard=self._shard)
        return TarIndex(
            schema=schema,
            metadata=about["metadata"],
            nbytes=len(self._data),
            tail=tail.start,
            digest=told["digest"],
            units=self._units(told["unit_slots"], tail.start),
            keys=pa.array(self._keys, pa.large_string()),
            places=self._places(len(members) + 1),
            segments=self._segments,
        )

    def _opened(self) -> memoryview:
        """Return the segment that is at turn; all of a tar that is not compressed."""
        if self._codec is None:
            return self._data
        found = unpacked(self._codec, self._data, self._segments, self._segment, self._shard)
        return memoryview(found)

    def _members(self) -> Iterator[Entry]:
        """Yield all members, segment by segment."""
        last = len(self._segments) - 1
        yield from entries(self._view, self._shard, ends=last <= 0)
        for self._segment in range(1, last + 1):
            self._view, self._stem = self._opened(), _NONE
            yield from entries(self._view, self._shard, ends=self._segment == last)

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
        if self._segments:
            self._rows[self._segment] += 1
        self._stem, self._last = _NONE if stem is None else stem, -1
        self._seen.add(self._stem)

    def _units(self, slots: list[int], end: int) -> list[UnitRange]:
        if sum(slots) != len(self._keys) or (self._segments and self._rows != [0, *slots, 0]):
            raise CorruptShard("its units do not hold its rows", shard=self._shard)
        bounds = [*(self._starts[first] for first in starts_of(slots)[:-1]), end]
        runs = [(start, stop - start) for start, stop in pairwise(bounds)]
        if self._segments:
            runs = [(segment.offset, segment.length) for segment in self._segments[1:-1]]
        return [UnitRange(*run, count) for run, count in zip(runs, slots, strict=True)]

    def _places(self, count: int) -> list[pa.Array]:
        found = np.array(self._found, np.int64).reshape(-1, 4)
        offsets: npt.NDArray[np.int64] = np.zeros((count, len(self._keys)), np.int64)
        sizes = np.full_like(offsets, -1)
        offsets[found[:, 0], found[:, 1]] = found[:, 2]
        sizes[found[:, 0], found[:, 1]] = found[:, 3]
        fields = list(PLACE)
        return [
            pa.StructArray.from_arrays([pa.array(offset), pa.array(size)], fields=fields)
            for offset, size in zip(offsets, sizes, strict=True)
        ]
