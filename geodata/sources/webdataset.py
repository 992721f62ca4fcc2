"""WebDataset: tar files whose members of one key make a record, a column for each extension.

`tars` groups the members, `members` tells what they are. A record's key is its key in the tar after
that of the file: `<source id>/<file name>/<key>`, since foreign tars may each count from 0. Rows
count the records of a file from 1. Shards of our own are told by their first member and keep their
exact columns and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.webdataset.index import HEAD
from geodata.formats.webdataset.tarball import END, header, padded
from geodata.schema import data_fields
from geodata.sources import members, shards, tars
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import BATCH_BYTES, Origin, Unfit, assemble, fitting, most_rows
from geodata.sources.columns import STATED, Stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.members import Extensions
from geodata.sources.observed import MAX_FIELDS, Seen, schema_of
from geodata.sources.tars import Sample

_WHOLE = 4
"""A tar is cut if it is longer than so many pieces; its headers are read for it."""
_BLOCK_BYTES = BATCH_BYTES - (1 << 20)
"""Of members in a batch; offsets and keys need some more."""
_OWN = HEAD + b"\0"
"""How a shard of our own starts."""
_PACKED_OWN = "a compressed shard of geodata: decompress it first"
_SAMPLE_COST = 1 << 10
"""Bytes that a sample takes beside its contents, about."""
_SEEN = "seen"
"""Part of `Scan.columns`: the types of the values of numbers and JSON."""


class WebDatasetTars(Corpus):
    """Tars in a folder, or one of them."""

    kind = "webdataset"

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return tars, and parts of large ones that hold whole records."""
        return [
            Piece(index, 1, start, stop, stop - start)
            for index in range(len(self.files))
            for start, stop in pairwise(self._bounds(index, target_bytes))
        ]

    def scan(self, piece: Piece) -> Scan:
        """Note the types of all members, from as little of them as tells it."""
        if self._is_own(piece.file):
            return shards.scan_shard(self.kind, self.path(piece.file), piece.file)
        found, scan = Extensions(), Scan(0, 0, file=piece.file)
        for sample in self._samples(piece, members.wanted_to_scan):
            scan.rows += 1
            scan.advance = max(scan.advance, sample.row or 0)
            if sample.row is None or sample.fault:
                continue
            with suppress(Unfit):
                told = [(member.extension, members.typed(member)) for member in sample.members]
                found.note(told, (piece.file, sample.row))
        scan.columns = {STATED: found.stated(), _SEEN: found.seen}
        return scan

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Return a column for each extension and for each column of our own shards."""
        whole = Seen()
        for scan, first_row in zip(scans, first_rows(scans), strict=True):
            whole.absorb(Seen(fields=scan.columns.get(_SEEN, {})), first_row)
        typed = schema_of(whole.fields, self.files, first_wins=first_wins)
        said = [
            Scan(0, 0, {STATED: [Stated(field, ((field.type, 0),))]}, file=_file_of(whole, field))
            for field in typed
        ]
        schema = unite_columns(self, [*scans, *said], first_wins=first_wins)
        if len(schema) > MAX_FIELDS:
            raise SchemaError(
                f"the members have more than {MAX_FIELDS} extensions",
                hint="A name's first dot ends the key: put no dots before the extension",
            )
        return schema

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records whose members all have a value that fits `schema`."""
        shown, key = self.shown(piece.file), self.key(piece.file)
        if self._is_own(piece.file):
            path = self.path(piece.file)
            yield from shards.read_shard(self.kind, path, schema, shown, key, reject)
            return
        block = _Block(self.encoding, schema, shown, key, first_row, reject)
        for sample in self._samples(piece, members.wanted_to_read):
            if block.is_full(sample):
                yield from block.flush()
            block.add(sample)
        yield from block.flush()

    def _bounds(self, index: int, target_bytes: int) -> list[int]:
        """Return where a tar is cut."""
        nbytes = self.files.nbytes(index)
        if nbytes > _WHOLE * target_bytes and self.named_in_utf8(index):
            path = self.path(index)
            with suppress(OSError):
                if not (self._is_own(index) or tars.is_packed(path)):
                    return tars.cuts(path, nbytes, target_bytes)
        return [0, nbytes]

    def _is_own(self, file: int) -> bool:
        with suppress(OSError):
            path = self.path(file)
            return not tars.is_packed(path) and tars.head_of(path).startswith(_OWN)
        return False

    def _samples(self, part: Piece, wanted: tars.Wanted) -> Iterator[Sample]:
        """Yield the samples of a part of a tar."""
        path, last = self.path(part.file), part.stop >= self.files.nbytes(part.file)
        if not self.named_in_utf8(part.file):
            yield Sample(None, "", fault=(b"", NOT_UTF8_NAME))
            return
        try:
            if tars.is_packed(path) and tars.head_of(path).startswith(_OWN):
                yield Sample(None, "", fault=(b"", _PACKED_OWN))
                return
            yield from tars.samples(path, part.start, None if last else part.stop, wanted)
        except OSError as error:
            yield Sample(None, "", fault=(b"", unreadable(error)))


class _Block:
    """Samples of one tar on their way into a batch."""

    def __init__(
        self,
        encoding: str,
        schema: pa.Schema,
        shown: str,
        key: str,
        first_row: int,
        reject: Callable[[Reject], None],
    ):
        self._encoding = encoding
        self._schema, self._key, self._shown = schema, key, shown
        self._first_row, self._reject = first_row, reject
        self._fields = data_fields(schema)
        self._names = {field.name for field in self._fields}
        self._most_rows = most_rows(schema)
        self._clear()

    def _clear(self) -> None:
        self._samples: list[Sample] = []
        self._records: list[dict[str, Any]] = []
        self._nbytes = 0

    def is_full(self, sample: Sample) -> bool:
        """Return whether a sample belongs in the next batch."""
        full = self._nbytes + sample.nbytes > _BLOCK_BYTES or len(self._samples) >= self._most_rows
        return full and bool(self._samples)

    def add(self, sample: Sample) -> None:
        """Take a sample, or reject it."""
        record = {}
        for member in sample.members if sample.fault is None else ():
            try:
                record[member.extension] = members.valued(member, self._encoding)
            except Unfit as error:
                sample.blame(member.name, str(error))
                break
        if sample.fault is None:
            self._samples.append(sample)
            self._records.append(record)
            self._nbytes += sample.nbytes + _SAMPLE_COST
        else:
            self._refuse(sample, *sample.fault)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that fit, reject the others, and start again."""

        def refuse(index: int, reason: str) -> None:
            sample = self._samples[index]
            self._refuse(sample, sample.key.encode(), reason)

        yield from fitting(self._build, len(self._samples), refuse)
        self._clear()

    def _build(self, rows: Sequence[int]) -> pa.RecordBatch:
        records = [self._records[i] for i in rows]
        for name in set().union(*records) - self._names:
            raise Unfit(f"'{name}' is not in the schema")
        columns = {
            field.name: members.column_of([r.get(field.name) for r in records], field)
            for field in self._fields
        }
        keys = [f"{self._key}/{self._samples[i].key}" for i in rows]
        return assemble(self._schema, keys, columns, Origin(self._shown, self._numbers(rows)))

    def _numbers(self, rows: Sequence[int]) -> list[int]:
        return [self._first_row + (self._samples[i].row or 0) for i in rows]

    def _refuse(self, sample: Sample, name: bytes, reason: str) -> None:
        """Reject a sample, naming the member at fault after the tar."""
        where = f"{self._shown}/{tars.text(name)}" if name else self._shown
        row = None if sample.row is None else self._first_row + sample.row
        self._reject(Reject(where, row, reason, _raw(sample)))


def _file_of(whole: Seen, field: pa.Field) -> int:
    """Return the file where a column was seen first."""
    return min(whole.fields[field.name].first.values())[0]


def _raw(sample: Sample) -> bytes:
    """Return a tar of the sample's members, as far as they were kept."""
    parts = [header(m.name, len(m.content)) + padded(m.content) for m in sample.members]
    return b"".join([*parts, END]) if parts else b""
