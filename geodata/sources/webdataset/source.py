"""WebDataset: tar files whose members of one key make a record, a column for each extension.

`tars` groups the members, `members` tells what they are. A record's key is its key in the tar after
that of the file: `<source id>/<file name>/<key>`, since foreign tars may each count from 0. Rows
count the records of a file from 1. Shards of our own are told by their first member and keep their
exact columns and keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.formats.webdataset.index import HEAD
from geodata.formats.webdataset.shard import packed_format
from geodata.formats.webdataset.tarball import END, header, padded
from geodata.sources import shards
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import Unfit
from geodata.sources.blocks import Item, batches_of, by_field
from geodata.sources.columns import STATED, Stated, unite_columns
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.observed import MAX_FIELDS, Seen, schema_of
from geodata.sources.webdataset import members, tars
from geodata.sources.webdataset.members import Extensions
from geodata.sources.webdataset.tars import Sample

_WHOLE = 4
"""A tar is cut if it is longer than so many pieces; its headers are read for it."""
_OWN = HEAD + b"\0"
"""How a shard of our own starts."""
_PACKED_OWN = "a compressed shard of geodata: decompress it first"
_SAMPLE_COST = 1 << 10
"""Bytes that a sample takes beside its contents, about."""
_SEEN = "seen"
"""Part of `Scan.columns`: the types of the values of numbers and JSON."""


@dataclass(slots=True)
class _Item(Item):
    """The record of a sample, whose bytes are made when they are asked for."""

    sample: Sample = field(kw_only=True)

    def unfit(self, reason: str) -> Reject:
        """Return it as a record that cannot be converted."""
        return _rejected(self.sample, self.file, self.row, self.sample.key.encode(), reason)


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
        own = self._own_format(piece.file)
        if own:
            return shards.scan_shard(own, self.path(piece.file), piece.file)
        found, scan = Extensions(), Scan(0, 0, file=piece.file)
        for sample in self._samples(piece, members.wanted_to_scan, scan.ignored):
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
        own = self._own_format(piece.file)
        if own:
            path = self.path(piece.file)
            yield from shards.read_shard(own, path, schema, shown, key, reject)
            return
        items = self._items(piece, first_row, reject)
        yield from batches_of(items, schema, by_field(members.column_of), reject)

    def _items(
        self, piece: Piece, first_row: int, reject: Callable[[Reject], None]
    ) -> Iterator[_Item]:
        """Yield the samples whose members all have a value."""
        shown, key = self.shown(piece.file), self.key(piece.file)
        for sample in self._samples(piece, members.wanted_to_read, Counter()):
            values = _values(sample, self.encoding)
            row = first_row + (sample.row or 0)
            if sample.fault is None:
                nbytes = sample.nbytes + _SAMPLE_COST
                yield _Item(f"{key}/{sample.key}", shown, row, values, nbytes, sample=sample)
            else:
                reject(_rejected(sample, shown, row, *sample.fault))

    def _bounds(self, index: int, target_bytes: int) -> list[int]:
        """Return where a tar is cut."""
        nbytes = self.files.nbytes(index)
        if nbytes > _WHOLE * target_bytes and self.named_in_utf8(index):
            path = self.path(index)
            with suppress(OSError):
                if not (self._own_format(index) or tars.is_packed(path)):
                    return tars.cuts(path, nbytes, target_bytes)
        return [0, nbytes]

    def _own_format(self, file: int) -> str | None:
        """Return the format of a shard of our own; None of one that others have compressed."""
        with suppress(OSError):
            path = self.path(file)
            if tars.head_of(path).startswith(_OWN):
                return packed_format(path) if tars.is_packed(path) else self.kind
        return None

    def _samples(self, part: Piece, wanted: tars.Wanted, ignored: Counter[str]) -> Iterator[Sample]:
        """Yield the samples of a part of a tar."""
        path, last = self.path(part.file), part.stop >= self.files.nbytes(part.file)
        if not self.named_in_utf8(part.file):
            yield Sample(None, "", fault=(b"", NOT_UTF8_NAME))
            return
        try:
            if tars.is_packed(path) and tars.head_of(path).startswith(_OWN):
                yield Sample(None, "", fault=(b"", _PACKED_OWN))
                return
            stop = None if last else part.stop
            yield from tars.samples(path, part.start, stop, wanted, ignored)
        except OSError as error:
            yield Sample(None, "", fault=(b"", unreadable(error)))


def _values(sample: Sample, encoding: str) -> dict[str, Any]:
    """Return the values of a sample's members by extension, as far as it is without fault."""
    values = {}
    for member in sample.members if sample.fault is None else ():
        try:
            values[member.extension] = members.valued(member, encoding)
        except Unfit as error:
            sample.blame(member.name, str(error))
            break
    return values


def _rejected(sample: Sample, shown: str, row: int, name: bytes, reason: str) -> Reject:
    """Return a sample as one that is rejected, naming the member at fault after the tar."""
    where = f"{shown}/{tars.text(name)}" if name else shown
    return Reject(where, None if sample.row is None else row, reason, _raw(sample))


def _file_of(whole: Seen, field: pa.Field) -> int:
    """Return the file where a column was seen first."""
    return min(whole.fields[field.name].first.values())[0]


def _raw(sample: Sample) -> bytes:
    """Return a tar of the sample's members, as far as they were kept."""
    parts = [header(m.name, len(m.content)) + padded(m.content) for m in sample.members]
    return b"".join([*parts, END]) if parts else b""
