"""Where each member of a tar shard lies: found by one scan, kept as an Arrow file beside it.

The Arrow file has one row a record: `key`, then for `.json` and for each column with members of
its own a struct of `offset` and `size` in the tar (-1: no member). Its schema's metadata hold, as
JSON under `geodata.index`, the shard's schema, metadata and units, the file's size, and a digest of
all bytes of the tar but the records' contents, which the tar's last member repeats. Of a compressed
tar they hold the segments too, offsets count in a unit's, and the Arrow file is compressed itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.durable import sync
from geodata.errors import CorruptShard, GeodataError, ObjectNotFound
from geodata.formats.base import FORMAT_VERSION, UnitRange, check_version
from geodata.formats.webdataset.columns import plan
from geodata.formats.webdataset.segments import Codec, Segment, unpacked
from geodata.formats.webdataset.tarball import entries
from geodata.schema import from_json, to_json

HEAD = b"__geodata__/shard.json"
"""The first member: format version, schema, metadata."""
TAIL = b"__geodata__/end.json"
"""The last member: rows, slots per unit, digest."""
TOMBSTONE = b"__geodata__/tombstone/"

Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Offsets and sizes."""

_INDEX = b"geodata.index"
PLACE = pa.struct([("offset", pa.int64()), ("size", pa.int64())])


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The layout of one tar shard.

    `tail` is where its last member starts, in the last of the `segments` if there are some; `keys`
    is a large_string array, `places` are arrays of structs for `.json` and then for the plan's
    members.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    nbytes: int
    tail: int
    digest: str
    units: list[UnitRange]
    keys: pa.Array
    places: list[pa.Array]
    segments: list[Segment] = field(default_factory=list)

    def where(self) -> list[Places]:
        """Return offsets and sizes of `.json` and of each member of the plan, by rows."""
        return [(place.field(0).to_numpy(), place.field(1).to_numpy()) for place in self.places]


def load(path: Path, data: pa.Buffer, shard: str, codec: Codec | None = None) -> TarIndex:
    """Return the index kept at `path` of the tar shard `data`; CorruptShard if it is another's."""
    with corrupt(path.name), pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate(full=True)
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
            segments=[Segment(*segment) for segment in about.get("segments", [])],
        )
        _check_shape(index)
    if not _is_of(index, memoryview(data).cast("B"), shard, codec):
        raise CorruptShard(f"not the shard of {path.name}", shard=shard, hint="Rebuild the index")
    return index


def _check_shape(index: TarIndex) -> None:
    rows = sum(unit.slots for unit in index.units)
    if len(index.keys) != rows or len(index.places) != 1 + len(plan(index.schema).members):
        raise ValueError("an index that contradicts itself")
    bounds = [(unit.offset, unit.length) for unit in index.units]
    if index.segments and bounds != [(s.offset, s.length) for s in index.segments[1:-1]]:
        raise ValueError("an index whose units are no segments")


def _is_of(index: TarIndex, view: memoryview, shard: str, codec: Codec | None) -> bool:
    """Return whether an index is that of this shard."""
    with corrupt(shard):
        segments = codec.segments(view) if codec else []
        if index.nbytes != len(view) or index.segments != segments:
            return False
        if codec:
            view = memoryview(unpacked(codec, view, segments, len(segments) - 1, shard))
        return bool(ending(view, index.tail, shard)["digest"] == index.digest)


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
    if index.segments:
        about["segments"] = [[s.offset, s.length, s.nbytes, s.crc32] for s in index.segments]
    columns = [index.schema.field(member.column).name for member in plan(index.schema).members]
    fields = [pa.field(name, PLACE) for name in (".json", *columns)]
    schema = pa.schema([pa.field("key", pa.large_string()), *fields], {_INDEX: json.dumps(about)})
    batch = pa.RecordBatch.from_arrays([index.keys, *index.places], schema=schema)
    options = pa.ipc.IpcWriteOptions(compression="zstd" if index.segments else None)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=options) as writer,
    ):
        writer.write_batch(batch)
    sync(path)


def ending(view: memoryview, start: int, shard: str) -> dict[str, Any]:
    """Return what the last member, which starts here, says."""
    view = view[start:]
    with corrupt(shard):
        (entry,) = entries(view, shard)
        content: dict[str, Any] = json.loads(bytes(view[entry.offset : entry.offset + entry.size]))
        return {name: content[name] for name in ("rows", "unit_slots", "digest")}


@contextmanager
def corrupt(shard: str) -> Iterator[None]:
    """Name the file instead of what the reading of it stumbled over."""
    try:
        yield
    except GeodataError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound("no such file", file=shard) from None
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        text = f"not readable as a tar shard ({type(error).__name__})"
        raise CorruptShard(text, shard=shard) from None
