"""Parquet: one file, or the files of a folder tree; row groups are the parts it is read by.

What unites the files' schemas is what their footers say; where types alone do not allow it (int64
with float64), the ranges stated there may. Dictionaries are decoded. A string column `__key__` is
kept as the key where it is not null. A row group is never held whole: it is read by pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geodata.errors import ConfigError
from geodata.schema import SUBJECT
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.columns import DIFFERS, STATED, SUBJECTS, stated, unite_columns
from geodata.sources.corpus import (
    CHANGED,
    NOT_UTF8_NAME,
    Broken,
    Corpus,
)
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.stored import first_difference
from geodata.sources.tables.embedded import embedded_media, unpacked_schema
from geodata.sources.tables.footers import (
    DAMAGE,
    all_null,
    can_be_read,
    group_batches,
    open_parquet,
    sound_footers,
    spans,
)
from geodata.sources.tables.partitions import partitions_of
from geodata.sources.tables.parts import Cut, Found, Table, rows_of, runs_of
from geodata.sources.unchanged import check_unchanged


class ParquetFiles(Corpus):
    """Parquet in one file, or in the files of a folder tree."""

    kind = "parquet"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._partitions = partitions_of(self.files.names())

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of row groups; a file without any, or without sense, is one empty run."""
        found = enumerate(sound_footers(map(self.path, range(len(self.files)))))
        return [
            piece
            for index, sound in found
            for piece in runs_of(self, index, partial(_opened, sound=sound), target_bytes)
        ]

    def scan(self, piece: Piece) -> Scan:
        """Note the file's schema, from its footer alone."""
        try:
            with self.open_piece(piece) as file:
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
        opening = partial(_opened, sound=self._known_sound(piece))
        yield from rows_of(self, piece, first_row, schema, reject, opening, self._partitions)

    def open_piece(self, piece: Piece) -> pq.ParquetFile:
        """Open the piece's file; raise Broken unless it has the row groups that `pieces` saw."""
        if not self.named_in_utf8(piece.file):
            raise Broken(NOT_UTF8_NAME)
        file = open_parquet(self.path(piece.file), sound=self._known_sound(piece))
        if not _has(file, piece.start, piece.stop):
            file.close()
            raise Broken(CHANGED)
        return file

    def _known_sound(self, piece: Piece) -> bool | None:
        """Return True if the file is the one whose row groups `pieces` saw, None if not known."""
        if piece.start < piece.stop:
            with suppress(ConfigError):
                check_unchanged(self, piece.numbers)
                return True
        return None

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
                for array in _column(file, group, name, self.path(piece.file)):
                    place = first_difference(array, value)
                    if place is not None:
                        return name, row + place
                    row += len(array)
        return None


class _Table:
    """A file that was opened; row groups are its parts."""

    def __init__(self, path: Path, sound: bool | None):
        self._path, self._file = path, open_parquet(path, sound=sound)
        self.schema: pa.Schema = self._file.schema_arrow

    def cuts(self) -> list[Cut]:
        """Return the row groups."""
        groups = range(self._file.num_row_groups)
        return [(i, i + 1, self._file.metadata.row_group(i).total_byte_size) for i in groups]

    def batches(self, start: int, stop: int) -> Iterator[Found]:
        """Yield the rows of the groups [start, stop), where the file has them still."""
        if not _has(self._file, start, stop):
            yield CHANGED
            return
        for group in range(start, stop):
            left = self._file.metadata.row_group(group).num_rows
            for batch in group_batches(self._file, group, self._path):
                left -= batch.num_rows
                yield batch
            yield left, "its row group cannot be read"

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _opened(path: Path, *, sound: bool | None) -> AbstractContextManager[Table]:
    return closing(_Table(path, sound))


def _has(file: pq.ParquetFile, start: int, stop: int) -> bool:
    """Return whether a file has these row groups, of which none are none in all of it."""
    return stop <= file.num_row_groups and (start < stop or not file.num_row_groups)


def _column(file: pq.ParquetFile, group: int, name: str, path: Path) -> Iterator[pa.Array]:
    """Yield a column of a row group, as far as it can be read."""
    if not can_be_read(path, file.metadata.row_group(group)):
        return
    try:
        for batch in file.iter_batches(4096, row_groups=[group], columns=[name], use_threads=False):
            batch.validate(full=True)
            yield batch.column(0)
    except DAMAGE:
        return
