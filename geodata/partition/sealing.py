"""Seals a finished shard: fixes what the manifest promises of it.

The file is read back once for the digests of the whole, of its units and of the frame around them.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geodata.digests import PREFIX, digest_of, hex_of
from geodata.durable import storing
from geodata.formats import Format
from geodata.manifest import FileRef, Piece, Shard, Units
from geodata.stores import GatedStore
from geodata.tags import METADATA, Tag

SHARD_ID_CHARS = 20


@dataclass(frozen=True, slots=True)
class Sealed:
    """A finished shard that still lies in the work folder: its line, and its files there."""

    shard: Shard
    paths: Mapping[str, Path]

    def deliver(self, store: GatedStore) -> Shard:
        """Move the shard's files into the store of its region, the main file last."""
        for name, path in sorted(self.paths.items(), key=lambda item: item[0] == "main"):
            tag = METADATA if name == "units" else self.shard.tag
            ref = self.shard.files[name]
            store.put(ref.path, path, tag, about=self.shard.shard_id, records=self.shard.live)
        return self.shard


def seal(
    form: Format, path: Path, tag: Tag, summary: Mapping[str, Any], content: str, live: int
) -> Sealed:
    """Return the sealed shard of a finished file: index and sidecar are written beside it."""
    paths = {"main": path, "units": path.with_name(path.name + ".units.json")}
    if form.index_suffix:
        paths["index"] = path.with_name(path.name + form.index_suffix)
        form.write_index(path, paths["index"])
    digest, units = measure(form, path, paths.get("index"))
    with storing(paths["units"]):
        paths["units"].write_bytes(units.to_bytes())
    shard_id = hex_of(content)[:SHARD_ID_CHARS]
    stem = f"data/region={tag.region}/{shard_id}-{digest[:12]}{form.suffix}"
    names = {
        name: stem + found.name.removeprefix(path.name) for name, found in sorted(paths.items())
    }
    refs = {name: file_ref(found, names[name]) for name, found in paths.items() if name != "main"}
    refs["main"] = FileRef(names["main"], digest, path.stat().st_size)
    slots = tuple(piece.slots for piece in units.units)
    return Sealed(
        Shard(shard_id, dict(sorted(refs.items())), slots, live, content, tag, dict(summary)), paths
    )


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
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            whole = hashlib.sha256(view).hexdigest()
            units = tuple(_piece(view, r.offset, r.length, r.slots, like) for r in ranges)
            gaps = _gaps([(r.offset, r.length) for r in ranges], size)
            frame = tuple(_piece(view, offset, length, 0, like) for offset, length in gaps)
        finally:
            view.release()
    return whole, Units(units, frame)


def _piece(view: memoryview, offset: int, length: int, slots: int, like: str) -> Piece:
    digest = digest_of(view[offset : offset + length], like)
    return Piece(offset, length, slots, digest)


def _gaps(ranges: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of what lies outside of sorted, disjoint ranges."""
    end = 0
    for offset, length in [*sorted(ranges), (size, 0)]:
        if offset > end:
            yield end, offset - end
        end = offset + length
