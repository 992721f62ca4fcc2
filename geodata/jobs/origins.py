"""What a dataset was made of, so that appending adds what is new.

The index tells of each source. The files of one, which may be millions, are an object of their own
that the index names by digest: `metadata/sources/<sha256>.jsonl`, one file a line. File names are
parts of keys, so such objects stay in their staging store. What a classified dataset was made of
are shards of staging datasets; their ids, which are digests, may travel.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from geodata.catalog import Catalog
from geodata.catalog.versions import is_lost
from geodata.durable import storing
from geodata.errors import ConfigError, FormatVersionError, ManifestError, StoreError
from geodata.jobs.listed import Entry, Listed, entries_of
from geodata.manifest import METADATA_DIR, Index, Shard, Version
from geodata.sources.base import Source
from geodata.sources.filelist import FileList
from geodata.sources.kinds import KINDS
from geodata.sources.listing import list_files
from geodata.sources.options import Reading
from geodata.stores import GatedStore, open_store
from geodata.tags import METADATA, STAGING, UNCLASSIFIED, Tag

FORMAT_VERSION = 1

_MEND = "geodata repair DATASET brings it back if there is a copy of it"

_OTHER = "If this is another source, give it an id of its own: --source-id NAME"

_HEAD = json.dumps({"format_version": FORMAT_VERSION}).encode() + b"\n"


def sources_of(catalog: Catalog, index: Index) -> list[dict[str, Any]]:
    """Return what is told of each source, in the order of arrival; nothing where it is unknown."""
    while "sources" not in index.report:
        if index.report.get("operation") in ("convert", "shard"):
            return [{**index.report, "digest": index.plan_digest}]
        if index.parent is None:
            return []
        try:
            index = catalog.index(Version.parse(index.parent))
        except ConfigError:  # removed meanwhile
            return []
    return list(index.report["sources"])


def keep_files(store: GatedStore, listed: Listed, work: Path) -> dict[str, Any]:
    """Store the list of a source's files, made in the folder `work`; return the reference to it."""
    path, digest = work / "files.jsonl", hashlib.sha256()
    with storing(path):
        work.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for lines in chain([_HEAD], listed.lines()):
                digest.update(lines)
                file.write(lines)
    key = _key(digest.hexdigest())
    store.put(key, path, UNCLASSIFIED)
    return {"path": key, "sha256": digest.hexdigest(), "count": listed.count}


def keep_shards(catalog: Catalog, shards: Iterable[Shard]) -> dict[str, Any]:
    """Store which staging shards a classified dataset takes; return the reference to it."""
    ids = sorted(shard.shard_id for shard in shards)
    return _keep(_index_store(catalog), [{"shard": name} for name in ids], METADATA)


def known_shards(
    catalog: Catalog, entries: Iterable[dict[str, Any]], staging: Catalog
) -> frozenset[str]:
    """Return the ids of the staging shards that a classified dataset has taken."""
    store, found = _index_store(catalog), set()
    for entry in entries:
        if "shards" in entry:
            found |= {line["shard"] for line in _lines(store, entry["shards"], METADATA)}
        else:
            found |= _shards_of(staging, entry["source"])
    return frozenset(found)


def _shards_of(staging: Catalog, plan_digest: str) -> set[str]:
    """Return the shards of the version with this digest, if the staging dataset has it."""
    for version in staging.versions():
        index = staging.index(version)
        if index.plan_digest == plan_digest:
            return {shard.shard_id for shard in staging.shards(index, STAGING)}
    return set()


def _index_store(catalog: Catalog) -> GatedStore:
    return open_store(catalog.root, region=catalog.access.here, access=catalog.access)


def _keep(store: GatedStore, lines: Sequence[dict[str, Any]], tag: Tag) -> dict[str, Any]:
    data = _HEAD + "".join(json.dumps(line) + "\n" for line in lines).encode()
    digest = hashlib.sha256(data).hexdigest()
    key = _key(digest)
    store.write(key, data, tag)
    return {"path": key, "sha256": digest, "count": len(lines)}


def _key(digest: str) -> str:
    return f"{METADATA_DIR}/sources/{digest}.jsonl"


def _lines(store: GatedStore, ref: dict[str, Any], tag: Tag) -> Iterator[dict[str, Any]]:
    """Yield what was kept under a reference."""
    file = f"{store.url}/{ref['path']}"
    try:
        data = store.read(ref["path"], tag)
    except StoreError as error:
        if not is_lost(error):
            raise
        text = "what a dataset was made of cannot be read, or is gone"
        raise ManifestError(text, file=file, hint=_MEND) from error
    if hashlib.sha256(data).hexdigest() != ref["sha256"]:
        raise ManifestError("what a dataset was made of is damaged", file=file, hint=_MEND)
    lines = map(json.loads, io.BytesIO(data))
    head = next(lines)
    if head["format_version"] > FORMAT_VERSION:
        raise FormatVersionError(
            "what a dataset was made of is from a newer release",
            file=ref["path"],
            hint="pip install -U geodata-train",
        )
    yield from lines


def fresh_part(
    opened: Source,
    entries: Iterable[dict[str, Any]],
    store: GatedStore,
    reading: Reading,
    less: bool = False,
) -> tuple[Source | None, int]:
    """Return the source with the files alone that the dataset has not got, and how many it lost.

    The source is None if the dataset has all. Raises ConfigError naming a file that the dataset has
    from this source and that changed since, or, unless there may be `less`, that is gone.
    """
    mine = [entry["files"] for entry in entries if entry.get("source_id") == opened.source_id]
    if not mine:
        return opened, 0
    known: Iterable[Entry] = heapq.merge(*(_files(store, ref) for ref in mine))
    now: Iterable[Entry] = entries_of(opened.files)
    if not isinstance(opened.files, FileList):  # whose order is that of the names
        known, now = sorted(known), sorted(now)
    removed = 0

    def gone(name: bytes) -> None:
        nonlocal removed
        removed += 1
        if not less:
            hint = f"With --restart its records stay, and new files are added. {_OTHER}"
            raise _differs(name, "is no longer there", hint)

    added = {entry[0] for entry in _added(known, now, gone)}
    return _narrowed(opened, added, reading) if added else None, removed


def _files(store: GatedStore, ref: dict[str, Any]) -> Iterator[Entry]:
    """Yield the files of a stored list."""
    for file in _lines(store, ref, UNCLASSIFIED):
        yield os.fsencode(file["name"]), file["nbytes"], file["mtime_ns"]


def _added(
    known: Iterable[Entry], now: Iterable[Entry], gone: Callable[[bytes], None]
) -> Iterator[Entry]:
    """Yield the entries that are not among those known; `gone` is told of the known that left.

    Raises ConfigError where one is not as it was.
    """
    have = iter(known)
    old = next(have, None)
    for entry in now:
        while old is not None and entry[0] > old[0]:
            gone(old[0])
            old = next(have, None)
        if old is None or entry[0] < old[0]:
            yield entry
            continue
        if entry != old:
            raise _differs(old[0], "changed", _OTHER)
        old = next(have, None)
    while old is not None:
        gone(old[0])
        old = next(have, None)


def _differs(name: bytes, what: str, hint: str) -> ConfigError:
    return ConfigError(
        f"a file of this source {what} since the dataset took it",
        file=name.decode(errors="backslashreplace"),
        hint=hint,
    )


def _narrowed(opened: Source, names: Collection[bytes], reading: Reading) -> Source:
    """Return the source with the files of these names alone."""
    kind = f"{type(opened).__module__}:{type(opened).__qualname__}"
    if kind != KINDS[opened.kind] or not isinstance(opened.files, FileList):
        raise ConfigError(
            "files were added to this source, which can only be taken whole",
            file=str(opened.root),
            hint="Put the new ones into a folder of their own",
        )
    listing = list_files(opened.root, reading.encoding)
    kept = FileList(entry for entry in opened.files.entries() if entry[0] in names)
    listing = replace(listing, files=kept, ignored=opened.ignored)
    made: Source = type(opened)(listing, opened.source_id, reading)  # type: ignore[call-arg]
    return made
