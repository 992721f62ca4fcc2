"""Seals a finished shard: fixes what the manifest promises of it.

The file is read back once for the digests of the whole, of its units and of the frame around them,
while the disk takes it.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from geodata.catalog import tag_of_file
from geodata.digests import PREFIX, digest_of, hex_of
from geodata.durable import storing, syncing
from geodata.errors import CorruptShard
from geodata.formats import Format
from geodata.formats.joined import MAIN, beside, column_part
from geodata.manifest import FileRef, Piece, Shard, Units
from geodata.stores import GatedStore
from geodata.tags import Tag

SHARD_ID_CHARS = 20
SIDECAR, SUFFIX = "units", ".units.json"

COLUMNS_DIR = "_columns"
"""Beside the shards; its name keeps engines that read a folder of shards from taking it for one."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A finished shard that still lies in the work folder: its line, and its files there."""

    shard: Shard
    paths: Mapping[str, Path]

    def deliver(self, store: GatedStore) -> Shard:
        """Move the files made into the store of the shard's region, the main one last."""
        for name, path in sorted(self.paths.items(), key=lambda item: item[0] == MAIN):
            tag, ref = tag_of_file(self.shard, name), self.shard.files[name]
            store.put(ref.path, path, tag, about=self.shard.shard_id, records=self.shard.live)
        return self.shard


def seal(
    form: Format, path: Path, tag: Tag, summary: Mapping[str, Any], content: str, live: int
) -> Sealed:
    """Return the sealed shard of a finished file: index and sidecar are written beside it."""
    shard_id = hex_of(content)[:SHARD_ID_CHARS]
    stem = f"data/region={tag.region}/{shard_id}"
    paths, refs, slots = _described(form, path, stem, MAIN, PREFIX)
    return Sealed(Shard(shard_id, refs, slots, live, content, tag, dict(summary)), paths)


def seal_column(form: Format, path: Path, shard: Shard, name: str, content: str) -> Sealed:
    """Return `shard` with a finished file of a column, in the place of an earlier one.

    `content` is the digest of all its columns; the main file and the shard's id stay.
    """
    part = column_part(name)
    stem = f"data/region={shard.tag.region}/{COLUMNS_DIR}/{shard.shard_id}"
    paths, refs, slots = _described(form, path, stem, part, shard.content_digest)
    if slots != shard.slots:
        raise CorruptShard("a column has other units than its shard", shard=shard.shard_id)
    files = dict(sorted({**shard.files, **refs}.items()))
    return Sealed(replace(shard, files=files, content_digest=content), paths)


def _described(
    form: Format, path: Path, stem: str, part: str, like: str
) -> tuple[dict[str, Path], dict[str, FileRef], tuple[int, ...]]:
    """Return a file and what is written beside it, by part, the references, and the slots."""
    index, units = beside(part, "index"), beside(part, "units")
    paths = {part: path, units: path.with_name(path.name + SUFFIX)}
    if form.index_suffix:
        paths[index] = path.with_name(path.name + form.index_suffix)
        form.write_index(path, paths[index])
    with syncing(path):
        digest, measured = measure(form, path, paths.get(index), like)
    with storing(paths[units]):
        paths[units].write_bytes(measured.to_bytes())
    stem = f"{stem}-{digest[:12]}{form.suffix}"
    names = {name: stem + found.name.removeprefix(path.name) for name, found in paths.items()}
    refs = {name: file_ref(found, names[name]) for name, found in paths.items() if name != part}
    refs[part] = FileRef(names[part], digest, path.stat().st_size)
    slots = tuple(piece.slots for piece in measured.units)
    return paths, dict(sorted(refs.items())), slots


def with_tokens(sealed: Sealed, counts: npt.NDArray[np.int64]) -> Sealed:
    """Return a shard whose sidecar, in the work folder, holds the tokens of each of its slots."""
    path, old = sealed.paths[SIDECAR], sealed.shard.files[SIDECAR]
    units = Units.from_bytes(path.read_bytes(), old.path)
    by_unit = np.split(counts, np.cumsum(sealed.shard.slots)[:-1])
    tokens = tuple(tuple(part.tolist()) for part in by_unit)
    with storing(path):
        path.write_bytes(replace(units, tokens=tokens).to_bytes())
    made = file_ref(path, old.path)  # the shard may have a sidecar there that counts nothing
    key = f"{old.path.removesuffix(SUFFIX)}.{made.sha256[:12]}{SUFFIX}"
    files = {**sealed.shard.files, SIDECAR: replace(made, path=key)}
    return Sealed(replace(sealed.shard, files=files), sealed.paths)


def file_ref(path: Path, key: str) -> FileRef:
    """Return the reference by which a list names a local file under `key`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRef(key, digest, path.stat().st_size)


def measure(form: Format, path: Path, index: Path | None, like: str = PREFIX) -> tuple[str, Units]:
    """Return the SHA-256 of a shard file, and the digests of its units and of what frames them.

    The latter are of the kind of the digest `like`.
    """
    ranges = form.units(path, index)
    gaps = list(_gaps([(r.offset, r.length) for r in ranges], path.stat().st_size))
    parts = [*((r.offset, r.length, r.slots) for r in ranges), *((*gap, 0) for gap in gaps)]
    whole, pieces = hashlib.sha256(), {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            for offset, length, slots in sorted(parts):
                part = view[offset : offset + length]
                whole.update(part)
                pieces[offset, length] = Piece(offset, length, slots, digest_of(part, like))
                part.release()
        finally:
            view.release()
    units = tuple(pieces[r.offset, r.length] for r in ranges)
    return whole.hexdigest(), Units(units, tuple(pieces[gap] for gap in gaps))


def _gaps(ranges: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of what lies outside of sorted, disjoint ranges."""
    end = 0
    for offset, length in [*sorted(ranges), (size, 0)]:
        if offset > end:
            yield end, offset - end
        end = offset + length
