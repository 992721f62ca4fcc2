"""The kinds of corpora, the files of each, and how the kind of a folder is recognised."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from geodata.errors import ConfigError
from geodata.sources.compressed import SUFFIXES as PACKED
from geodata.sources.listing import Listing, list_files, suffix_of
from geodata.sources.lookup import folder_of, stem_of

KINDS = {
    "jsonl": "geodata.sources.text.jsonl:JsonLines",
    "csv": "geodata.sources.text.delimited:Csv",
    "parquet": "geodata.sources.tables.parquet:ParquetFiles",
    "text": "geodata.sources.text.tree:TextTree",
    "images": "geodata.sources.media.folders:ImageFolder",
    "audio": "geodata.sources.media.audio:AudioFolder",
    "webdataset": "geodata.sources.webdataset.source:WebDatasetTars",
    "hdf5": "geodata.sources.hdf5.source:Hdf5Files",
    "tfrecord": "geodata.sources.tfrecord.source:TfRecordFiles",
    "arrow": "geodata.sources.tables.arrow:ArrowFiles",
    "petastorm": "geodata.sources.petastorm:PetastormDataset",
    "function": "geodata.sources.function.source:FunctionSource",
}

COMPRESSED = frozenset({"jsonl", "csv", "text", "webdataset", "tfrecord"})
"""Kinds whose files may be compressed: a suffix of compression follows theirs."""

ZIPPED = frozenset({"jsonl", "csv", "text", "images", "audio"})
"""Kinds whose files may lie in zip archives."""

_BARE_SUFFIXES = {
    "jsonl": frozenset({".jsonl", ".ndjson", ".json"}),
    "csv": frozenset({".csv", ".tsv"}),
    "parquet": frozenset({".parquet", ".pq"}),
    "text": frozenset({".txt", ".text", ".md", ".rst", ""}),
    "images": frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"}),
    "audio": frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".m4a", ".aac"}),
    "webdataset": frozenset({".tar", ".tgz"}),
    "hdf5": frozenset({".h5", ".hdf5", ".he5"}),
    "tfrecord": frozenset({".tfrecord", ".tfrecords", ".tfrec"}),
    "arrow": frozenset({".arrow", ".arrows", ".feather", ".ipc"}),
}

SUFFIXES = {
    kind: bare
    | {suffix + packed for suffix in bare for packed in PACKED if suffix and kind in COMPRESSED}
    for kind, bare in _BARE_SUFFIXES.items()
}
"""Of the files that each kind takes."""

BESIDE = {"audio": frozenset({".txt", ".lab", ".tsv"}), "petastorm": frozenset({""})}
"""Of the files that a kind looks into beside its own, and counts as ignored if of no use."""

TABLES = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet")
"""Names of tables that name media files, if they have the column `file_name`."""

_TO_UNPACK = (*PACKED, ".zip", ".tar", ".7z", ".rar")
_MOST_METADATA = 64 << 20
"""Bytes of common metadata that are looked through."""

_CHOICES = f"Say what it is with --kind {' | '.join(KINDS)}"


def recognise(path: Path) -> str:
    """Return the kind of the corpus at `path`: by suffix, or by that of nearly all its files.

    Raises ConfigError listing the files by suffix where no kind clearly holds them.
    """
    return kind_of(list_files(path))


def kind_of(listing: Listing) -> str:
    """Return the kind of nine in ten of the files that have one, and of half of all.

    What tells of media beside it does not count where they are that. Parquet with a Unischema
    beside it is Petastorm's.
    """
    if not listing.single and _has_unischema(listing.root):
        return "petastorm"
    suffixes = listing.suffixes()
    kind = _clear_kind(suffixes, listing.single)
    if kind is None and not listing.single:
        kind = _clear_kind(suffixes - _about_media(listing), single=False)
        kind = kind if kind in ("images", "audio") else None
    if kind is None:
        raise unclear("cannot tell the kind of corpus", listing)
    return kind


def _clear_kind(suffixes: Counter[str], single: bool) -> str | None:
    found: Counter[str] = Counter()
    for suffix, count in suffixes.items():
        for kind, known in SUFFIXES.items():
            if suffix in known and not (single and suffix == ""):
                found[kind] += count
    for kind, count in found.most_common(1):
        if count * 2 > suffixes.total() and count * 10 >= found.total() * 9:
            return kind
    return None


def _about_media(listing: Listing) -> Counter[str]:
    """Count the files by suffix that are of use to media beside them: tables and transcripts."""
    spoken: set[str] = set()
    for name in listing.files.names():
        if suffix_of(os.fsencode(name)) in SUFFIXES["audio"]:
            spoken.add(stem_of(name))
    folders = {folder_of(stem) for stem in spoken}
    about: Counter[str] = Counter()
    for name in listing.files.names():
        suffix = suffix_of(os.fsencode(name))
        listed = name.endswith(".trans.txt") and folder_of(name) in folders
        beside = suffix in BESIDE["audio"] and (listed or stem_of(name) in spoken)
        about[suffix] += beside or name.rpartition("/")[2] in TABLES
    return about


def _has_unischema(root: Path) -> bool:
    """Return whether Petastorm's pickled schema, which is not opened here, lies in a folder."""
    with suppress(OSError), (root / "_common_metadata").open("rb") as file:
        return b"dataset-toolkit.unischema.v1" in file.read(_MOST_METADATA)
    return False


def unclear(message: str, listing: Listing) -> ConfigError:
    suffixes = listing.suffixes()
    counts = ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in suffixes.most_common())
    hint = "Unpack it first" if all(s.endswith(_TO_UNPACK) for s in suffixes) else _CHOICES
    return ConfigError(f"{message}: {counts}", file=str(listing.root), hint=hint)
