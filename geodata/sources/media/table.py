"""Media files named by the rows of a table, whose columns come with them; one record a row.

The table is CSV, TSV, line JSON or Parquet and is read as such. `metadata.csv` (.tsv, .jsonl,
.parquet) at the root with a column `file_name` is found by itself. A row gives a file by its path
from the table's folder; the suffix may be missing where one media file alone has that name, and the
folder where all media lie in one. Several rows may name one file. All columns of the table stay;
what they say of sizes and lengths goes before what the headers say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError, MissingExtra, SchemaError
from geodata.schema import KEY, SUBJECT, is_origin, media_field, origin_field
from geodata.sources.base import OnDisk, Piece, Reject, Scan, Source
from geodata.sources.batches import BATCH_BYTES, Unfit, assemble, bounded
from geodata.sources.corpus import Corpus
from geodata.sources.filelist import Entry, FileList, SourceFile
from geodata.sources.kinds import KINDS, SUFFIXES
from geodata.sources.listing import Listing
from geodata.sources.lookup import folder_of, index_of
from geodata.sources.media.audio import ABOUT, TRANSCRIPT, about_audio
from geodata.sources.media.files import (
    MediaFiles,
    chosen_table,
    found_table,
    media_and_table,
    table_kind,
)
from geodata.sources.media.headers import image_size
from geodata.sources.options import Reading

NOT_NAMED = "not in the table"

_ORIGIN = "__origin__"
_WHOLE = 1 << 62
_MOST_PARTS = 64
"""Into how many parts a table is cut that has to be read from its start for each."""
_RATIO = 4
"""How many bytes of media outweigh reading a byte of the table once more."""

_Rejecting = Callable[[Reject], None]


@dataclass(frozen=True, slots=True)
class _Medium:
    """What tells images from audio: the column, what headers say, how they are read."""

    column: str
    about: Sequence[pa.Field]
    look: Callable[[bytes], Sequence[Any]]

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Return the usual names of the column that names files; the medium's own comes last."""
        return "file_name", "filename", "file", "path", f"{self.column}_path", self.column


_SIZE = [pa.field("width", pa.int32()), pa.field("height", pa.int32())]
_MEDIA = {
    "images": _Medium("image", _SIZE, image_size),
    "audio": _Medium("audio", ABOUT, about_audio),
}


@dataclass(slots=True)
class _Media:
    """Rows of a batch, with the bytes of their files and what the headers say."""

    rows: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    about: list[Sequence[Any]] = field(default_factory=list)
    nbytes: int = 0

    def is_full(self, more: int) -> bool:
        """Return whether a file of `more` bytes belongs in the next batch."""
        return bool(self.rows) and self.nbytes + more > BATCH_BYTES

    def add(self, row: int, data: bytes, about: Sequence[Any]) -> None:
        """Take the file of a row."""
        self.rows.append(row)
        self.contents.append(data)
        self.about.append(about)
        self.nbytes += len(data)


def table_of(listing: Listing, reading: Reading) -> str | None:
    """Return the table that names the media files of a listing, if there is one.

    It is the name of one of the files, or the path of one outside. Raises ConfigError for a chosen
    one that is not there, and where several could be meant.
    """
    return found_table(listing) if reading.table is None else chosen_table(listing, reading.table)


class MediaTable:
    """The rows of a table, each with the media file that it names."""

    glances = False
    reads_own_files = False
    checks_as_it_reads = False

    def __init__(self, listing: Listing, source_id: str, reading: Reading, kind: str, table: str):
        if kind == "images":
            _require_pillow()
        inside = index_of(listing.files, table) is not None
        media, found = media_and_table(listing, SUFFIXES[kind], table)
        if not media.files:
            raise ConfigError(f"the folder holds no {kind}", file=str(listing.root))
        self.kind, self.root, self.source_id = kind, listing.root, source_id
        files = FileList([*media.files.entries(), *_located(found, inside)])
        self.files: Sequence[SourceFile] = files
        self._reading, self._table_name, self._table_kind = reading, table, table_kind(table)
        self._table = _opened(self._table_kind, found, source_id, reading)
        self._media = Corpus(media, source_id, reading)
        self._listed = Corpus(replace(media, files=files), source_id, reading)
        self._finder = MediaFiles(media.files, folder_of(table) if inside else "")

    @cached_property
    def ignored(self) -> dict[str, int]:
        """Return the files of no concern by suffix; counts, once, the media that no row names."""
        unnamed = len(self._media.files) - len(self._named())
        return {**self._media.ignored, **({NOT_NAMED: unnamed} if unnamed else {})}

    def on_disk(self, index: int) -> OnDisk:
        """Return where a medium or the table lies, its size and modification time."""
        if self.files[index].name == self._table_name:
            return self._table.on_disk(0)
        return self._listed.on_disk(index)

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return parts of the table that name about `target_bytes` of media, evenly shared.

        Lines are cut where they lie; other tables into runs of rows, each read from the start.
        """
        media = sum(map(self._media.files.nbytes, range(len(self._media.files))))
        table = max(1, self._table.files[0].nbytes)
        if self._table_kind == "jsonl":
            parts = self._table.pieces(max(1, target_bytes * table // max(media, table)))
            return [replace(part, nbytes=part.nbytes * media // table) for part in parts]
        rows = self._whole.rows
        many = min(_MOST_PARTS, media // target_bytes, media // (_RATIO * table), rows)
        bounds = [rows * i // max(1, many) for i in range(max(1, many) + 1)]
        return [
            Piece(0, 1, start, stop, (media + table) // max(1, many))
            for start, stop in pairwise(bounds)
        ]

    @cached_property
    def _whole(self) -> Scan:
        """Return the scan of the whole table, which is one piece."""
        return self._table.scan(self._all)

    @property
    def _all(self) -> Piece:
        (piece,) = self._table.pieces(_WHOLE)
        return piece

    def scan(self, piece: Piece) -> Scan:
        """Note the types of the table's columns; of runs of rows, the first notes all."""
        if self._table_kind == "jsonl":
            return self._table.scan(piece)
        rows = piece.stop - piece.start
        return Scan(rows, 0) if piece.start else replace(self._whole, rows=rows, advance=0)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Return the medium, the table's columns as their own kind has them, and the header's."""
        told = scans if self._table_kind == "jsonl" else scans[:1]
        columns = self._table.merge(told, first_wins=first_wins)
        medium = _MEDIA[self.kind]
        naming = self._naming(columns)
        if medium.column in columns.names and medium.column != naming:
            raise SchemaError(
                f"the table has a column '{medium.column}' that does not name the files",
                file=self._table_name,
                hint="Rename it, or say that it does with --file-column",
            )
        fields = [_as_medium(column) for column in columns if column.name != medium.column]
        about = [header for header in medium.about if header.name not in columns.names]
        return pa.schema([media_field(medium.column, medium.column), *fields, *about])

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: _Rejecting,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fit `schema` and whose files are whole."""
        naming = self._naming(schema)
        rows = self._rows(piece, first_row, self._table_schema(schema, naming), labels, reject)
        for batch in rows:
            for media in self._with_media(batch, batch.column(naming).to_pylist(), reject):
                yield from bounded(_joined(schema, batch, media, _MEDIA[self.kind]))

    def _naming(self, columns: pa.Schema) -> str:
        """Return the column that names the files; ConfigError if there is none."""
        chosen, medium = self._reading.file_column, _MEDIA[self.kind]
        usual = (chosen,) if chosen else medium.file_columns
        for name in usual:
            if name in columns.names and _names(columns.field(name), medium.column):
                return name
        what = f"no column '{chosen}' of strings" if chosen else "no column that names files"
        raise ConfigError(
            f"the table has {what}",
            file=self._table_name,
            hint=f"Choose one with --file-column: {', '.join(columns.names)}",
        )

    def _table_schema(self, schema: pa.Schema, naming: str) -> pa.Schema:
        """Return what to read of the table: the columns, those of the header null if not there."""
        long = self._table_kind == "parquet"
        fields = [f for f in schema if f.name != _MEDIA[self.kind].column and not is_origin(f)]
        if naming not in [f.name for f in fields]:
            fields.append(pa.field(naming, pa.large_string() if long else pa.string()))
        return pa.schema([*fields, origin_field(_ORIGIN)])

    def _rows(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: _Rejecting,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the piece's rows as the table has them."""
        if self._table_kind == "jsonl":
            yield from self._table.read(piece, first_row, schema, labels, reject)
            return

        def reject_own(bad: Reject) -> None:
            if piece.start < (bad.row or 1) <= piece.stop:
                reject(bad)

        for batch in self._table.read(self._all, 0, schema, labels, reject_own):
            numbers = pc.struct_field(batch.column(_ORIGIN), "row")
            if pc.min(numbers).as_py() > piece.stop:
                return
            own = pc.and_(pc.greater(numbers, piece.start), pc.less_equal(numbers, piece.stop))
            if pc.any(own).as_py():
                yield batch.filter(own)

    def _with_media(
        self, batch: pa.RecordBatch, names: Sequence[str | None], reject: _Rejecting
    ) -> Iterator[_Media]:
        """Yield the rows whose files are whole, about 8 MiB at a time."""
        look, origins = _MEDIA[self.kind].look, batch.column(_ORIGIN)
        media = _Media()
        for row, name in enumerate(names):
            data = b""
            try:
                data = self._media.content(self._finder.find(name))
                about = look(data)
            except Unfit as error:
                origin = origins[row].as_py()
                reject(Reject(origin["file"], origin["row"], str(error), data))
                continue
            if media.is_full(len(data)):
                yield media
                media = _Media()
            media.add(row, data, about)
        if media.rows:
            yield media

    def _named(self) -> set[int]:
        """Return the media files that rows name, by reading the table once more."""
        parts = self._table.pieces(_WHOLE)
        scans = [self._table.scan(part) for part in parts]
        columns = self._table.merge(scans, first_wins=True)
        naming, named = self._naming(columns), set()
        schema = pa.schema([pa.field(KEY, pa.string()), pa.field(SUBJECT, pa.string()), *columns])
        for part in parts:
            for batch in self._table.read(part, 0, schema, {}, _ignore):
                for name in batch.column(naming).to_pylist():
                    try:
                        named.add(self._finder.find(name))
                    except Unfit:
                        continue
        return named


def _located(table: Listing, inside: bool) -> Iterator[Entry]:
    """Yield the table's entry; one outside has its whole path for a name."""
    for name, *rest in table.files.entries():
        yield name if inside else os.fsencode(table.root / os.fsdecode(name)), *rest


def _opened(kind: str, listing: Listing, source_id: str, reading: Reading) -> Source:
    module, _, attribute = KINDS[kind].partition(":")
    made: Source = getattr(import_module(module), attribute)(listing, source_id, reading)
    return made


def _joined(
    schema: pa.Schema, batch: pa.RecordBatch, media: _Media, medium: _Medium
) -> pa.RecordBatch:
    """Return the records of these rows of a batch with their media."""
    rows = batch.take(pa.array(media.rows, pa.int64()))
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for told, values in zip(medium.about, zip(*media.about, strict=True), strict=True):
        if told.name in columns:
            columns[told.name] = _filled(columns[told.name], pa.array(values, told.type))
    columns[medium.column] = pa.array(media.contents, pa.binary())
    columns |= {f.name: columns[_ORIGIN] for f in schema if is_origin(f)}
    return assemble(schema, columns[KEY], columns)


def _filled(given: pa.Array, told: pa.Array) -> pa.Array:
    """Return the table's values, and what the headers tell where it has none."""
    whole = pa.types.is_integer(given.type) and pa.types.is_integer(told.type)
    if not given.null_count or not (whole or pa.types.is_floating(given.type)):
        return given
    return pc.coalesce(given, told.cast(given.type, safe=False))


def _names(column: pa.Field, medium: str) -> bool:
    """Return whether a column may name files: strings, or media that replaced such."""
    kind = column.type
    if column.name == medium and pa.types.is_binary(kind):
        return True
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_medium(column: pa.Field) -> pa.Field:
    """Return the field; a string named as transcripts are is a medium."""
    transcript = column.name == TRANSCRIPT and column.type == pa.string()
    return media_field(TRANSCRIPT, "text") if transcript else column


def _ignore(_: Reject) -> None:
    return


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
