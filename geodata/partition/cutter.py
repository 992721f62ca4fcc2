"""Cuts tagged records into shards bounded by bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.canonical import ContentHasher
from geodata.durable import storing
from geodata.formats import FORMAT_VERSION, Format, ShardWriter, unit_bytes_for
from geodata.partition.sealing import Sealed, seal
from geodata.schema import KEY
from geodata.tags import Tag


@dataclass(slots=True)
class _Open:
    writer: ShardWriter
    path: Path
    hasher: ContentHasher
    planned: int = 0
    live: int = 0


class ShardCutter:
    """Writes record batches of one tag as shards of at most `shard_bytes` (or one record).

    Where shards end follows from the rows alone, not from how they were batched.
    """

    def __init__(
        self,
        form: Format,
        schema: pa.Schema,
        *,
        shard_bytes: int,
        tag: Tag,
        summary: Mapping[str, Any],
        work: Path,
        name: str,
    ):
        self._form, self._schema = form, schema
        self._shard_bytes, self._tag, self._summary = shard_bytes, tag, summary
        self._work, self._name = work, name
        self._open: _Open | None = None
        self._sealed: list[Sealed] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, which must have the cutter's schema."""
        sizes = self._form.row_nbytes(batch)
        start = 0
        while start < batch.num_rows:
            current = self._open or self._start()
            room = self._shard_bytes - current.planned
            ends = np.cumsum(sizes[start:])
            count = int(np.searchsorted(ends, room, side="right"))
            if count == 0 and current.planned:
                self._finish()
                continue
            count = max(count, 1)
            part = batch.slice(start, count)
            self._append(current, part, int(ends[count - 1]))
            start += count

    def close(self) -> list[Sealed]:
        """Finish the last shard and return all of them."""
        if self._open:
            self._finish()
        return self._sealed

    def _start(self) -> _Open:
        path = self._work / f"{self._name}-{len(self._sealed):05}{self._form.suffix}"
        metadata = metadata_of(self._tag)
        unit_bytes = unit_bytes_for(self._schema)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = self._form.create(path, self._schema, unit_bytes=unit_bytes, metadata=metadata)
        self._open = _Open(writer, path, ContentHasher(self._schema))
        return self._open

    def _append(self, current: _Open, part: pa.RecordBatch, nbytes: int) -> None:
        with storing(current.path):
            current.writer.write(part)
        current.hasher.update(part)
        current.planned += nbytes
        current.live += part.num_rows - pc.sum(pc.is_null(part.column(KEY))).as_py()

    def _finish(self) -> None:
        current, self._open = self._open, None
        if current is None:
            return
        with storing(current.path):
            current.writer.close()
        digest = current.hasher.hexdigest()
        self._sealed.append(
            seal(self._form, current.path, self._tag, self._summary, digest, current.live)
        )


def metadata_of(tag: Tag) -> dict[str, str]:
    """Return what is said inside of every shard file."""
    text = json.dumps(tag.to_json(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return {"geodata.format_version": str(FORMAT_VERSION), "geodata.tag": text}
