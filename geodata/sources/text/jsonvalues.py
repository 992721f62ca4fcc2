"""A `.json` file that is one value, or objects over several lines, as records.

    [{…}, {…}]                   each item is a record
    {"a": {…}, "b": {…}}         each member is one, its name in the column `id`
    {…} {…}                      each object is one, over as many lines as it takes

An object of objects is taken apart if it has two members or more and all that begin the file are
objects which have a field in common; else it is one record. `id` gives way to `key` or `member`
where the first records have such a field. Items are found by their brackets and quotes alone; the
file is read as a stream.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from geodata.sources.batches import Unfit
from geodata.sources.compressed import Damaged
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.encodings.declared import PLAIN, Coding
from geodata.sources.text.jsonrecord import BOM

_CHUNK = 1 << 18
_MOST_LEVELS = 1_000_000
"""Of brackets in a value that is rejected alone; they are counted one by one."""
_LOOKED_AT = 16
"""Members of an object that show whether all are alike."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'


def _bracketed(levels: int) -> bytes:
    """Return a pattern of what is in brackets with at most so many levels inside."""
    inside = rb'[^"{}\[\]]++|' + _STRING
    if levels:
        inside += b"|" + _bracketed(levels - 1)
    return rb"[{\[](?:" + inside + rb")*+[}\]]"


_ITEM = re.compile(_bracketed(3) + b"|" + _STRING, re.DOTALL)
_SCALAR = re.compile(rb'[^\s,:"{}\[\]]++')
_TOKEN = re.compile(_STRING + rb'|["{}\[\]]', re.DOTALL)
_BLANKS = rb"[ \t\r\n]*+"
_SPACE = re.compile(_BLANKS)
_NAME = re.compile(b"%b,?%b%b%b:%b" % (_BLANKS, _BLANKS, _STRING, _BLANKS, _BLANKS), re.DOTALL)
_OPENING = (b"{", b"[", b'"')
_BRACKETS = {"array": (b"[", b"]"), "members": (b"{", b"}"), "objects": (b"", b"")}


@dataclass(frozen=True, slots=True)
class Form:
    """How records stand in a file: lines, items of an array, members, objects one after another.

    `column` holds the names of members.
    """

    kind: str
    column: str = ""


LINES = Form("lines")
OBJECTS = Form("objects")


def form_of(head: bytes, whole: bool) -> Form:
    """Return the form of a `.json` file from its beginning, in UTF-8, which may be the whole."""
    head = head.removeprefix(BOM).lstrip()
    if head.startswith(b"["):
        return Form("array")
    if not head.startswith(b"{"):
        return LINES
    end, line = _end_of(head, 0), head.find(b"\n") % (len(head) + 1)
    if end > 0 and (head[end:].strip() or not whole):
        return LINES if end <= line else OBJECTS
    column = _column_of_names(head)
    if column is not None:
        return Form("members", column)
    on_one_line = (end if end > 0 else len(head)) <= line
    return LINES if on_one_line else OBJECTS


def _column_of_names(head: bytes) -> str | None:
    """Return the column for the names of an object's members if these are records, else None."""
    values: list[dict[str, Any]] = []
    at, count = 1, 0
    while count < _LOOKED_AT and (name := _NAME.match(head, at)):
        end = _end_of(head, name.end())
        if head[name.end() : name.end() + 1] not in (b"{", b""):
            return None
        if end < 0:
            break
        with suppress(ValueError, RecursionError):  # such a one is rejected when it is read
            values.append(json.loads(head[name.end() : end]))
        at, count = end, count + 1
    fields = [value.keys() for value in values if value]
    if count < 2 or not fields or not set.intersection(*map(set, fields)):
        return None
    return next((c for c in ("id", "key", "member") if not any(c in v for v in values)), "member")


def items_of(stream: BinaryIO, form: Form) -> Iterator[bytes]:
    """Yield the items of a file that is one value; raise Unfit where no more can be found."""
    reader = _Reader(stream)
    opening, closing = _BRACKETS[form.kind]
    reader.skip(BOM)
    reader.peek()
    reader.skip(opening)
    count = 0
    while (ahead := reader.peek()) != closing:
        if count and closing:
            reader.expect(b",")
            ahead = reader.peek()
        name = reader.name() if form.column else b""
        item = reader.value()
        yield _named(item, form.column, name) if item.startswith(b"{") and name else item
        count += 1
    reader.skip(closing)
    if ahead and reader.peek():
        raise reader.malformed()


def _named(item: bytes, column: str, name: bytes) -> bytes:
    """Return an object with its name in a column."""
    rest = item[1:].lstrip()
    return b'{"%b": %b%b%b' % (column.encode(), name, b"" if rest.startswith(b"}") else b", ", rest)


def flat(items: Iterable[bytes]) -> bytes | None:
    """Return the items as lines, if it is sure that no string has a line end in it."""
    lines = []
    for item in items:
        if b"\n" in item:
            if b"\\" in item or any(part.count(b'"') % 2 for part in item.split(b"\n")):
                return None
            item = item.replace(b"\n", b" ")  # noqa: PLW2901
        lines.append(item)
    return b"\n".join(lines)


def _end_of(data: bytes, start: int) -> int:
    """Return where a value ends that starts there; -1 if not in these bytes. Raises Unfit."""
    found = _ITEM.match(data, start) or _SCALAR.match(data, start)
    if found:
        return found.end()
    depth = 0
    for token in _TOKEN.finditer(data, start):
        mark = token[0]
        if mark == b'"':
            return -1
        if len(mark) == 1:
            depth += 1 if mark in b"{[" else -1
            if depth <= 0:
                return token.end() if depth == 0 else -1
            if depth > _MOST_LEVELS:
                raise Unfit(f"nested deeper than {_MOST_LEVELS:,} levels: the rest is not read")
    return -1


class _Reader:
    """A stream, taken value by value."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._data = b""
        self._at = self._passed = 0
        self._ended = False

    def _more(self) -> bool:
        """Read on, as much again as is held; return whether there was more."""
        held = self._data[self._at :]
        more: bytes = self._stream.read1(max(_CHUNK, len(held)))  # type: ignore[attr-defined]
        self._passed += self._at
        self._data, self._at = held + more, 0
        self._ended = not more
        return bool(more)

    def peek(self) -> bytes:
        """Return the next byte that is no space; none at the end."""
        while True:
            space = _SPACE.match(self._data, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._more():
                return b""

    def skip(self, mark: bytes) -> None:
        """Pass over these bytes if they are next."""
        while len(self._data) - self._at < len(mark) and self._more():
            pass
        if self._data.startswith(mark, self._at):
            self._at += len(mark)

    def expect(self, mark: bytes) -> None:
        """Pass over a byte that must be next."""
        if self.peek() != mark:
            raise self.malformed()
        self._at += 1

    def name(self) -> bytes:
        """Take a member's name, as it is spelled, and the colon."""
        if self.peek() not in (b'"', b""):
            raise self.malformed()
        name = self.value()
        self.expect(b":")
        self.peek()
        return name

    def value(self) -> bytes:
        """Take a value."""
        first = self.peek()
        if first in (b"}", b"]", b",", b":"):
            raise self.malformed()
        closes = first in _OPENING
        while True:
            end = _end_of(self._data, self._at)
            if end > 0 and (closes or self._ended or end < len(self._data)):
                item = self._data[self._at : end]
                self._at = end
                return item
            if len(self._data) - self._at >= MAX_RECORD:
                raise Unfit(TOO_LONG)
            if not self._more() and end < 0:
                raise self.malformed()

    def malformed(self) -> Unfit:
        """Return the error of a value that is not as it should be from here on."""
        first = self._data[self._at : self._at + 1]
        if not first or (first in _OPENING and _end_of(self._data, self._at) < 0):
            return Unfit("the JSON value ends too soon: the rest is not read")
        where = self._passed + self._at
        return Unfit(f"the JSON value is malformed at byte {where}: the rest is not read")


class Recoded(io.RawIOBase):
    """A stream of text as UTF-8; reading it raises Damaged where a byte does not decode."""

    def __init__(self, stream: BinaryIO, coding: Coding):
        self._stream, self._coding = stream, coding
        self._decoder = codecs.getincrementaldecoder(coding.name)()
        self._ready = b""
        self._taken = 0
        self._fault: Damaged | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._fault is None:
            data: bytes = self._stream.read1(_CHUNK)  # type: ignore[attr-defined]
            self._ready = self._decoded(data).encode()
            if not data:
                break
        if not self._ready and self._fault is not None:
            raise self._fault
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _decoded(self, data: bytes) -> str:
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            where = self._coding.fault(error, self._taken - pending, " of the file")
            self._fault = Damaged(f"{where}: the rest is not read")
            text = error.object[: error.start].decode(self._coding.name)
        self._taken += len(data)
        return text


def utf8_head(coding: Coding, head: bytes) -> bytes:
    """Return the beginning of a file as UTF-8, whatever does not decode replaced."""
    if coding == PLAIN:
        return head
    return codecs.getincrementaldecoder(coding.name)("replace").decode(head).encode()
