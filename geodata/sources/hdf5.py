"""HDF5 of any layout: parallel arrays, one table, or a group for each record.

    /images (N, 28, 28), /labels (N,)           a record is an index of the first axis
    /train/images, /train/labels                columns `train.images` and `train.labels`
    /table (N,) of a compound type              its fields are the columns
    /sample_0001/{image, label}                 a record is a group, `<file>#sample_0001` its key

Shards of our own are read by our own reader, without h5py. Scalar datasets beside arrays,
attributes (but those of a group that is a record) and links that lead elsewhere are ignored, and
counted. What a pickle holds, as pandas stores the names of columns in blocks, is not read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.base import VERSION_KEY
from geodata.formats.hdf5.directory import HEAD_NBYTES
from geodata.schema import media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.columns import STATED, stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.footers import Broken
from geodata.sources.hdf5types import media_kind
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.shards import read_shard, scan_shard
from geodata.sources.stored import Rows

if TYPE_CHECKING:
    from geodata.sources.hdf5arrays import Arrays
    from geodata.sources.hdf5samples import Samples

_LAYOUT, _MEDIA, _REFUSED = "layout", "media", "refused"
"""Parts of `Scan.columns`: how the file is laid out; the kinds of media in each column of bytes;
why, with a hint, records cannot be made of it."""

_SAMPLES, _SHARD = "a group for each record", "one of our own shards"
_PEEKED = 16
_LOST = "its values cannot be read"
_CHANGED = "the file changed since it was listed"


class Hdf5Files(Corpus):
    """HDF5 in one file, or in the files of a folder tree."""

    kind = "hdf5"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._inside: Counter[str] | None = None

    @property
    def ignored(self) -> dict[str, int]:
        """Return what is of no concern: files by suffix, and what files hold beside records."""
        if self._inside is None:
            self.pieces(1 << 62)
        return {**self._outside, **(self._inside or {})}

    @ignored.setter
    def ignored(self, files: dict[str, int]) -> None:
        self._outside = files

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of rows or groups; a shard of our own, or a file without sense, is one."""
        ignored: Counter[str] = Counter()
        files = range(len(self.files))
        made = [piece for index in files for piece in self._runs(index, target_bytes, ignored)]
        self._inside = +ignored
        return made

    def scan(self, piece: Piece) -> Scan:
        """Note what the file holds, from its headers; of 64-bit integers the range as well."""
        path = self.path(piece.file)
        try:
            if self._is_own(piece.file):
                scan = scan_shard("hdf5", path, piece.file)
                scan.columns[_LAYOUT] = _SHARD
                return scan
            with self._opened(piece, Counter()) as found:
                return _scanned(found, piece, several=len(self.files) > 1)
        except Broken as error:
            about = {_REFUSED: error.args} if len(error.args) > 1 else {}
            return Scan(1, 0, columns=about, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the files' columns; SchemaError where that cannot be, or a file is no table."""
        layouts: dict[str, int] = {}
        media: dict[str, set[str]] = {}
        for scan in scans:
            if _REFUSED in scan.columns and not first_wins:
                reason, hint = scan.columns[_REFUSED]
                raise SchemaError(reason, file=self.shown(scan.file), hint=hint)
            if _LAYOUT in scan.columns:
                layouts.setdefault(scan.columns[_LAYOUT], scan.file)
            for name, kinds in scan.columns.get(_MEDIA, {}).items():
                media.setdefault(name, set()).update(kinds)
        if len(layouts) > 1:
            raise self._mixed(layouts)
        united = unite_columns(self, scans, first_wins=first_wins)
        return pa.schema([_as_media(column, media.get(column.name, set())) for column in united])

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that can be read and fit `schema`."""
        name, path, key = self.shown(piece.file), self.path(piece.file), self.key(piece.file)
        try:
            if self._is_own(piece.file):
                yield from read_shard("hdf5", path, schema, name, key, reject)
                return
            with self._opened(piece, Counter()) as found:
                rows = Rows(schema, name, f"{key}#", first_row, reject)
                for batch in _batches(found, piece, f"{key}#"):
                    if isinstance(batch, pa.RecordBatch):
                        yield from rows.fit(batch)
                    else:
                        rows.lose(*batch)
        except Broken as error:
            reject(Reject(name, None, error.args[0]))

    def _runs(self, index: int, target_bytes: int, ignored: Counter[str]) -> Iterator[Piece]:
        nbytes = self.files.nbytes(index)
        whole = Piece(index, 1, 0, 0, nbytes)
        try:
            if self._is_own(index):
                yield whole
                return
            with self._opened(whole, ignored) as found:
                cuts = list(found.cuts(target_bytes))
        except Broken:
            yield whole
            return
        for start, stop in cuts:
            yield Piece(index, 1, start, stop, nbytes * (stop - start) // cuts[-1][1])
        if not cuts:
            yield whole

    def _is_own(self, index: int) -> bool:
        """Return whether a file is a shard of our own: its first bytes are JSON that say so."""
        if not self.named_in_utf8(index):
            raise Broken(NOT_UTF8_NAME)
        try:
            with self.path(index).open("rb") as file:
                head = json.loads(file.read(HEAD_NBYTES))
        except OSError as error:
            raise Broken(unreadable(error)) from error
        except (ValueError, RecursionError):
            return False
        return isinstance(head, dict) and VERSION_KEY in head

    @contextmanager
    def _opened(self, piece: Piece, ignored: Counter[str]) -> Iterator[Arrays | Samples]:
        """Open a piece's file as what it is laid out as; Broken, with a hint, where it is nothing.

        Raises MissingExtra without h5py.
        """
        from geodata.sources.hdf5file import FAULTS, Refused, open_file

        path = self.path(piece.file)
        file = open_file(path)
        try:
            try:
                found = _laid_out(file, path, ignored)
            except Refused as error:
                raise Broken(str(error), error.hint) from None
            except FAULTS:
                raise Broken("the file is damaged") from None
            if piece.stop > found.count:
                raise Broken(_CHANGED)
            yield found
        finally:
            file.close()

    def _mixed(self, layouts: dict[str, int]) -> SchemaError:
        (one, first), (other, second) = list(layouts.items())[:2]
        return SchemaError(
            f"the files are laid out in several ways: {one} in {self.shown(first)}, {other} here",
            file=self.shown(second),
            hint="Convert them on their own",
        )


def _laid_out(file: Any, path: Path, ignored: Counter[str]) -> Arrays | Samples:
    from geodata.sources.hdf5arrays import Arrays
    from geodata.sources.hdf5layout import samples_in
    from geodata.sources.hdf5samples import Samples

    group = samples_in(file["/"].id)
    return Arrays(file, path, ignored) if group is None else Samples(group, path)


def _scanned(found: Arrays | Samples, piece: Piece, *, several: bool) -> Scan:
    from geodata.sources.hdf5samples import Samples

    if isinstance(found, Samples):
        looked = found.look(piece.start, piece.stop)
        about = {STATED: looked.stated(), _MEDIA: looked.media, _LAYOUT: _SAMPLES}
        return Scan(looked.rows, looked.rows, columns=about, file=piece.file)
    rows = piece.stop - piece.start
    spans = found.spans(piece.start, piece.stop) if several else {}
    about = {
        STATED: stated(found.schema, spans),
        _MEDIA: _media(found, piece.start, min(piece.start + _PEEKED, piece.stop)),
        _LAYOUT: found.layout,
    }
    return Scan(rows, rows, columns=about, file=piece.file)


def _media(found: Arrays, start: int, stop: int) -> dict[str, set[str]]:
    """Return the kinds of media that the first rows of each column of bytes hold."""
    kinds: dict[str, set[str]] = {}
    names = [field.name for field in found.schema if field.type == pa.binary()]
    for batch in found.batches(start, stop) if names else ():
        if isinstance(batch, pa.RecordBatch):
            for name in names:
                values = batch.column(batch.schema.names.index(name)).drop_null().to_pylist()
                kinds.setdefault(name, set()).update(media_kind(v[:16]) for v in values if v)
    return kinds


def _as_media(column: pa.Field, kinds: set[str]) -> pa.Field:
    """Return a column of bytes as one of media, if all that was seen is of one kind."""
    if column.type != pa.binary() or kinds not in ({"image"}, {"audio"}):
        return column
    return media_field(column.name, *kinds)


def _batches(
    found: Arrays | Samples, piece: Piece, key: str
) -> Iterator[pa.RecordBatch | tuple[int, str]]:
    """Yield the records of a piece; in the place of some that are lost how many, and why."""
    from geodata.sources.hdf5samples import Samples

    if isinstance(found, Samples):
        for batch in found.batches(piece.start, piece.stop, key):
            yield (1, batch) if isinstance(batch, str) else batch
    else:
        for rows in found.batches(piece.start, piece.stop):
            yield (rows, _LOST) if isinstance(rows, int) else rows
