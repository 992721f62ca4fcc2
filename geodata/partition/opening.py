"""Opens shards where they lie, for jobs; the files of a shard become one reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import read_units, tag_of_file
from geodata.catalog.checking import PieceChecks, check_digest, check_size
from geodata.errors import CorruptShard, StoreError
from geodata.formats import Format, ShardReader, get_format
from geodata.formats.joined import beside, data_parts, is_index, is_sidecar, open_shard
from geodata.formats.units import check_rows
from geodata.manifest import Shard
from geodata.stores import Access, GatedStore, open_store


@dataclass(frozen=True, slots=True)
class Placed:
    """A shard where it lies: in the store of its region at `root`."""

    root: str
    region: str
    shard: Shard


@dataclass(frozen=True, slots=True)
class Edited:
    """The version that an edit goes on: how its shards are opened, and where files are made.

    `work` names a folder in the root of each region, so that no byte of it is made elsewhere.
    """

    schema: dict[str, Any]
    form: str
    access: Access
    work: Mapping[str, str]

    @property
    def format(self) -> Format:
        """Return the format of all shards."""
        return get_format(self.form)

    def store(self, placed: Placed) -> GatedStore:
        """Return the store of a shard."""
        return open_store(placed.root, region=placed.region, access=self.access)

    @contextmanager
    def opened(self, placed: Placed, *, check: bool = True) -> Iterator[ShardReader]:
        """Open a shard for the body; with `check` its files must match their digests."""
        schema = schemas.from_json(self.schema)
        reader = open_in_place(self.format, self.store(placed), placed.shard, schema, check=check)
        try:
            yield reader
        finally:
            reader.close()


def open_in_place(
    form: Format, store: GatedStore, shard: Shard, schema: pa.Schema, *, check: bool = False
) -> ShardReader:
    """Open a shard in its store, a local folder, past the gate.

    Its files must be of the right size, and its indexes the right ones. With `check` all files are
    compared with their digests first, as whatever is copied is.
    """
    return _opened(form, shard, _paths(store, shard, check), schema)


def open_checking(
    form: Format, store: GatedStore, shard: Shard, schema: pa.Schema
) -> CheckedReader:
    """Open a shard in place; each unit is compared with its digest before it is first read.

    So a reader of a few units does not read the files whole.
    """
    paths = _paths(store, shard, False)
    checks = []
    for part in data_parts(paths):
        units = read_units(store, shard.files[beside(part, "units")])
        checks.append(PieceChecks(paths[part], shard.files[part], shard.shard_id, units))
        checks[-1].check_frame()
    return CheckedReader(_opened(form, shard, paths, schema), checks)


def _paths(store: GatedStore, shard: Shard, check: bool) -> dict[str, Path]:
    """Return where a shard's files lie but the sidecars, each of them looked at."""
    paths: dict[str, Path] = {}
    for part, ref in shard.files.items():
        if is_sidecar(part):
            continue
        path = store.local_path(ref.path, tag_of_file(shard, part), shard.shard_id, shard.live)
        if path is None:
            raise StoreError("not in a local folder", shard=shard.shard_id, file=store.url)
        look = check_digest if check or is_index(part) else check_size
        look(path, ref, shard.shard_id)
        paths[part] = path
    return paths


def _opened(
    form: Format, shard: Shard, paths: Mapping[str, Path], schema: pa.Schema
) -> ShardReader:
    reader = open_shard(form, paths, schema)
    if tuple(reader.unit_slots) != shard.slots:
        reader.close()
        raise CorruptShard("the shard has other units than its manifest", shard=shard.shard_id)
    return reader


class CheckedReader:
    """Reads a shard whose units are compared with their digests before they are first read."""

    def __init__(self, reader: ShardReader, checks: Sequence[PieceChecks]):
        self.schema, self.metadata = reader.schema, reader.metadata
        self.num_rows, self.unit_slots = reader.num_rows, reader.unit_slots
        self._reader, self._checks = reader, checks
        self._good: set[int] = set()

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a unit; CorruptShard where its bytes are others."""
        self._check(unit)
        return self._reader.read_unit(unit, columns)

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given; CorruptShard where bytes of their units are others."""
        ends = np.cumsum(self.unit_slots)
        for unit in np.unique(np.searchsorted(ends, check_rows(rows, self.num_rows), side="right")):
            self._check(int(unit))
        return self._reader.take(rows, columns)

    def close(self) -> None:
        """Release the files."""
        self._reader.close()

    def _check(self, unit: int) -> None:
        if unit not in self._good:
            for file in self._checks:
                file.check_unit(unit)
            self._good.add(unit)
