"""How a delimited text begins: its first line, and what delimits the fields in all of them.

Excel says so in a first line `sep=;`, which is no record. Else it is the mark that cuts the first
lines alike; where two do, neither is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import BinaryIO

from geodata.sources.batches import Unfit
from geodata.sources.encodings.declared import Coding
from geodata.sources.options import Reading
from geodata.sources.text.lines import LongFirstLine, lines_of

MAX_FIRST_LINE = 16 << 20
"""Bytes of a first line."""

_MARKS = ",;\t|"
_LOOKED_AT = 20
"""Lines after the first that show what delimits."""
_QUOTED = re.compile(r'"[^"]*"')
_OPENED = re.compile(r'"[^"]*\Z')
_DECLARED = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The lines of a text, the first of which is at byte `offset`, and their delimiter."""

    lines: Iterator[bytes | None]
    offset: int
    delimiter: str


def begin(
    stream: BinaryIO, nbytes: int | None, coding: Coding, name: str, reading: Reading
) -> Beginning:
    """Return how the file of that name begins; raise Unfit if not as delimited text does."""
    lines = lines_of(stream, nbytes, coding.newline, MAX_FIRST_LINE)
    try:
        first = next(lines, b"") or b""
    except LongFirstLine as error:
        text = _text(error.head, coding)
        _check(text, coding)
        marks = reading.delimiter or _marks(name, text)
        raise Unfit(_without_end(marks, reading.quotes)) from None
    offset = len(coding.mark) if first.startswith(coding.mark) else 0
    first = first[offset:]
    declared = _DECLARED.fullmatch(_text(first, coding))
    if declared:
        offset += len(first)
        first = next(lines, b"") or b""
    while first and not _text(first, coding).strip("\r\n"):
        offset += len(first)
        first = next(lines, b"") or b""
    text = _text(first, coding)
    _check(text, coding)
    delimiter = reading.delimiter or (declared and declared[1])
    if delimiter is None:
        marks = _marks(name, text)
        ahead = list(islice(lines, _LOOKED_AT)) if len(marks) > 1 else []
        lines = chain(ahead, lines)
        delimiter = _only(_cutting_alike(marks, [text, *(_text(x or b"", coding) for x in ahead)]))
    return Beginning(chain([first] if first else [], lines), offset, delimiter)


def _text(line: bytes, coding: Coding) -> str:
    return line.decode(coding.name, errors="replace")


def _marks(name: str, first: str) -> str:
    """Return what may delimit: tab by suffix, else what stands in the first line, or a comma."""
    if name.lower().endswith(".tsv"):
        return "\t"
    bare = _QUOTED.sub("", first)
    return "".join(mark for mark in _MARKS if mark in bare) or ","


def _cutting_alike(marks: str, lines: list[str]) -> str:
    """Return the marks by which most lines have as many fields as the first."""
    bare = [_QUOTED.sub("", line) for line in lines if line.strip()]
    alike = {m: sum(line.count(m) == bare[0].count(m) for line in bare) for m in marks if bare}
    return "".join(m for m in marks if alike.get(m) == max(alike.values(), default=None))


def _only(marks: str) -> str:
    if len(marks) > 1:
        raise Unfit(f"its fields may be delimited by {_either(marks)}: say by which: --delimiter")
    return marks


def _either(marks: str) -> str:
    return " or ".join(map(repr, marks))


def _check(first: str, coding: Coding) -> None:
    """Raise Unfit for a first line that shows that the file is not what it is taken for."""
    bare = _OPENED.sub("", _QUOTED.sub("", first))
    if bare.endswith("\r\r\n"):
        raise Unfit("its lines end with two carriage returns and a newline: make them newlines")
    if "\r" in bare.removesuffix("\n").rstrip("\r"):
        raise Unfit("its lines end with carriage returns alone: make them newlines")
    if "\0" in first and coding.newline == b"\n":
        raise Unfit("its first line holds NUL bytes; if it is UTF-16, say so: --encoding utf-16")


def _without_end(marks: str, quotes: bool) -> str:
    within = f"no line ends in its first {MAX_FIRST_LINE >> 20} MiB"
    quote = "'\"'" if quotes else "nothing"
    in_force = f"where {_either(marks)} delimits and {quote} quotes"
    return f"{within}, {in_force}: its line ends are lost, or it is no delimited text"
