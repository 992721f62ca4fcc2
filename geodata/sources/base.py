"""What a source of raw records is.

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

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from geodata.sources.filelist import SourceFile


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
