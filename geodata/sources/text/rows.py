"""The records of a delimited text, split exactly: lines in, fields out.

A field is quoted if it begins with a quote; inside, two quotes are one, and newlines are text. What
has more than one reading (text after a closing quote, a quote that never closes) is a fault.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.encodings.declared import PLAIN, Coding
from geodata.sources.observed import MAX_FIELDS, TOO_MANY_FIELDS

_MOST_RAW = 64 << 20
"""Bytes of a record that are kept as they were."""
_HELD = 1 << 20
"""Characters of a field that are held as they are."""

_INSIDE = re.compile(r'[^"]*+(?:""[^"]*+)*+')
_OPEN_TOO_LONG = f"{TOO_LONG}, in a quoted field"


@cache
def _token(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of a field as it is spelled."""
    mark = re.escape(delimiter)
    return re.compile(
        rf"""(?:^|{mark})("[^"]*+(?:""[^"]*+)*+"|[^{mark}"][^{mark}]*+|)(?={mark}|\Z)"""
    )


class _Text:
    """The lines of a field so far. Long ones lie deflated: most are of a quote never closed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0
        self._packed: list[bytes] = []

    def add(self, line: str) -> None:
        """Append a line, or a part of one."""
        self._lines.append(line)
        self._size += len(line)
        if self._size >= _HELD:
            self._packed.append(
                zlib.compress("".join(self._lines).encode(errors="surrogatepass"), 1)
            )
            self._lines, self._size = [], 0

    def whole(self) -> str:
        """Return all of it."""
        return "".join(
            [
                *(zlib.decompress(part).decode(errors="surrogatepass") for part in self._packed),
                *self._lines,
            ]
        )


@dataclass(slots=True)
class Row:
    """A record: its number from 1 (0: the file itself), bytes, fields, and what is wrong if any.

    Bytes of over 64 MiB are not kept; `nbytes` says how many there were.
    """

    number: int
    raw: bytes = b""
    nbytes: int = 0
    fields: list[str | None] = field(default_factory=list)
    fault: str | None = None


def rows_of(
    lines: Iterator[bytes | None],
    delimiter: str,
    offset: int,
    number: int = 0,
    coding: Coding = PLAIN,
    quotes: bool = True,
) -> Iterator[Row]:
    """Yield the records of these lines, the first of which is at byte `offset`, from `number` on.

    An unquoted empty field is None; without `quotes` none is quoted. Blank lines are skipped. None
    is a line that is too long.
    """
    for line in lines:
        row = Row(number, line or b"", len(line or b""))
        text = _decode(row, line, offset, coding) if line else ""
        if line and text in ("\n", "\r\n"):
            offset += len(line)
            continue
        body = _body(text)
        few = body.count(delimiter) < MAX_FIELDS
        if line and not (quotes and '"' in text):
            row.fields = [field or None for field in body.split(delimiter)] if few else []
            row.fault = row.fault or (None if few else TOO_MANY_FIELDS)
        elif line and few and (tokens := _tokens(body, delimiter)):
            row.fields = [
                token[1:-1].replace('""', '"') if token.startswith('"') else token or None
                for token in tokens
            ]
        else:
            _split(row, line, lines, delimiter, offset, coding)
        offset += row.nbytes
        number += 1
        yield row


def _tokens(body: str, delimiter: str) -> list[str]:
    """Return the fields of a record as they are spelled; none where it has faults or goes on."""
    found: list[str] = _token(delimiter).findall(body)
    return found if sum(map(len, found)) + len(found) - 1 == len(body) else []


def _split(
    row: Row,
    line: bytes | None,
    more: Iterator[bytes | None],
    delimiter: str,
    offset: int,
    coding: Coding,
) -> None:
    """Fill the fields of a record with quotes, taking as many lines as it has."""
    splitter = _Splitter(row, delimiter)
    raw = bytearray()
    row.nbytes = count = 0
    while line != b"":
        count += 1
        row.nbytes += MAX_RECORD if line is None else len(line)
        if line is None or row.nbytes >= MAX_RECORD:
            row.fault = TOO_LONG if line is None or not splitter.is_open else _OPEN_TOO_LONG
            splitter.forget()
        elif row.nbytes <= _MOST_RAW:
            raw += line
        if row.nbytes > _MOST_RAW:
            raw.clear()
        if line is None or splitter.take(
            _decode(row, line, offset + row.nbytes - len(line), coding)
        ):
            break
        line = next(more, b"")
    else:
        taken = "" if count == 1 else f": it takes the last {count:,} lines"
        row.fault = row.fault or f"a quoted field is not closed before the end of the file{taken}"
    row.raw = bytes(raw)


class _Splitter:
    """Splits one record, taken line by line."""

    def __init__(self, row: Row, delimiter: str):
        self._row = row
        self._delimiter = delimiter
        self._open: _Text | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a quoted field has begun and not ended."""
        return self._open is not None

    def forget(self) -> None:
        """Drop the text so far; go on to the end of the record."""
        self._row.fields.clear()
        if self._open is not None:
            self._open = _Text()

    def take(self, line: str) -> bool:
        """Take a line with its end; return whether the record ends with it."""
        if self._open is not None and '"' not in line:
            self._open.add(line)
            return False
        body, at = _body(line), 0
        while True:
            if self._open is not None:
                at = self._quoted(line, at)
            elif line.startswith('"', at):
                self._open = _Text()
                at = self._quoted(line, at + 1)
            else:
                at = self._unquoted(body, at)
            if self._open is not None:
                return False
            if len(self._row.fields) > MAX_FIELDS:
                self._row.fault = self._row.fault or TOO_MANY_FIELDS
                self._row.fields.clear()
            if at >= len(body):
                return True
            if body[at] != self._delimiter:
                self._row.fault = self._row.fault or "text stands after a closing quote"
                return True
            at += 1

    def _quoted(self, line: str, start: int) -> int:
        text = self._open or _Text()
        inside = _INSIDE.match(line, start)
        end = inside.end() if inside else start
        text.add(line[start:end])
        self._open = text
        if end == len(line):
            return end
        self._row.fields.append(text.whole().replace('""', '"'))
        self._open = None
        return end + 1

    def _unquoted(self, body: str, start: int) -> int:
        end = body.find(self._delimiter, start)
        end = len(body) if end < 0 else end
        self._row.fields.append(body[start:end] or None)
        return end


def _decode(row: Row, line: bytes, offset: int, coding: Coding) -> str:
    """Return the line as text; where it does not decode, note the fault and go on."""
    try:
        return coding.text(line)
    except UnicodeError as error:
        row.fault = row.fault or coding.fault(error, offset, " of the file")
        return line.decode(coding.name, errors="replace")


def _body(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")
