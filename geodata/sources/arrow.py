"""Arrow IPC: files, streams, Feather 2, and the caches of the Hugging Face datasets library.

The schemas of all files unite without loss, as those of Parquet do; dictionaries are decoded;
columns that stand in the names of folders (`year=2024/`) are columns. The parts a file is read by
are its record batches. What is left of a file that was cut off is read. A batch that is not
compressed is never held whole; one that is must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus
from geodata.sources.embedded import embedded_media, unpacked, unpacked_schema
from geodata.sources.footers import Broken
from geodata.sources.ipc import IpcFile, IpcStream, open_ipc
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.partitions import partitions_of
from geodata.sources.stored import Rows, first_difference, integer_range


class ArrowFiles(Corpus):
    """Arrow IPC in one file, or in the files of a folder tree."""

    kind = "arrow"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._partitions = partitions_of(self.files.names())

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of record batches; a file without any, or without sense, is one empty run."""
        files = range(len(self.files))
        return [piece for index in files for piece in self._runs(index, target_bytes)]

    def scan(self, piece: Piece) -> Scan:
        """Count the rows and note the schema; the values are looked at only for their range."""
        try:
            file = self._open(piece)
        except Broken:
            return Scan(1, 0, file=piece.file)
        seen = _Seen(file.schema, several=len(self.files) > 1)
        values = self._partitions.of(self.files.name(piece.file))
        for batch in file.batches(piece.start, piece.stop):
            if isinstance(batch, str):
                seen.lost += 1
            else:
                seen.add(unpacked(batch, seen.media), values)
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
        name = self.shown(piece.file)
        try:
            file = self._open(piece)
        except Broken as error:
            reject(Reject(name, None, str(error)))
            return
        values = self._partitions.of(self.files.name(piece.file))
        rows = Rows(schema, name, f"{self.key(piece.file)}#", first_row, reject, values)
        media = embedded_media(file.schema)
        for batch in file.batches(piece.start, piece.stop):
            if isinstance(batch, str):
                reject(Reject(name, None, batch))
            else:
                yield from rows.fit(unpacked(batch, media))

    def _open(self, piece: Piece) -> IpcFile | IpcStream:
        if not self.named_in_utf8(piece.file):
            raise Broken(NOT_UTF8_NAME)
        return open_ipc(self.path(piece.file))

    def _runs(self, index: int, target_bytes: int) -> Iterator[Piece]:
        first, last, nbytes = 0, 0, 0
        for start, stop, size in self._cuts(index):
            if nbytes and nbytes + size > target_bytes:
                yield Piece(index, 1, first, last, nbytes)
                first, nbytes = start, 0
            first, last = (first if nbytes else start), stop
            nbytes += size
        yield Piece(index, 1, first, last, nbytes)

    def _cuts(self, index: int) -> list[tuple[int, int, int]]:
        try:
            return self._open(Piece(index, 1, 0, 0, 0)).cuts()
        except Broken:
            return []


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
