"""Our own shards among the files of a corpus: their columns and keys, tombstones left out.

A row is the number of a live record in its shard, from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import CorruptShard, FormatVersionError, ManifestError, ObjectNotFound
from geodata.formats import get_format
from geodata.formats.base import ShardReader
from geodata.schema import KEY, SUBJECT
from geodata.sources.base import Reject, Scan
from geodata.sources.columns import STATED, SUBJECTS, stated
from geodata.sources.stored import Rows

REFUSED = (CorruptShard, FormatVersionError, ManifestError, ObjectNotFound)
"""What the formats raise for a shard that cannot be read."""


@contextmanager
def opened(form: str, path: Path) -> Iterator[OwnShard]:
    """Open a shard of the format `form`; one of `REFUSED` where not even its keys can be read."""
    reader = get_format(form).open(path)
    try:
        yield OwnShard(reader)
    finally:
        reader.close()


class OwnShard:
    """One of our own shards, whose keys were all read."""

    def __init__(self, reader: ShardReader):
        self._reader = reader
        units = range(len(reader.unit_slots))
        self._live = [reader.read_unit(unit, [KEY]).column(0).is_valid() for unit in units]
        self.rows = sum(live.true_count for live in self._live)

    def columns(self) -> dict[str, Any]:
        """Return what `unite_columns` takes of the shard."""
        names = self._reader.schema.names
        subjects = SUBJECT in names and any(map(self._has_subjects, range(len(self._live))))
        return {STATED: stated(self._reader.schema, {}), SUBJECTS: subjects}

    def read(
        self, schema: pa.Schema, shown: str, key: str, reject: Callable[[Reject], None]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live records that fit `schema`."""
        rows = Rows(schema, shown, f"{key}#", 0, reject)
        for unit, live in enumerate(self._live):
            try:
                batch = self._reader.read_unit(unit)
            except CorruptShard as error:
                rows.lose(live.true_count, error.message)
            else:
                yield from rows.fit(batch if live.true_count == len(batch) else _only(batch, live))

    def _has_subjects(self, unit: int) -> bool:
        with suppress(CorruptShard):
            array = self._reader.read_unit(unit, [SUBJECT]).column(0)
            return bool(array.null_count < len(array))
        return False


def scan_shard(form: str, path: Path, file: int) -> Scan:
    """Return what one of our own shards holds; one that cannot be read is one candidate."""
    try:
        with opened(form, path) as shard:
            return Scan(shard.rows, shard.rows, shard.columns(), file=file)
    except REFUSED:
        return Scan(1, 0, file=file)


def read_shard(
    form: str,
    path: Path,
    schema: pa.Schema,
    shown: str,
    key: str,
    reject: Callable[[Reject], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the live records of one of our own shards that fit `schema`."""
    try:
        with opened(form, path) as shard:
            yield from shard.read(schema, shown, key, reject)
    except REFUSED as error:
        reject(Reject(shown, None, error.message))


def _only(batch: pa.RecordBatch, live: pa.BooleanArray) -> pa.RecordBatch:
    return batch.take(pc.indices_nonzero(live))
