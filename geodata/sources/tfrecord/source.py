"""TFRecord: files of `tf.train.Example`, one record each, compressed ones too.

Every checksum is verified. `tfcolumns` says which columns the features make; one that a record
lacks is null. Keys count the records of a file from 1. Shards of our own are told by their first
feature and keep their exact columns and keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.tfrecord import example
from geodata.formats.tfrecord.frames import HEAD
from geodata.formats.tfrecord.index import ABOUT
from geodata.schema import KEY
from geodata.sources import shards
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import Unfit
from geodata.sources.blocks import Item, batches_of, by_field
from geodata.sources.columns import STATED, Stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.observed import MAX_FIELDS, Place
from geodata.sources.tfrecord import frames
from geodata.sources.tfrecord.columns import LAST, FeatureSeen, column_of
from geodata.sources.tfrecord.examples import Feature, features_of
from geodata.sources.tfrecord.frames import Record

_WHOLE = 4
"""A file is cut if it is longer than so many pieces; its frames are visited for it."""
_RAW_BYTES = 64 << 20
"""Most original bytes of a rejected record that are kept."""
_FEATURE_COST = 1 << 8
"""Bytes that a feature takes beside its values, about."""
_SEEN = "seen"
"""Part of `Scan.columns`: what was seen of each feature."""
_FIRST_KEYS = b"|".join(re.escape(f.key) for f in (example.Feature.of(KEY, example.BYTES), ABOUT))
_OWN = re.compile(rb"(?:\n[\x80-\xff]{0,9}[\0-\x7f]){2}(?:" + _FIRST_KEYS + b")", re.DOTALL)
"""How the first record of a shard of our own starts."""
_OWN_BYTES = 64
_PACKED_OWN = "a compressed shard of geodata: decompress it first"


class TfRecordFiles(Corpus):
    """TFRecord files in a folder, or one of them."""

    kind = "tfrecord"

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return files, and parts of large ones."""
        return [
            Piece(index, 1, start, stop, stop - start)
            for index in range(len(self.files))
            for start, stop in pairwise(self._bounds(index, target_bytes))
        ]

    def scan(self, piece: Piece) -> Scan:
        """Note what decides the types of all features."""
        if self._is_own(piece.file):
            return self._scan_own(piece.file)
        seen: dict[str, FeatureSeen] = {}
        scan = Scan(0, 0, {_SEEN: seen}, file=piece.file)
        for row, record in enumerate(self._records(piece), 1):
            scan.rows = scan.advance = row
            if record.fault is None:
                with suppress(Unfit):
                    _see(seen, features_of(record.data), (piece.file, row))
        return scan

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Return a column for each feature and for each column of our own shards."""
        whole: dict[str, FeatureSeen] = {}
        for scan, first_row in zip(scans, first_rows(scans), strict=True):
            for name, seen in scan.columns.get(_SEEN, {}).items():
                whole.setdefault(name, FeatureSeen(LAST)).absorb(seen, first_row)
        if len(whole) > MAX_FIELDS:
            raise SchemaError(
                f"the records have more than {MAX_FIELDS} features in all",
                hint="Make varying names values",
            )
        said = []
        for name, seen in whole.items():
            field = seen.field(name, self, first_wins)
            columns = {STATED: [Stated(field, ((field.type, 0),))]}
            said.append(Scan(0, 0, columns, file=seen.place[0]))
        return unite_columns(self, [*scans, *said], first_wins=first_wins)

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that are Examples and fit `schema`."""
        if self._is_own(piece.file):
            yield from self._read_own(piece.file, schema, reject)
        else:
            items = self._items(piece, first_row, reject)
            yield from batches_of(items, schema, by_field(column_of), reject)

    def _items(
        self, piece: Piece, first_row: int, reject: Callable[[Reject], None]
    ) -> Iterator[Item]:
        """Yield the records that are Examples."""
        shown, key = self.shown(piece.file), self.key(piece.file)
        for row, record in enumerate(self._records(piece), first_row + 1):
            raw = record.data if len(record.data) <= _RAW_BYTES else b""
            try:
                features = _features(record)
            except Unfit as error:
                reject(Reject(shown, row, str(error), raw))
                continue
            held = sum(feature.nbytes + _FEATURE_COST for feature in features.values())
            nbytes = max(len(record.data), held)
            yield Item(f"{key}#{row}", shown, row, features, nbytes, raw)

    def _bounds(self, index: int, target_bytes: int) -> list[int]:
        """Return where a file is cut."""
        nbytes = self.files.nbytes(index)
        if nbytes > _WHOLE * target_bytes and self.named_in_utf8(index):
            path = self.path(index)
            with suppress(OSError):
                if not (self._is_own(index) or frames.is_packed(path)):
                    return frames.cuts(path, nbytes, target_bytes)
        return [0, nbytes]

    def _is_own(self, file: int) -> bool:
        with suppress(OSError):
            start = frames.first_bytes(self.path(file), HEAD + _OWN_BYTES)
            return _OWN.match(start, HEAD) is not None
        return False

    def _scan_own(self, file: int) -> Scan:
        if self._fault_of_own(file) is not None:
            return Scan(1, 0, file=file)
        return shards.scan_shard(self.kind, self.path(file), file)

    def _read_own(
        self, file: int, schema: pa.Schema, reject: Callable[[Reject], None]
    ) -> Iterator[pa.RecordBatch]:
        fault, shown = self._fault_of_own(file), self.shown(file)
        if fault is not None:
            reject(Reject(shown, None, fault))
            return
        path, key = self.path(file), self.key(file)
        yield from shards.read_shard(self.kind, path, schema, shown, key, reject)

    def _fault_of_own(self, file: int) -> str | None:
        """Return why one of our own shards is not read; its own reader trusts the data."""
        path = self.path(file)
        if frames.is_packed(path):
            return _PACKED_OWN
        whole = Piece(file, 1, 0, self.files.nbytes(file), 0)
        return next((record.fault for record in self._records(whole) if record.fault), None)

    def _records(self, piece: Piece) -> Iterator[Record]:
        """Yield the records of a part of a file."""
        if not self.named_in_utf8(piece.file):
            yield Record(0, fault=NOT_UTF8_NAME)
            return
        last = piece.stop >= self.files.nbytes(piece.file)
        try:
            path = self.path(piece.file)
            yield from frames.records(path, piece.start, None if last else piece.stop)
        except OSError as error:
            yield Record(0, fault=unreadable(error))


def _features(record: Record) -> dict[str, Feature]:
    """Return the features of a record; raise Unfit where it has none."""
    if record.fault is not None:
        raise Unfit(record.fault)
    return features_of(record.data)


def _see(seen: dict[str, FeatureSeen], features: dict[str, Feature], place: Place) -> None:
    for name, feature in features.items():
        known = seen.get(name)
        if known is None:
            if len(seen) > MAX_FIELDS:
                return
            known = seen[name] = FeatureSeen(place)
        known.see(feature, place)
