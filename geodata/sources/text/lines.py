"""The lines of a stream, or of a part of a file, as bytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from geodata.sources.corpus import MAX_RECORD

_BLOCK = 1 << 20
_MORE = 1 << 16

_LONG = 64 << 20
"""Bytes of a line that are held as they are before it is known that it is not too long."""

NEWLINE = b"\n"


class LongFirstLine(Exception):
    """A text whose first line is longer than it may be; `head` is its beginning."""

    def __init__(self, head: bytes):
        super().__init__()
        self.head = head


class _Deflated(bytes):
    """A part of a long line, which takes little memory if it is a bomb."""


def blocks_of(
    stream: BinaryIO,
    nbytes: int | None,
    first: int,
    target: int,
    newline: bytes = NEWLINE,
    most_first: int | None = None,
) -> Iterator[bytes | None]:
    """Yield runs of whole lines of about `target` bytes, the first of about `first`.

    At most `nbytes` are read, or all. A line of 1 GiB or more is None, alone. Raises OSError, when
    all lines before the fault have been given, and LongFirstLine if that has over `most_first`.
    """
    held: list[bytes] = []
    size = ended = 0
    wanted = first
    left = nbytes
    seen = False
    try:
        while data := _read(stream, max(wanted - size, _MORE), left, len(newline)):
            left = None if left is None else left - len(data)
            long = size - ended >= _LONG
            held.append(_Deflated(zlib.compress(data, 1)) if long else data)
            if end := _last_end(data, newline):
                ended, seen = size + end, False
            size += len(data)
            if ended:
                most_first = None
            elif most_first is not None and size > most_first:
                raise LongFirstLine(b"".join(_inflated(held[:1])))
            too_long = size - ended >= MAX_RECORD
            if not seen and size - ended >= _LONG:
                seen = True
                too_long |= size - ended + _ahead(stream, left, newline) >= MAX_RECORD
            if ended and (size >= wanted or too_long):
                whole, rest = _parted(held, ended)
                yield whole
                held, size, ended, wanted = [rest], len(rest), 0, target
            if too_long:
                held.clear()
                rest, gone = _skip_line(stream, left, newline)
                left = None if left is None else left - gone
                yield None
                held, size, ended = [rest], len(rest), _last_end(rest, newline)
                seen = False
    except OSError:
        if ended:
            yield _parted(held, ended)[0]
        raise
    if size:
        yield b"".join(_inflated(held))


def _read(stream: BinaryIO, most: int, left: int | None, unit: int) -> bytes:
    """Return some of the next bytes, whole units unless the stream ends."""
    if left is not None:
        most = min(most, left)
    data: bytes = stream.read1(most)  # type: ignore[attr-defined]
    with suppress(OSError):  # which comes again with the next bytes
        while data and len(data) % unit and (more := stream.read(unit - len(data) % unit)):
            data += more
    return data


def _parted(held: list[bytes], end: int) -> tuple[bytes, bytes]:
    """Return the first `end` bytes, and the others; copied once where `end` is in the last part."""
    *before, last = _inflated(held)
    start = sum(map(len, before))
    if end < start:
        whole = b"".join([*before, last])
        return whole[:end], whole[end:]
    return b"".join([*before, memoryview(last)[: end - start]]), last[end - start :]


def _inflated(held: list[bytes]) -> list[bytes]:
    return [zlib.decompress(part) if isinstance(part, _Deflated) else part for part in held]


def _ahead(stream: BinaryIO, left: int | None, newline: bytes) -> int:
    """Return how many bytes of a line are to come, at most 1 GiB; 0 if there is no way back."""
    if not stream.seekable():
        return 0
    place = stream.tell()
    most = MAX_RECORD if left is None else min(left, MAX_RECORD)
    rest, gone = _skip_line(stream, most, newline)
    stream.seek(place)
    return gone - len(rest)


def _last_end(data: bytes, newline: bytes) -> int:
    """Return where the last whole line ends; 0 if none does."""
    at = data.rfind(newline)
    while at >= 0 and at % len(newline):
        at = data.rfind(newline, 0, at + len(newline) - 1)
    return at + len(newline) if at >= 0 else 0


def _first_end(data: bytes, newline: bytes, start: int = 0) -> int:
    """Return where the first line from `start` ends; 0 if it does not."""
    at = data.find(newline, start)
    while at >= 0 and at % len(newline):
        at = data.find(newline, at + 1)
    return at + len(newline) if at >= 0 else 0


def _skip_line(stream: BinaryIO, left: int | None, newline: bytes) -> tuple[bytes, int]:
    """Go on to the next line; return what of it was read, and how many bytes were in all."""
    gone = 0
    while data := _read(stream, _BLOCK, None if left is None else left - gone, len(newline)):
        gone += len(data)
        if end := _first_end(data, newline):
            return data[end:], gone
    return b"", gone


def lines_in(block: bytes, newline: bytes = NEWLINE) -> Iterator[bytes | None]:
    """Yield the lines of a block, each with its end; None for one of 1 GiB or more."""
    if newline == NEWLINE and len(block) < MAX_RECORD:
        yield from io.BytesIO(block)
        return
    start = 0
    while start < len(block):
        end = _first_end(block, newline, start) or len(block)
        yield None if end - start > MAX_RECORD else block[start:end]
        start = end


def lines_of(
    stream: BinaryIO,
    nbytes: int | None,
    newline: bytes = NEWLINE,
    most_first: int | None = None,
) -> Iterator[bytes | None]:
    """Yield the lines of the next `nbytes`, or of all, each with its end.

    Raises OSError, and LongFirstLine if the first has over `most_first` bytes.
    """
    for block in blocks_of(stream, nbytes, _BLOCK, _BLOCK, newline, most_first):
        if block is None:
            yield None
        else:
            yield from lines_in(block, newline)


def cuts(path: Path, start: int, stop: int, target: int) -> list[int]:
    """Return offsets from `start` to `stop`, after line ends, about `target` bytes apart."""
    found = [start]
    with path.open("rb") as file:
        while found[-1] + target < stop:
            goal = found[-1] + target
            file.seek(goal - 1)
            cut = goal - 1 + _to_next_line(file, stop - goal + 1)
            if cut >= stop:
                break
            found.append(cut)
    return [*found, stop]


def _to_next_line(file: BinaryIO, most: int) -> int:
    """Go to the next line, at most `most` bytes on; return how far it was."""
    gone = 0
    while chunk := file.readline(min(_BLOCK, most - gone)):
        gone += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return gone
