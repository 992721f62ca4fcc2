"""Where each record of a TFRecord shard lies: found by one scan, kept as an Arrow file beside it.

What is said of the shard rides as one feature on its last record, or, where no row is live, on a
record of its own: JSON with metadata, schema, slots per unit, and the lengths of the runs of live
rows and tombstones in turn; then the SHA-256 of all frames before it, of the record's other
features, and of that JSON. Of the frames it covers lengths and checksums, not the data, so a scan
leaves these alone and yet knows a shard that was cut off, lengthened or mixed with another.

The Arrow file has one row a record: its `row`, and `offset` and `size` of its Example. Its schema's
metadata hold, as JSON under `geodata.index`, the shard's schema, metadata, units and size, where
its last record lies, and the SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from geodata.durable import sync
from geodata.errors import CorruptShard, GeodataError, ManifestError, ObjectNotFound
from geodata.formats.base import FORMAT_VERSION, VERSION_KEY, UnitRange, check_version
from geodata.formats.tfrecord import frames as tfframes
from geodata.formats.tfrecord.columns import RESERVED
from geodata.formats.tfrecord.example import BYTES, Feature, last
from geodata.formats.tfrecord.frames import HEAD, Frames
from geodata.formats.tfrecord.wire import Bools, Int64s, sums
from geodata.schema import from_json, to_json

ABOUT = Feature.of(f"{RESERVED}shard", BYTES)
"""The feature that says what the shard is."""

MALFORMED = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""What decoding raises on bytes that no writer made."""

_INDEX = b"geodata.index"
_COLUMNS = pa.schema([(name, pa.int64()) for name in ("row", "offset", "size")])


@dataclass(frozen=True, slots=True)
class TfIndex:
    """The layout of one TFRecord shard.

    `rows` are the numbers of the live rows, `frames` those of their records; `tail` is offset and
    size of the last record's Example.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    nbytes: int
    tail: tuple[int, int]
    digest: str
    units: list[UnitRange]
    rows: Int64s
    frames: Frames


class Summary:
    """What the last record of a shard says of it, gathered while it is written."""

    def __init__(self, schema: pa.Schema, metadata: Mapping[str, str]):
        self._about = {"metadata": dict(metadata), "schema": to_json(schema)}
        self._units: list[Bools] = []
        self._hash = hashlib.sha256()

    def add_unit(self, live: Bools) -> None:
        """Note which rows of the next unit are no tombstones."""
        self._units.append(live)

    def add_frames(self, marks: bytes) -> None:
        """Note lengths and checksums of frames, none of them the last."""
        self._hash.update(marks)

    def entry(self, before: bytes) -> bytes:
        """Return the entry of `ABOUT`; `before` are the other entries of the last record."""
        live = np.concatenate([np.ones(1, bool), *self._units])
        turns = np.flatnonzero(np.diff(live))
        runs = np.diff(turns, prepend=0, append=len(live) - 1)
        slots = [len(unit) for unit in self._units]
        content = json.dumps({**self._about, "unit_slots": slots, "runs": runs.tolist()}).encode()
        self._hash.update(before + content)
        return ABOUT.entry([content, self._hash.digest()])


class _Said(NamedTuple):
    """What a last record says, JSON and digest, and its other entries before that."""

    before: memoryview
    content: bytes
    digest: bytes


MOST_SLOTS = 1 << 24
"""Rows of a unit: more than units of a few MiB hold, few enough to be read if none has a byte."""


def scan(data: pa.Buffer, shard: str) -> TfIndex:
    """Return the index of a TFRecord shard; CorruptShard where it contradicts itself."""
    frames = tfframes.scan(memoryview(data), shard)
    tail = int(frames.offsets[-1]), int(frames.sizes[-1])
    with _corrupt(shard):
        said = _said(data, tail, shard)
        about = json.loads(said.content)
        check_version(about["metadata"].get(VERSION_KEY), shard)
        marks = frames.pick(slice(-1)).marks(np.frombuffer(data, np.uint8))
        if hashlib.sha256(b"".join((marks, said.before, said.content))).digest() != said.digest:
            raise CorruptShard("records were added, lost or changed", shard=shard)
        rows, slots = _live_rows(about["runs"], len(frames.sizes)), about["unit_slots"]
        if max(slots, default=0) > MOST_SLOTS or sum(slots) != sum(about["runs"]):
            raise CorruptShard("its units do not hold its rows", shard=shard)
        frames = frames.pick(slice(len(rows)))
        return TfIndex(
            schema=from_json(about["schema"]),
            metadata=about["metadata"],
            nbytes=len(data),
            tail=tail,
            digest=said.digest.hex(),
            units=_units(slots, rows, frames, len(data)),
            rows=rows,
            frames=frames,
        )


def load(path: Path, data: pa.Buffer, shard: str) -> TfIndex:
    """Return the index kept at `path` of the shard `data`; CorruptShard if it is another's."""
    with _corrupt(path.name), pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate()
        about = json.loads(batch.schema.metadata[_INDEX])
        check_version(about["format_version"], path.name)
        if not batch.schema.equals(_COLUMNS):
            raise ValueError("an index with other columns")
        rows, offsets, sizes = (column.to_numpy() for column in batch.columns)
        index = TfIndex(
            schema=from_json(about["schema"]),
            metadata=about["metadata"],
            nbytes=about["nbytes"],
            tail=(about["tail"][0], about["tail"][1]),
            digest=about["digest"],
            units=_unit_ranges(about["units"], rows),
            rows=rows,
            frames=Frames(offsets, sizes),
        )
    if index.nbytes != len(data) or _said(data, index.tail, shard).digest.hex() != index.digest:
        raise CorruptShard(f"not the shard of {path.name}", shard=shard, hint="Rebuild the index")
    return index


def save(index: TfIndex, path: Path) -> None:
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
    schema = _COLUMNS.with_metadata({_INDEX: json.dumps(about)})
    arrays = [pa.array(numbers) for numbers in (index.rows, *index.frames)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    sync(path)


def _said(data: pa.Buffer, tail: tuple[int, int], shard: str) -> _Said:
    """Return what the last record says, whose Example lies there."""
    offset, size = tail
    try:
        before, (content, digest) = last(memoryview(data)[offset : offset + size], ABOUT)
    except (TypeError, ValueError):
        raise CorruptShard("no shard of geodata, or one that was cut off", shard=shard) from None
    return _Said(before, content, digest)


def _live_rows(runs: list[int], records: int) -> Int64s:
    """Return the numbers of the live rows, from the lengths of live and dead runs in turn.

    ValueError where they are not as many as records, of which one may be of no row.
    """
    lengths = np.array(runs, np.int64)
    live, starts = lengths[::2], sums(lengths)[:-1:2]
    count = int(live.sum())
    if (lengths < 0).any() or (count != records and (count, records) != (0, 1)):
        raise ValueError("other live rows than records")
    return np.repeat(starts - sums(live)[:-1], live) + np.arange(count)


def _unit_ranges(units: list[list[int]], rows: Int64s) -> list[UnitRange]:
    """Return the units of an index; ValueError where they are none of these rows."""
    numbers = np.array(units or [[0, 0, 0]])
    ends = numbers[:, 2].sum()
    large = (numbers < 0).any() or (numbers[:, 2] > MOST_SLOTS).any()
    if numbers.dtype != np.int64 or large or (len(rows) and rows[-1] >= ends):
        raise ValueError("an index that contradicts itself")
    return [UnitRange(*unit) for unit in units]


def _units(slots: list[int], rows: Int64s, frames: Frames, nbytes: int) -> list[UnitRange]:
    """Return where the frames of each unit lie; without live rows at the file's start."""
    bounds = np.append(frames.offsets - HEAD, nbytes if len(rows) else 0)
    places = bounds[np.searchsorted(rows, sums(np.array(slots, np.int64)))].tolist()
    return [
        UnitRange(start, stop - start, count)
        for (start, stop), count in zip(pairwise(places), slots, strict=True)
    ]


@contextmanager
def _corrupt(shard: str) -> Iterator[None]:
    """Name the file instead of what the reading of it stumbled over."""
    try:
        yield
    except ManifestError as error:
        raise CorruptShard(error.message, shard=shard) from None
    except GeodataError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound("no such file", file=shard) from None
    except (*MALFORMED, OSError) as error:
        text = f"not readable as a TFRecord shard ({type(error).__name__})"
        raise CorruptShard(text, shard=shard) from None
