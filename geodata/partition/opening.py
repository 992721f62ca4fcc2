"""Opens shards where they lie, for jobs; the files of a shard become one reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.catalog import tag_of_file
from geodata.errors import CorruptShard, ObjectNotFound, StoreError
from geodata.formats import Format, ShardReader, get_format
from geodata.formats.joined import is_sidecar, open_shard
from geodata.manifest import FileRef, Shard
from geodata.partition.sealing import file_ref
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

    With `check` its files are compared with their digests first, as whatever is copied is.
    """
    paths: dict[str, Path] = {}
    for part, ref in shard.files.items():
        if is_sidecar(part):
            continue
        tag = tag_of_file(shard, part)
        path = store.local_path(ref.path, tag, shard.shard_id, shard.live)
        if path is None:
            raise StoreError("not in a local folder", shard=shard.shard_id, file=store.url)
        if check:
            _check(path, ref, shard.shard_id)
        paths[part] = path
    reader = open_shard(form, paths, schema)
    if tuple(reader.unit_slots) != shard.slots:
        reader.close()
        raise CorruptShard("the shard has other units than its manifest", shard=shard.shard_id)
    return reader


def _check(path: Path, ref: FileRef, about: str) -> None:
    try:
        found = file_ref(path, ref.path)
    except FileNotFoundError:
        raise ObjectNotFound("a shard's file is missing", shard=about, file=ref.path) from None
    if found != ref:
        raise CorruptShard(
            "a file does not match its digest",
            shard=about,
            file=ref.path,
            hint="geodata verify tells what is damaged",
        )
