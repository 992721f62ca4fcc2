"""HDF5 of any layout: parallel arrays, one table, or a group for each record.

    /images (N, 28, 28), /labels (N,)           a record is an index of the first axis
    /train/images, /train/labels                columns `train.images` and `train.labels`
    /table (N,) of a compound type              its fields are the columns
    /sample_0001/{image, label}                 a record is a group, `<file>#sample_0001` its key

Shards of our own are read by our own reader, without h5py. All others are read in a process of
their own (`hdf5asking`), which opens no other file: of what ends it the record is lost, or the file
is damaged. Scalar datasets beside arrays, attributes (but those of a group that is a record), links
that lead elsewhere and dimensions of netCDF are ignored, and counted. What a pickle holds, as
pandas stores the names of columns in blocks, is not read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

import pyarrow as pa

from geodata.errors import MissingExtra, SchemaError
from geodata.formats.base import VERSION_KEY
from geodata.formats.hdf5.directory import HEAD_NBYTES
from geodata.schema import media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.columns import STATED, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Broken, Corpus, unreadable
from geodata.sources.hdf5.asking import Asking
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.shards import read_shard, scan_shard
from geodata.sources.stored import Rows

_LAYOUT, _MEDIA, _REFUSED = "layout", "media", "refused"
"""Parts of `Scan.columns`: how the file is laid out; the kinds of media in each column of bytes;
why, with a hint, records cannot be made of it."""

_SHARD = "one of our own shards"


class Hdf5Files(Corpus):
    """HDF5 in one file, or in the files of a folder tree."""

    kind = "hdf5"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self._beside: dict[int, dict[str, int]] = {}
        """What a file holds beside records, which is told when it is cut."""

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of rows or groups; a shard of our own, or a file without sense, is one."""
        files = range(len(self.files))
        return [piece for index in files for piece in self._runs(index, target_bytes)]

    def scan(self, piece: Piece) -> Scan:
        """Note what the file holds, from its headers; of 64-bit integers the range as well."""
        path = self.path(piece.file)
        try:
            if self._is_own(piece.file):
                scan = scan_shard("hdf5", path, piece.file)
                scan.columns[_LAYOUT] = _SHARD
                return scan
            said = self._asking(piece).scan(several=len(self.files) > 1)
            about = {STATED: said.columns, _MEDIA: said.media, _LAYOUT: said.layout}
            beside = Counter(self._beside.get(piece.file) if piece.start == 0 else None)
            return Scan(said.rows, said.rows, columns=about, file=piece.file, ignored=beside)
        except Broken as error:
            about = {_REFUSED: error.args} if len(error.args) > 1 else {}
            return Scan(1, 0, columns=about, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the files' columns; SchemaError where that cannot be, or a file is no table.

        When `first_wins`, the columns are those of files laid out as most records are.
        """
        layouts: dict[str, int] = {}
        rows = Counter[str]()
        media: dict[str, set[str]] = {}
        for scan in scans:
            if _REFUSED in scan.columns and not first_wins:
                reason, hint = scan.columns[_REFUSED]
                raise SchemaError(reason, file=self.shown(scan.file), hint=hint)
            if _LAYOUT in scan.columns:
                layouts.setdefault(scan.columns[_LAYOUT], scan.file)
                rows[scan.columns[_LAYOUT]] += scan.rows
            for name, kinds in scan.columns.get(_MEDIA, {}).items():
                media.setdefault(name, set()).update(kinds)
        if len(layouts) > 1:
            if not first_wins:
                raise self._mixed(layouts)
            ((most, _),) = rows.most_common(1)
            scans = [scan for scan in scans if scan.columns.get(_LAYOUT, most) == most]
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
            rows = Rows(schema, name, f"{key}#", first_row, reject)
            for found in self._asking(piece).read(f"{key}#"):
                if isinstance(found, pa.RecordBatch):
                    yield from rows.fit(found)
                else:
                    rows.lose(*found)
        except Broken as error:
            reject(Reject(name, None, error.args[0]))

    def _runs(self, index: int, target_bytes: int) -> Iterator[Piece]:
        nbytes = self.files.nbytes(index)
        whole = Piece(index, 1, 0, 0, nbytes)
        try:
            if self._is_own(index):
                yield whole
                return
            cuts, self._beside[index] = self._asking(whole).cuts(target_bytes)
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

    def _asking(self, piece: Piece) -> Asking:
        """Return what reads a piece's file; MissingExtra without h5py."""
        if find_spec("h5py") is None:
            raise MissingExtra.of("h5py", "hdf5")
        return Asking(self.path(piece.file).absolute(), piece.start, piece.stop)

    def _mixed(self, layouts: dict[str, int]) -> SchemaError:
        (one, first), (other, second) = list(layouts.items())[:2]
        return SchemaError(
            f"the files are laid out in several ways: {one} in {self.shown(first)}, {other} here",
            file=self.shown(second),
            hint="Convert them on their own",
        )


def _as_media(column: pa.Field, kinds: set[str]) -> pa.Field:
    """Return a column of bytes as one of media, if all that was seen is of one kind."""
    if column.type != pa.binary() or kinds not in ({"image"}, {"audio"}):
        return column
    return media_field(column.name, *kinds)
