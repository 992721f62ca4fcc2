"""Arrow IPC: files, streams, Feather 2, and the caches of the Hugging Face datasets library.

The parts a file is read by are its record batches; dictionaries are decoded. What is left of a file
that was cut off is read. A batch that is not compressed is never held whole; one that is must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa

from geodata.schema import SUBJECT
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.columns import (
    DIFFERS,
    STATED,
    SUBJECTS,
    Range,
    integer_fields,
    stated,
    unite_columns,
    wider,
)
from geodata.sources.corpus import Broken, Corpus
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.stored import first_difference, integer_range
from geodata.sources.tables.embedded import embedded_media, unpacked, unpacked_schema
from geodata.sources.tables.ipc import open_ipc
from geodata.sources.tables.partitions import partitions_of
from geodata.sources.tables.parts import Table, opened_at, rows_of, runs_of


class ArrowFiles(Corpus):
    """Arrow IPC in one file, or in the files of a folder tree."""

    kind = "arrow"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._partitions = partitions_of(self.files.names())

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of record batches; a file without any, or without sense, is one empty run."""
        return [
            piece
            for index in range(len(self.files))
            for piece in runs_of(self, index, _opened, target_bytes)
        ]

    def scan(self, piece: Piece) -> Scan:
        """Count the rows and note the schema; the values are looked at only for their range."""
        try:
            opened = opened_at(self, piece.file, _opened)
        except Broken:
            return Scan(1, 0, file=piece.file)
        values = self._partitions.of(self.files.name(piece.file))
        with opened as file:
            seen = _Seen(file.schema, several=len(self.files) > 1)
            for batch in file.batches(piece.start, piece.stop):
                if isinstance(batch, pa.RecordBatch):
                    seen.add(unpacked(batch, seen.media), values)
                else:
                    seen.lost += 1
        columns = stated(seen.schema, seen.spans)
        columns += self._partitions.stated(self.files.name(piece.file), seen.schema.names)
        about = {STATED: columns, SUBJECTS: seen.subjects, DIFFERS: seen.differs}
        return Scan(seen.rows + seen.lost, seen.rows, columns=about, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the files' schemas; SchemaError names both types and files."""
        return unite_columns(self, scans, first_wins=first_wins)

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can be read and fit `schema`."""
        yield from rows_of(self, piece, first_row, schema, reject, _opened, self._partitions)


def _opened(path: Path) -> AbstractContextManager[Table]:
    return nullcontext(open_ipc(path))


class _Seen:
    """What a scan saw of the batches of a piece."""

    def __init__(self, schema: pa.Schema, *, several: bool):
        self.media = embedded_media(schema)
        self.schema = unpacked_schema(schema, self.media)
        integers = integer_fields(self.schema) if several else []
        self.spans: dict[str, Range | None] = dict.fromkeys(integers, (0, 0))
        self.rows = self.lost = 0
        self.subjects = False
        self.differs: tuple[str, int] | None = None

    def add(self, batch: pa.RecordBatch, values: dict[str, pa.Scalar]) -> None:
        """Look at one more batch; `values` are those in the names of the file's folders."""
        names = batch.schema.names
        if SUBJECT in names:
            column = batch.column(names.index(SUBJECT))
            self.subjects |= column.null_count < len(column)
        for name, span in self.spans.items():
            self.spans[name] = wider(span, integer_range(batch.column(names.index(name))))
        for name, value in values.items():
            if name in names and self.differs is None:
                place = first_difference(batch.column(names.index(name)), value)
                self.differs = None if place is None else (name, self.rows + place + 1)
        self.rows += batch.num_rows
