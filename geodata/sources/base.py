"""What a source of raw records is, and the registry of the kinds.

Reading has two passes, so that the result never depends on the number of workers. `pieces` cuts
the corpus into runs that can be read on their own; `scan` visits a piece once and reports its rows
and the types it saw; with the schema merged from all scans, `read` yields the piece's records as
record batches. Pieces, scans and sources are small and travel between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the corpus: its name below the source's root, its size and modification time."""

    name: str
    nbytes: int
    mtime_ns: int


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


@dataclass(slots=True)
class Reject:
    """A record that cannot be converted: where it is, why, and its original bytes.

    `reason` is one line without the record's content; `raw` is kept for the quarantine only.
    """

    file: str
    row: int | None
    reason: str
    raw: bytes = b""


@dataclass(slots=True)
class Scan:
    """What one visit of a piece found.

    `rows` counts the candidates, rejected ones included. `columns` is the source's own account of
    the types seen (plain data); `labels` maps a label column to the names seen.
    """

    rows: int
    columns: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, set[str]] = field(default_factory=dict)


class Source(Protocol):
    """One kind of raw corpus at a path."""

    kind: str
    root: Path
    source_id: str
    """Starts every key; the name of the root unless the user chose another."""
    files: Sequence[SourceFile]
    """In the order of their names' bytes, which is the order of the records."""
    ignored: dict[str, int]
    """How many files below the root are of no concern to this kind, by suffix."""

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Cut the corpus into pieces of about `target_bytes`, in order."""

    def scan(self, piece: Piece) -> Scan:
        """Visit a piece once; never raises for a bad record."""

    def merge(self, scans: Sequence[Scan]) -> pa.Schema:
        """Return the schema (without system columns) that holds every value of all scans.

        Raises SchemaError naming both types, file and row where no lossless type exists.
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

        `first_row` is how many rows of the piece's first file precede it. Every candidate is
        yielded or rejected. Batches hold at most about 8 MiB.
        """


KINDS = {
    "jsonl": "geodata.sources.jsonl:JsonLines",
    "csv": "geodata.sources.tables:Csv",
    "parquet": "geodata.sources.tables:ParquetFiles",
    "text": "geodata.sources.text:TextTree",
    "images": "geodata.sources.folders:ImageFolder",
}
