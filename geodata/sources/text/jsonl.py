"""Line JSON: one object a line; and `.json` files that are one value.

Only `\\n` ends a line. Blank lines are no records, but count in row numbers. A line is rejected for
what makes its meaning uncertain (`jsonrecord`). Of a `.json` file that is one array, one object of
objects, or objects over several lines (`jsonvalues`), each item is read as a line is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geodata.schema import data_fields
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import Origin, Unfit, assemble
from geodata.sources.blocks import Item, batches_of, by_field
from geodata.sources.corpus import NOT_UTF8_NAME, TOO_LONG, Corpus, unreadable
from geodata.sources.encodings.declared import PLAIN, Coding
from geodata.sources.observed import Place, Seen, schema_of, see_fields
from geodata.sources.text.arrowjson import counted, expected, news, parsed
from geodata.sources.text.jsonrecord import TWICE, record_of, refuse_overflow
from geodata.sources.text.jsonvalues import LINES, Form, Recoded, flat, form_of, items_of, utf8_head
from geodata.sources.text.lines import NEWLINE, blocks_of, cuts, lines_in
from geodata.sources.values import array_of, holds_infinity

_BLOCK_BYTES = 4 << 20
_SCAN_BYTES = 1 << 20
_FEW_BYTES = 16 << 10
"""Bytes of a block whose lines are as quickly read one by one."""
_HEAD_BYTES = 1 << 18
"""Of a `.json` file, looked at to see its form."""

_Line = tuple[int, bytes, bytes, "dict[str, Any] | pa.RecordBatch | str | None"]
"""Number of a line in its piece (0: the file itself), its bytes, these in UTF-8, and what it holds:
a record, the reason to reject it, or None when it is blank. Lines read as one are a batch, without
their bytes and with the number of the last."""

_Run = tuple[bytes | None, Iterable[bytes | None]]
"""Some lines: all as one in UTF-8, where they can be, and one by one; None is too long a line."""


@dataclass(slots=True)
class _Record(Item):
    """The record of a line; `text` is the line in UTF-8."""

    text: bytes = b""


class JsonLines(Corpus):
    """Line JSON in one file, or in the files of a folder."""

    kind = "jsonl"

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of small files, and parts of large ones cut after line ends."""
        return [
            part
            for piece in self.whole_files(target_bytes)
            for part in self._parts(piece, target_bytes)
        ]

    def scan(self, piece: Piece) -> Scan:
        """Note the types of all records that parse."""
        fields: dict[str, Seen] = {}
        made = self._visit(piece, partial(_known, fields), partial(see_fields, fields))
        return replace(made, columns=fields)

    def count(self, piece: Piece) -> Scan:
        """Count the records, whole blocks of them by their lines."""
        return self._visit(piece, counted, lambda _record, _place: None)

    def _visit(
        self,
        piece: Piece,
        at_once: Callable[[bytes], pa.RecordBatch | None],
        see: Callable[[dict[str, Any], Place], None],
    ) -> Scan:
        """Count the records of a piece; `see` those that are not taken `at_once`."""
        rows = number = 0
        for part in self.by_file(piece):
            for number, _, _, found in self._lines(part, _SCAN_BYTES, at_once):
                if isinstance(found, pa.RecordBatch):
                    rows += found.num_rows
                    continue
                rows += found is not None
                if isinstance(found, dict):
                    see(found, (part.file, number))
        return Scan(rows, number, file=piece.file, encodings=self.recognised(piece))

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the types seen; a field never seen with a value has the type null."""
        whole = Seen()
        for scan, first_row in zip(scans, first_rows(scans), strict=True):
            whole.absorb(Seen(fields=scan.columns), first_row)
        return schema_of(whole.fields, self.files, first_wins=first_wins)

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that parse and fit `schema`."""
        yield from batches_of(
            self._items(piece, first_row, schema, reject), schema, _columns, reject
        )

    def _items(
        self, piece: Piece, first_row: int, schema: pa.Schema, reject: Callable[[Reject], None]
    ) -> Iterator[_Record | pa.RecordBatch]:
        """Yield the records that parse, those read as one in a batch."""
        columns = pa.schema(data_fields(schema))
        for part in self.by_file(piece):
            file, key = self.shown(part.file), self.key(part.file)
            at_once = partial(parsed, columns)
            for number, line, text, found in self._lines(part, _BLOCK_BYTES, at_once):
                row = first_row + number
                if isinstance(found, pa.RecordBatch):
                    rows = np.arange(found.num_rows) + (row - found.num_rows + 1)
                    yield _keyed(found, schema, key, Origin(file, rows))
                elif isinstance(found, dict):
                    yield _Record(f"{key}#{row}", file, row, found, len(line), line, text)
                elif found is not None:
                    reject(Reject(file, row if number else None, found, line))

    def _lines(
        self, part: Piece, target: int, at_once: Callable[[bytes], pa.RecordBatch | None]
    ) -> Iterator[_Line]:
        """Yield the lines of a part of a file, those of a run together if `at_once` can."""
        if not self.named_in_utf8(part.file):
            yield 0, b"", b"", NOT_UTF8_NAME
            return
        number = 0
        try:
            coding, form = self._seen(part.file)
            for together, lines in self._runs(part, target, coding, form):
                batch = None
                if together is not None and _FEW_BYTES <= len(together) <= 2 * target:
                    batch = at_once(together)
                if batch is not None:
                    number += batch.num_rows
                    yield number, b"", b"", batch
                    continue
                for line in lines:
                    number += 1
                    yield number, *_looked_at(line, coding, form)
        except OSError as error:
            yield 0, b"", b"", unreadable(error)
        except Unfit as error:
            yield 0, b"", b"", str(error)

    def _seen(self, index: int) -> tuple[Coding, Form]:
        """Return how the file `index` is encoded, and how records stand in it."""
        may_be_value = self.bare_name(index).lower().endswith(".json")
        if self.encoding == PLAIN.name and not may_be_value:
            return PLAIN, LINES
        head = self.head(index, _HEAD_BYTES)
        coding = self.coding(index, head)
        if not may_be_value:
            return coding, LINES
        return coding, form_of(utf8_head(coding, head), len(head) < _HEAD_BYTES)

    def _runs(self, part: Piece, target: int, coding: Coding, form: Form) -> Iterator[_Run]:
        """Yield the lines of a part of a file in runs; the first is short, to learn from."""
        with self.opened(part.file) as stream:
            if form != LINES:
                yield from _runs_of_items(stream, target, coding, form)
                return
            nbytes = None
            if self.is_plain(part.file):
                stream.seek(part.start)
                nbytes = part.stop - part.start
            mark = coding.mark if part.start == 0 else b""
            for block in blocks_of(stream, nbytes, _FEW_BYTES, target, coding.newline):
                if block is None:
                    yield None, [None]
                else:
                    data = block.removeprefix(mark)
                    yield _in_utf8(data, coding), lines_in(data, coding.newline)
                mark = b""

    def _parts(self, piece: Piece, target_bytes: int) -> Iterator[Piece]:
        """Cut a piece of one large file whose lines can be found from anywhere."""
        offsets = [piece.start, piece.stop]
        if piece.files == 1 and piece.nbytes > target_bytes and self.named_in_utf8(piece.file):
            with suppress(OSError, Unfit):
                coding, form = self._seen(piece.file)
                if self.is_plain(piece.file) and coding.newline == NEWLINE and form == LINES:
                    path = self.path(piece.file)
                    offsets = cuts(path, piece.start, piece.stop, target_bytes)
        for start, stop in pairwise(offsets):
            nbytes = stop - start if piece.files == 1 else piece.nbytes
            yield Piece(piece.file, piece.files, start, stop, nbytes)


def _runs_of_items(stream: BinaryIO, target: int, coding: Coding, form: Form) -> Iterator[_Run]:
    """Yield the items of a file that is one value, in runs; raises what `items_of` does, after."""
    if coding != PLAIN:
        stream = BufferedReader(Recoded(stream, coding))
    items: list[bytes] = []
    nbytes, most = 0, _FEW_BYTES
    try:
        for item in items_of(stream, form):
            items.append(item)
            nbytes += len(item)
            if nbytes >= most:
                yield flat(items), items
                items, nbytes, most = [], 0, target
    except (OSError, Unfit):
        yield flat(items), items
        raise
    yield flat(items), items


def _in_utf8(block: bytes, coding: Coding) -> bytes | None:
    if coding == PLAIN:
        return block
    try:
        return coding.text(block).encode()
    except UnicodeError:
        return None


def _looked_at(
    line: bytes | None, coding: Coding, form: Form
) -> tuple[bytes, bytes, dict[str, Any] | str | None]:
    """Return a line's bytes, these in UTF-8, and what it holds."""
    if line is None:
        return b"", b"", TOO_LONG
    if form != LINES:
        found = record_of(line, "item")
        if found == TWICE and form.column:
            found = f"{TWICE}, or a field '{form.column}' beside its own name"
        return line, line, found
    try:
        text = line if coding == PLAIN else coding.text(line).encode()
    except UnicodeError as error:
        return line, b"", coding.fault(error, 0, " of the line")
    return line, text, record_of(text)


def _keyed(batch: pa.RecordBatch, schema: pa.Schema, key: str, origin: Origin) -> pa.RecordBatch:
    """Return the records of the rows that `origin` tells, with their keys."""
    rows = pa.array(origin.rows, pa.int64()).cast(pa.string())
    keys = pc.binary_join_element_wise(key, rows, "#")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return assemble(schema, keys, columns, origin)


def _known(fields: dict[str, Seen], data: bytes) -> pa.RecordBatch | None:
    """Return the records of a block that holds nothing but what `fields` tells."""
    schema = expected(fields)
    batch = None if schema is None else parsed(schema, data, types_only=True)
    if schema is None or batch is None:
        return None
    columns = zip(schema.names, batch.columns, strict=True)
    return None if any(news(array, fields[name]) for name, array in columns) else batch


_columns_by_field = by_field(lambda values, field: array_of(values, field.type, field.name))


def _columns(records: Sequence[_Record], fields: Sequence[pa.Field]) -> Mapping[str, pa.Array]:
    """Return the columns of some records; Unfit where a number is too large for one."""
    columns = _columns_by_field(records, fields)
    if any(map(holds_infinity, columns.values())):
        for record in records:
            refuse_overflow(record.text)
    return columns
