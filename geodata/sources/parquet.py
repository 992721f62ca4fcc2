"""Parquet: one file, or the files of a folder tree; row groups are the parts it is read by.

The schemas of all files unite without loss; where types alone do not allow it (int64 with float64),
the ranges that the files state may. Dictionaries are decoded. Columns that stand in the names of
folders (`year=2024/`) are columns. A string column `__key__` is kept as the key where it is not
null. A row group is never held whole: it is read by pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from geodata.schema import SUBJECT
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.columns import DIFFERS, STATED, SUBJECTS, stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus
from geodata.sources.embedded import embedded_media, unpacked, unpacked_schema
from geodata.sources.footers import DAMAGE, Broken, all_null, group_batches, open_parquet, spans
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.partitions import partitions_of
from geodata.sources.stored import Rows, first_difference


class ParquetFiles(Corpus):
    """Parquet in one file, or in the files of a folder tree."""

    kind = "parquet"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._partitions = partitions_of(self.files.names())

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of row groups; a file without any, or without sense, is one empty run."""
        files = range(len(self.files))
        return [piece for index in files for piece in self._runs(index, target_bytes)]

    def scan(self, piece: Piece) -> Scan:
        """Note the file's schema, from its footer alone."""
        try:
            with self._open(piece) as file:
                groups = [file.metadata.row_group(i) for i in range(piece.start, piece.stop)]
                columns = self._stated(piece, file, groups)
        except Broken:
            return Scan(1, 0, file=piece.file)
        rows = sum(group.num_rows for group in groups)
        return Scan(rows, rows, columns=columns, file=piece.file)

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
        with file:
            media = embedded_media(file.schema_arrow)
            for group in range(piece.start, piece.stop):
                stop = rows.row + file.metadata.row_group(group).num_rows
                for batch in group_batches(file, group):
                    yield from rows.fit(unpacked(batch, media))
                rows.lose(stop - rows.row, "its row group cannot be read")

    def _open(self, piece: Piece) -> pq.ParquetFile:
        """Open the piece's file; raise Broken unless it has the row groups the listing saw."""
        if not self.named_in_utf8(piece.file):
            raise Broken(NOT_UTF8_NAME)
        file = open_parquet(self.path(piece.file))
        if piece.stop > file.num_row_groups or (piece.start == piece.stop < file.num_row_groups):
            file.close()
            raise Broken("the file changed since it was listed")
        return file

    def _stated(
        self, piece: Piece, file: pq.ParquetFile, groups: list[pq.RowGroupMetaData]
    ) -> dict[str, object]:
        schema = file.schema_arrow
        schema = unpacked_schema(schema, embedded_media(schema))
        several = len(self.files) > 1
        columns = stated(schema, spans(groups, schema) if several else {})
        columns += self._partitions.stated(self.files.name(piece.file), schema.names)
        subjects = SUBJECT in schema.names and not all_null(groups, SUBJECT)
        differs = self._difference(piece, file)
        return {STATED: columns, SUBJECTS: subjects, DIFFERS: differs}

    def _difference(self, piece: Piece, file: pq.ParquetFile) -> tuple[str, int] | None:
        """Return the column and row of the piece that first differ from the folders' names."""
        for name, value in self._partitions.of(self.files.name(piece.file)).items():
            row = 1
            for group in range(piece.start, piece.stop):
                if name not in file.schema_arrow.names:
                    break
                for array in _column(file, group, name):
                    place = first_difference(array, value)
                    if place is not None:
                        return name, row + place
                    row += len(array)
        return None

    def _runs(self, index: int, target_bytes: int) -> Iterator[Piece]:
        start, nbytes = 0, 0
        sizes = self._group_sizes(index)
        for group, size in enumerate(sizes):
            if nbytes and nbytes + size > target_bytes:
                yield Piece(index, 1, start, group, nbytes)
                start, nbytes = group, 0
            nbytes += size
        yield Piece(index, 1, start, len(sizes), nbytes)

    def _group_sizes(self, index: int) -> list[int]:
        try:
            with self._open(Piece(index, 1, 0, 1, 0)) as file:
                groups = range(file.num_row_groups)
                return [file.metadata.row_group(i).total_byte_size for i in groups]
        except Broken:
            return []


def _column(file: pq.ParquetFile, group: int, name: str) -> Iterator[pa.Array]:
    """Yield a column of a row group, as far as it can be read."""
    try:
        for batch in file.iter_batches(4096, row_groups=[group], columns=[name], use_threads=False):
            batch.validate(full=True)
            yield batch.column(0)
    except DAMAGE:
        return
