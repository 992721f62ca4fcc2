"""What a source of raw records is, and the registry of the kinds.

Reading has two passes, so that the result never depends on the number of workers. `pieces` cuts
the corpus into runs that can be read on their own; `scan` visits a piece once and reports its rows
and the types it saw; with the schema merged from all scans, `read` yields the piece's records as
record batches. Pieces, scans and sources are small and travel between processes.

Keys are `<source id>/<file name>` where a file is a record, `<source id>/<file name>#<row>` where
it holds rows, counted from 1: lines of JSONL (blank ones too), records of CSV and Parquet, items of
a JSON value; `<source id>/<file name>/<key>` for a sample of a tar. With a single file its name
stands for the source id, and the id alone for both. A zip archive is a folder, of its own name
where it lies among files; compressed files keep their suffix.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from geodata.errors import ConfigError
from geodata.sources.compressed import SUFFIXES as PACKED
from geodata.sources.listing import Listing, SourceFile, list_files, suffix_of
from geodata.sources.lookup import folder_of, stem_of
from geodata.sources.options import ARCHIVED, AS_FOUND, TABLED, Reading

__all__ = [
    "AS_FOUND",
    "KINDS",
    "SUFFIXES",
    "Listing",
    "OnDisk",
    "Piece",
    "Reading",
    "Reject",
    "Scan",
    "Source",
    "SourceFile",
    "first_rows",
    "list_files",
    "open_source",
    "recognise",
]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of records: files [file, file + files) of the listing, or a part of one file.

    `start` and `stop` are what the source makes of them (byte offsets, row groups); `nbytes` is
    about how much raw data it holds, for cutting tasks of even size.
    """

    file: int
    files: int
    start: int
    stop: int
    nbytes: int

    @property
    def numbers(self) -> range:
        """Return the numbers of its files in the listing."""
        return range(self.file, self.file + self.files)


@dataclass(slots=True)
class Reject:
    """A record that cannot be converted: where it is, why, and its original bytes.

    `reason` is one line without the record's content; `raw` is kept for the quarantine only. An
    `unfit` one is sound: it is the schema that does not hold it.
    """

    file: str
    row: int | None
    reason: str
    raw: bytes = b""
    unfit: bool = False


@dataclass(slots=True)
class Scan:
    """What one visit of a piece found.

    `rows` counts the candidates, rejected ones included; `advance` is how far the piece moves
    `first_row` for the file's next piece (lines, blank ones too, where rows are lines). `columns`
    is the source's own account of the types seen; `labels` maps a label column to the names seen;
    `file` is the piece's first file. `encodings` are those recognised, each with its confidence, by
    the files' names; `ignored` counts what is of no concern within the files, by what it is.
    """

    rows: int
    advance: int
    columns: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, set[str]] = field(default_factory=dict)
    file: int = 0
    encodings: dict[str, tuple[str, float]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


OnDisk = tuple[str, int | None, int]
"""A path, and the size and modification time in ns of what was found there at the listing, 0 and 0
where nothing was. Of a member of an archive all is of the archive, and the size is not known."""


class Source(Protocol):
    """One kind of raw corpus at a path."""

    kind: str
    root: Path
    source_id: str
    """Starts every key; the name of the root unless the user chose another."""
    files: Sequence[SourceFile]
    """In the order of their names' bytes, which is the order of the records."""
    glances: bool
    """Whether a scan opens no file."""
    reads_own_files: bool
    """Whether a piece is read from the files that it names alone; else from any, or from others."""
    checks_as_it_reads: bool
    """Whether `read` itself raises ConfigError for a file that is not as it was listed."""

    @property
    def ignored(self) -> dict[str, int]:
        """Return how many files below the root are of no concern to this kind, by suffix."""

    def on_disk(self, index: int) -> OnDisk:
        """Return where the file `index` of the listing lies, and what tells whether it changed."""

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Cut the corpus into pieces of about `target_bytes`, in order."""

    def scan(self, piece: Piece) -> Scan:
        """Visit a piece once; never raises for a bad record."""

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Return the schema (without system columns) that holds every value of all scans.

        `scans` are those of all pieces, in order. Where no lossless type exists: SchemaError naming
        both types, file and row; or, when `first_wins`, the type seen first, and `read` rejects the
        records that do not fit it.
        """

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the piece's records with `__key__`, fitted to the dataset's `schema`.

        `first_row` is how many row numbers of the piece's first file precede it (`first_rows`).
        Every candidate is yielded or rejected. Batches hold at most about 8 MiB.
        """


@runtime_checkable
class Countable(Protocol):
    """A source that counts records in far less time than it looks at what they hold.

    Each that `read` rejects because of the schema it marks as `unfit`.
    """

    def count(self, piece: Piece) -> Scan:
        """Visit a piece once; tell what `scan` does but for the columns."""


def first_rows(scans: Sequence[Scan]) -> list[int]:
    """Return `first_row` for each piece, from the scans of all pieces in order."""
    used: Counter[int] = Counter()
    firsts = []
    for scan in scans:
        firsts.append(used[scan.file])
        used[scan.file] += scan.advance
    return firsts


KINDS = {
    "jsonl": "geodata.sources.jsonl:JsonLines",
    "csv": "geodata.sources.delimited:Csv",
    "parquet": "geodata.sources.parquet:ParquetFiles",
    "text": "geodata.sources.text:TextTree",
    "images": "geodata.sources.folders:ImageFolder",
    "audio": "geodata.sources.audio:AudioFolder",
    "webdataset": "geodata.sources.webdataset:WebDatasetTars",
    "hdf5": "geodata.sources.hdf5:Hdf5Files",
    "tfrecord": "geodata.sources.tfrecord:TfRecordFiles",
    "arrow": "geodata.sources.arrow:ArrowFiles",
    "petastorm": "geodata.sources.petastorm:PetastormDataset",
    "function": "geodata.sources.function:FunctionSource",
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

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TO_UNPACK = (*PACKED, ".zip", ".tar", ".7z", ".rar")
_MOST_METADATA = 64 << 20
"""Bytes of common metadata that are looked through."""

_CHOICES = f"Say what it is with --kind {' | '.join(KINDS)}"


def location(source: str | Path, opened: Source) -> str:
    """Return where a source lies, for plans and reports; what is not UTF-8 in it is escaped."""
    path = Path(source)
    path = path.resolve() if ".." in path.parts else path.absolute()
    escaped = os.fsencode(path).decode(errors="backslashreplace")
    return str(source) if opened.kind == "function" else escaped


def open_source(
    source: str | Path,
    *,
    kind: str | None = None,
    source_id: str | None = None,
    reading: Reading = AS_FOUND,
) -> Source:
    """Return the corpus at a path, loading the packages of its kind now.

    Without `kind` it is recognised; text by choice takes files of every suffix, and a single file
    is what `kind` says. `module:function` where no such file lies is a function of the user's.
    Raises ConfigError where there is nothing of that kind, or `reading` is not for it.
    """
    path = Path(source)
    if kind == "function" or (kind is None and _names_function(str(source))):
        from geodata.sources.function import FunctionSource

        reading.check("function")
        return FunctionSource(str(source), source_id, reading)
    listing = list_files(path, reading.encoding)
    chosen = kind or _kind_of(listing)
    if chosen not in KINDS:
        raise ConfigError(f"no kind of source '{chosen}'", hint=f"Known: {', '.join(KINDS)}")
    if chosen not in ZIPPED:
        listing = _outside_archives(listing, chosen)
    traits = [ARCHIVED] if listing.archives else []
    if chosen in ("images", "audio"):
        from geodata.sources.mediafiles import table_kind
        from geodata.sources.mediatable import table_of

        table = table_of(listing, reading)
        if table is not None:
            from geodata.sources.mediatable import MediaTable

            reading.check(chosen, *traits, TABLED, table_kind(table))
            return MediaTable(listing, _checked_id(path, source_id), reading, chosen, table)
    reading.check(chosen, *traits)
    if not listing.single and kind != "text":
        suffixes = SUFFIXES["parquet" if chosen == "petastorm" else chosen]
        if not listing.only(suffixes).files:
            raise _unclear(f"the folder holds no {chosen}", listing)
        listing = listing.only(suffixes | BESIDE.get(chosen, frozenset()))
    module, _, attribute = KINDS[chosen].partition(":")
    make = getattr(import_module(module), attribute)
    made: Source = make(listing, _checked_id(path, source_id), reading)
    return made


def _outside_archives(listing: Listing, kind: str) -> Listing:
    outside = listing.without_archives()
    if not outside.files:
        raise ConfigError(
            f"{kind} is not read inside zip archives",
            file=str(listing.root),
            hint="Unpack it first",
        )
    return outside


def _names_function(source: str) -> bool:
    """Return whether a source that is no path has the form module:function."""
    return bool(_FUNCTION.fullmatch(source)) and not Path(source).exists()


def recognise(path: Path) -> str:
    """Return the kind of the corpus at `path`: by suffix, or by that of nearly all its files.

    Raises ConfigError listing the files by suffix where no kind clearly holds them.
    """
    return _kind_of(list_files(path))


def _kind_of(listing: Listing) -> str:
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
        raise _unclear("cannot tell the kind of corpus", listing)
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


def _unclear(message: str, listing: Listing) -> ConfigError:
    suffixes = listing.suffixes()
    counts = ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in suffixes.most_common())
    hint = "Unpack it first" if all(s.endswith(_TO_UNPACK) for s in suffixes) else _CHOICES
    return ConfigError(f"{message}: {counts}", file=str(listing.root), hint=hint)


def _checked_id(path: Path, source_id: str | None) -> str:
    """Return the chosen id, or the name of the file or folder at `path`."""
    chosen = path.absolute().name if source_id is None else source_id
    if chosen in ("", ".", "..") or "/" in chosen or not _is_utf8(chosen):
        raise ConfigError(
            "the source needs an id: a name without slashes, in UTF-8",
            file=str(path),
            hint="Choose one with --source-id",
        )
    return chosen


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
