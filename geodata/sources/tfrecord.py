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
from geodata.schema import KEY, data_fields
from geodata.sources import shards, tfframes
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import BATCH_BYTES, Origin, Unfit, assemble, fitting, most_rows
from geodata.sources.columns import STATED, Stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.observed import MAX_FIELDS, Place
from geodata.sources.tfcolumns import LAST, FeatureSeen, column_of
from geodata.sources.tfexamples import Feature, features_of
from geodata.sources.tfframes import Record

_WHOLE = 4
"""A file is cut if it is longer than so many pieces; its frames are visited for it."""
_BLOCK_BYTES = BATCH_BYTES - (1 << 20)
"""Of records in a batch; offsets and keys need some more."""
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
        shown, key = self.shown(piece.file), self.key(piece.file)
        if self._is_own(piece.file):
            yield from self._read_own(piece.file, schema, reject)
            return
        block = _Block(schema, shown, key, reject)
        for row, record in enumerate(self._records(piece), first_row + 1):
            if block.is_full(record):
                yield from block.flush()
            block.add(row, record)
        yield from block.flush()

    def _bounds(self, index: int, target_bytes: int) -> list[int]:
        """Return where a file is cut."""
        nbytes = self.files.nbytes(index)
        if nbytes > _WHOLE * target_bytes and self.named_in_utf8(index):
            path = self.path(index)
            with suppress(OSError):
                if not (self._is_own(index) or tfframes.is_packed(path)):
                    return tfframes.cuts(path, nbytes, target_bytes)
        return [0, nbytes]

    def _is_own(self, file: int) -> bool:
        with suppress(OSError):
            start = tfframes.first_bytes(self.path(file), HEAD + _OWN_BYTES)
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
        if tfframes.is_packed(path):
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
            yield from tfframes.records(path, piece.start, None if last else piece.stop)
        except OSError as error:
            yield Record(0, fault=unreadable(error))


class _Block:
    """Records of one file on their way into a batch."""

    def __init__(self, schema: pa.Schema, shown: str, key: str, reject: Callable[[Reject], None]):
        self._schema, self._shown, self._key, self._reject = schema, shown, key, reject
        self._fields = data_fields(schema)
        self._names = {field.name for field in self._fields}
        self._most_rows = most_rows(schema)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[int] = []
        self._records: list[Record] = []
        self._features: list[dict[str, Feature]] = []
        self._nbytes = 0

    def is_full(self, record: Record) -> bool:
        """Return whether a record belongs in the next batch."""
        full = self._nbytes + len(record.data) > _BLOCK_BYTES
        return bool(self._rows) and (full or len(self._rows) >= self._most_rows)

    def add(self, row: int, record: Record) -> None:
        """Take a record, or reject it."""
        try:
            features = features_of(record.data) if record.fault is None else {}
        except Unfit as error:
            self._refuse(row, record, str(error))
            return
        if record.fault is not None:
            self._refuse(row, record, record.fault)
            return
        self._rows.append(row)
        self._records.append(record)
        self._features.append(features)
        held = sum(feature.nbytes + _FEATURE_COST for feature in features.values())
        self._nbytes += max(len(record.data), held)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that fit, reject the others, and start again."""

        def refuse(index: int, reason: str) -> None:
            self._refuse(self._rows[index], self._records[index], reason)

        yield from fitting(self._build, len(self._rows), refuse)
        self._clear()

    def _build(self, picked: Sequence[int]) -> pa.RecordBatch:
        features = [self._features[i] for i in picked]
        for name in set().union(*features) - self._names:
            raise Unfit(f"'{name}' is not in the schema")
        columns = {
            field.name: column_of([found.get(field.name) for found in features], field)
            for field in self._fields
        }
        rows = [self._rows[i] for i in picked]
        keys = [f"{self._key}#{row}" for row in rows]
        return assemble(self._schema, keys, columns, Origin(self._shown, rows))

    def _refuse(self, row: int, record: Record, reason: str) -> None:
        raw = record.data if len(record.data) <= _RAW_BYTES else b""
        self._reject(Reject(self._shown, row, reason, raw))


def _see(seen: dict[str, FeatureSeen], features: dict[str, Feature], place: Place) -> None:
    for name, feature in features.items():
        known = seen.get(name)
        if known is None:
            if len(seen) > MAX_FIELDS:
                return
            known = seen[name] = FeatureSeen(place)
        known.see(feature, place)
