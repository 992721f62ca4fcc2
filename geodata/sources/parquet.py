"""Parquet: one file, or the files of a folder tree; row groups are the parts it is read by.

The schemas of all files unite without loss; where types alone do not allow it (int64 with float64),
the ranges that the files state may. Dictionaries are decoded. A string column `__key__` is kept as
the key where it is not null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from geodata.errors import SchemaError
from geodata.schema import KEY, SUBJECT, SYSTEM, plain_type
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import BATCH_BYTES, Unfit, assemble, fitting
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus
from geodata.sources.footers import DAMAGE, Broken, all_null, integer_range, open_parquet
from geodata.sources.observed import INT64, UINT64, check_name, with_text
from geodata.sources.unite import Clash, bare, conform, united

_MOST_ROWS = 4096
_EXACT = 1 << 53
_KEPT_METADATA = (b"geodata.media", b"geodata.tensor")


@dataclass(slots=True)
class _Column:
    """What all files say of one column: its types in order, each with its first file; the files."""

    field: pa.Field
    types: list[tuple[pa.DataType, int]] = field(default_factory=list)
    files: set[int] = field(default_factory=set)

    def add(self, kind: pa.DataType, file: int) -> None:
        """Note one more file."""
        self.files.add(file)
        if not any(kind.equals(known) for known, _ in self.types):
            self.types.append((kind, file))


class ParquetFiles(Corpus):
    """Parquet in one file, or in the files of a folder tree."""

    kind = "parquet"

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of row groups; a file without any, or without sense, is one empty run."""
        files = range(len(self.files))
        return [piece for index in files for piece in self._runs(index, target_bytes)]

    def scan(self, piece: Piece) -> Scan:
        """Note the file's schema, from its footer alone."""
        try:
            with self._open(piece) as file:
                groups = [file.metadata.row_group(i) for i in range(piece.start, piece.stop)]
                schema = file.schema_arrow.remove_metadata()
        except Broken:
            return Scan(1, 0, file=piece.file)
        rows = sum(group.num_rows for group in groups)
        subjects = SUBJECT in schema.names and not all_null(groups, SUBJECT)
        columns = {"schema": schema, "subjects": subjects}
        return Scan(rows, rows, columns=columns, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the files' schemas; SchemaError names both types and files."""
        columns: dict[str, _Column] = {}
        for scan in scans:
            if scan.columns:
                self._check(scan)
                for column in scan.columns["schema"]:
                    if column.name not in SYSTEM:
                        known = columns.setdefault(column.name, _Column(_cleared(column)))
                        kind = bare(plain_type(column.type, column.name))
                        known.add(kind, scan.file)
        return with_text(
            [c.field.with_type(self._type_of(c, first_wins)) for c in columns.values()]
        )

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can be read and fit `schema`."""
        name, key = self.shown(piece.file), f"{self.key(piece.file)}#"
        try:
            file = self._open(piece)
        except Broken as error:
            reject(Reject(name, None, str(error)))
            return
        with file:
            row = first_row
            for group in range(piece.start, piece.stop):
                stop = row + file.metadata.row_group(group).num_rows
                for batch in _batches(file, group):
                    build = _Builder(schema, batch, key, row)
                    yield from fitting(
                        build,
                        batch.num_rows,
                        lambda i, why, row=row: reject(Reject(name, row + i + 1, why)),  # type: ignore[misc]
                    )
                    row += batch.num_rows
                for lost in range(row, stop):
                    reject(Reject(name, lost + 1, "its row group cannot be read"))
                row = stop

    def _open(self, piece: Piece) -> pq.ParquetFile:
        """Open the piece's file; raise Broken unless it has the row groups the listing saw."""
        if not self.named_in_utf8(piece.file):
            raise Broken(NOT_UTF8_NAME)
        file = open_parquet(self.path(piece.file))
        if piece.stop > file.num_row_groups or (piece.start == piece.stop < file.num_row_groups):
            file.close()
            raise Broken("the file changed since it was listed")
        return file

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

    def _check(self, scan: Scan) -> None:
        schema = scan.columns["schema"]
        where = {"file": self.shown(scan.file)}
        for name in schema.names:
            if name not in SYSTEM:
                check_name(name, (scan.file, 0), self.files)
            if schema.names.count(name) > 1:
                raise SchemaError("two columns have one name", column=name, **where)
        if KEY in schema.names and plain_type(schema.field(KEY).type, KEY) not in (
            pa.string(),
            pa.large_string(),
        ):
            raise SchemaError("the key is not a string", column=KEY, **where)
        if scan.columns["subjects"]:
            hint = "Rename the column; pseudonyms are made when records are tagged"
            raise SchemaError("the name is reserved", column=SUBJECT, hint=hint, **where)

    def _type_of(self, column: _Column, first_wins: bool) -> pa.DataType:
        kind, _ = column.types[0]
        for other, file in column.types[1:]:
            try:
                kind = united(kind, other, column.field.name, first_wins=False)
            except Clash:
                wide = self._by_range(column)
                if wide is not None:
                    return wide
                if not first_wins:
                    raise self._conflict(column, other, file) from None
                kind = united(kind, other, column.field.name, first_wins=True)
        return kind

    def _by_range(self, column: _Column) -> pa.DataType | None:
        """Return the type of numbers whose types alone have none, if what the files hold allows."""
        kinds = [kind for kind, _ in column.types]
        floats = any(pa.types.is_floating(kind) for kind in kinds)
        if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
            return None
        low = high = 0
        for file in sorted(column.files):
            found = integer_range(self.path(file), column.field.name)
            if found is None:
                return None
            low, high = min(low, found[0]), max(high, found[1])
        if floats:
            return pa.float64() if low >= -_EXACT and high <= _EXACT else None
        if high in INT64:
            return pa.int64()
        return pa.uint64() if low in UINT64 else None

    def _conflict(self, column: _Column, other: pa.DataType, file: int) -> SchemaError:
        for kind, first in column.types:
            try:
                united(kind, other, column.field.name, first_wins=False)
            except Clash as clash:
                return SchemaError(
                    f"the column holds {clash.one} (first in {self.shown(first)}) "
                    f"and {clash.other} (first in {self.shown(file)})",
                    column=clash.path,
                    file=self.shown(file),
                    hint="Mend the source, or keep the first type and reject the rest: "
                    "--on-error skip",
                )
        return SchemaError("the column holds types without a common one", column=column.field.name)


class _Builder:
    """Makes batches of some rows of a batch as it was read."""

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch, key: str, first_row: int):
        self._schema, self._batch, self._key, self._first_row = schema, batch, key, first_row

    def __call__(self, rows: Sequence[int]) -> pa.RecordBatch:
        """Return the batch of these rows; raise Unfit if one does not fit."""
        batch = self._batch
        if len(rows) < batch.num_rows:
            batch = batch.take(pa.array(rows, pa.int64()))
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Unfit("a string is not UTF-8, or a value is malformed") from error
        columns = {}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            index = self._schema.get_field_index(name)
            if index < 0:
                raise Unfit(f"'{name}' is not in the schema")
            columns[name] = conform(array, self._schema.field(index).type, name)
        keys = pa.array([f"{self._key}{self._first_row + i + 1}" for i in rows], pa.string())
        if KEY in columns:
            keys = pc.coalesce(columns[KEY], keys)
        return assemble(self._schema, keys, columns)


def _batches(file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, as far as it can be read."""
    about = file.metadata.row_group(group)
    width = max(1, about.total_byte_size // max(1, about.num_rows))
    size = max(1, min(_MOST_ROWS, BATCH_BYTES // width))
    try:
        yield from file.iter_batches(size, row_groups=[group], use_threads=False)
    except DAMAGE:
        return


def _cleared(column: pa.Field) -> pa.Field:
    """Return the field with no metadata but what says how its values are meant."""
    kept = {k: v for k, v in (column.metadata or {}).items() if k in _KEPT_METADATA}
    return pa.field(column.name, column.type, metadata=kept or None)
