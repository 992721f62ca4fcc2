"""Petastorm datasets as a corpus: Parquet files whose columns a Unischema says how to decode.

Row groups are the parts it is read by. Scalars have the type of the Unischema, encoded arrays are
tensors, of fixed shape where it states one; compressed images stay as they are. Columns that a
folder's name holds (`year=2024/…`) come first or last as the Unischema has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.schema import media_field, tensor_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Origin, Unfit, assemble, fitting
from geodata.sources.corpus import Broken, Corpus
from geodata.sources.listing import Listing
from geodata.sources.observed import check_name, with_text
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.petastorm.client import Died, Refused, worker_here
from geodata.sources.petastorm.environment import needed
from geodata.sources.tables.parquet import ParquetFiles
from geodata.sources.unite import conform

_ROW = "__row__"
_METADATA = "_common_metadata"
_MOST_DEATHS = 16
"""Of processes over one row group; then the rest of it is rejected."""


class PetastormDataset(Corpus):
    """The Parquet files of a Petastorm dataset."""

    kind = "petastorm"
    reads_own_files = False

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._parquet = ParquetFiles(listing, source_id, reading)
        needed(reading.cache)

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of row groups of the files that hold data."""
        pieces = self._parquet.pieces(target_bytes)
        return [piece for piece in pieces if _holds_data(self.files.name(piece.file))]

    def scan(self, piece: Piece) -> Scan:
        """Count the rows, from the file's footer alone: the types are those of the Unischema."""
        found = self._parquet.scan(piece)
        return Scan(found.rows, found.advance, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:  # noqa: ARG002
        """Return the schema that the Unischema means."""
        worker = worker_here(needed(self.reading.cache).interpreter)
        try:
            batch, described = worker.ask(
                {"do": "describe", "root": str(self.root)}, {"file": _METADATA}
            )
        except Refused as error:
            raise SchemaError(str(error), file=f"{self.root}/{_METADATA}") from error
        except Died as death:
            raise death.as_error({"file": f"{self.root}/{_METADATA}"}) from None
        for column in described:
            check_name(column["name"], (0, 0), self.files)
        return with_text([_field(column, batch.schema) for column in described])

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that can be decoded and fit `schema`."""
        name = self.shown(piece.file)
        try:
            with self._parquet.open_piece(piece) as file:
                groups = range(piece.start, piece.stop)
                counts = [file.metadata.row_group(group).num_rows for group in groups]
        except Broken as error:
            reject(Reject(name, None, str(error)))
            return
        for group, count in zip(groups, counts, strict=True):
            yield from self._group(piece.file, group, first_row, count, schema, reject)
            first_row += count

    def _group(
        self,
        index: int,
        group: int,
        first_row: int,
        count: int,
        schema: pa.Schema,
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group; those that it does not give are rejected.

        Where the process ends it is asked for the rest; at the same row again, that is rejected.
        """
        name = self.shown(index)
        missing = set(range(count))
        died_at: list[int] = []

        def refuse(row: int, reason: str) -> None:
            missing.discard(row)
            reject(Reject(name, first_row + row + 1, reason))

        lost = "its row group cannot be read"
        while missing and len(died_at) < _MOST_DEATHS:
            try:
                for frame in self._told(index, group, min(missing), slow=bool(died_at)):
                    if isinstance(frame, pa.RecordBatch):
                        rows = frame.column(_ROW).to_pylist()
                        missing.difference_update(rows)
                        build = _Builder(schema, frame, self.key(index), name, first_row)
                        yield from fitting(
                            build,
                            len(rows),
                            lambda i, why, rows=rows: refuse(rows[i], why),  # type: ignore[misc]
                        )
                    elif isinstance(frame, dict):
                        refuse(frame["row"], frame["reason"])
                break
            except Refused as error:
                lost = str(error)
                break
            except Died as death:
                lost = str(death)
                row = min(missing, default=count)
                if row in died_at:
                    refuse(row, lost)
                died_at.append(row)
        for row in sorted(missing):
            refuse(row, lost)

    def _told(self, index: int, group: int, first: int, *, slow: bool) -> Iterator[Any]:
        """Yield what is told of a row group from the row `first` on, row by row if `slow`."""
        request = {
            "do": "read",
            "root": str(self.root),
            "path": str(self.path(index)),
            "values": _folder_values(self.files.name(index)),
            "group": group,
            "first": first,
            "slow": slow,
        }
        worker = worker_here(needed(self.reading.cache).interpreter)
        yield from worker.ask(request, {"file": self.shown(index), "unit": group})


class _Builder:
    """Makes batches of some rows of a batch that the worker sent."""

    def __init__(
        self, schema: pa.Schema, batch: pa.RecordBatch, key: str, file: str, first_row: int
    ):
        self._schema, self._batch, self._key, self._file = schema, batch, key, file
        self._first_row = first_row

    def __call__(self, rows: Sequence[int]) -> pa.RecordBatch:
        """Return the batch of these rows; raise Unfit if one does not fit."""
        batch = self._batch
        if len(rows) < batch.num_rows:
            batch = batch.take(pa.array(rows, pa.int64()))
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise Unfit("a string is not UTF-8, or a value is malformed") from error
        columns = {
            name: self._fitted(name, array)
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
            if name != _ROW
        }
        numbers = [self._first_row + row + 1 for row in batch.column(_ROW).to_pylist()]
        keys = [f"{self._key}#{number}" for number in numbers]
        return assemble(self._schema, keys, columns, Origin(self._file, numbers))

    def _fitted(self, name: str, array: pa.Array) -> pa.Array:
        index = self._schema.get_field_index(name)
        if index < 0:
            raise Unfit(f"'{name}' is not in the schema")
        kind = self._schema.field(index).type
        if isinstance(kind, pa.FixedShapeTensorType):
            return pa.ExtensionArray.from_storage(kind, conform(array, kind.storage_type, name))
        return conform(array, kind, name)


def _field(column: dict[str, Any], sent: pa.Schema) -> pa.Field:
    """Return a column of the dataset's schema."""
    name, kind = column["name"], sent.field(column["name"]).type
    if column["role"] == "image":
        return media_field(name, "image")
    if column["role"] == "fixed":
        return pa.field(name, pa.fixed_shape_tensor(kind.value_type, column["shape"]))
    if column["role"] == "varying":
        return tensor_field(name, kind.field("data").type.value_type)
    return pa.field(name, kind)


def _holds_data(name: str) -> bool:
    return not PurePosixPath(name).name.startswith("_")


def _folder_values(name: str) -> dict[str, str]:
    """Return the values that stand in the names of a file's folders."""
    parts = [part.partition("=") for part in PurePosixPath(name).parts[:-1]]
    return {unquote(column): unquote(value) for column, equals, value in parts if equals}
