"""The records of a TFRecord file from anywhere, every checksum verified.

A record whose data are damaged is passed over, since its length still leads to the next; where a
length is damaged, the reading ends with what is wrong and where.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from geodata.formats.tfrecord.frames import FRAME, HEAD, TAIL, checksum
from geodata.sources.compressed import Damaged
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.decompress import compression_of, unpacked

_BUFFER = 64 << 10
_SKIP = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A record's data, or why there are none; `offset` is that of its frame."""

    offset: int
    data: bytes = b""
    fault: str | None = None


class _End(Exception):
    """The file cannot be read further; the text says why."""


def is_packed(path: Path) -> bool:
    """Return whether the file is compressed; raise OSError where it cannot be read."""
    return _packing(path) is not None


def first_bytes(path: Path, count: int) -> bytes:
    """Return how the file's content starts, as far as that can be read."""
    with _opened(path) as (file, _):
        try:
            return file.read(count)
        except OSError:
            return b""


def records(path: Path, start: int, stop: int | None) -> Iterator[Record]:
    """Yield the records whose frames start in bytes [start, stop), to the file's end if None.

    The last may say why no other can be read. Raises OSError where the file cannot be opened.
    """
    with _opened(path) as (file, nbytes):
        at = start
        try:
            if start:
                file.seek(start)
            while (stop is None or at < stop) and (length := _length(file, at, nbytes)) is not None:
                yield _record(file, at, length)
                at += length + FRAME
        except _End as end:
            yield Record(at, fault=str(end))


def cuts(path: Path, nbytes: int, target: int) -> list[int]:
    """Return offsets of a plain file from 0 to `nbytes`, of frames about `target` bytes apart."""
    found, at = [0], 0
    with _opened(path) as (file, size):
        try:
            while (length := _length(file, at, size)) is not None:
                if at - found[-1] >= target:
                    found.append(at)
                at += length + FRAME
                file.seek(at)
        except _End:
            pass
    return [*found, nbytes]


def _packing(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return None if _is_head(head) else compression_of(head)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file, and decompress it as it is read; the length is of one that is not compressed."""
    packing = _packing(path)
    if packing is None:
        with path.open("rb", buffering=_BUFFER) as file:
            yield file, os.fstat(file.fileno()).st_size
    else:
        with unpacked(path, packing) as content:
            yield content, None


def _length(file: BinaryIO, at: int, nbytes: int | None) -> int | None:
    """Return how long the data of the frame are that starts here; None at the end."""
    head = _read(file, HEAD, at)
    if not head:
        return None
    if len(head) == HEAD and not _is_head(head):
        raise _End(f"the length of the record at byte {at} is damaged: no other can be found")
    length = int.from_bytes(head[:8], "little")
    if len(head) < HEAD or (nbytes is not None and length > nbytes - at - FRAME):
        raise _End(f"the file is cut off within the record at byte {at}")
    return length


def _record(file: BinaryIO, at: int, length: int) -> Record:
    if length > MAX_RECORD:
        _skip(file, length + TAIL, at)
        return Record(at, fault=TOO_LONG)
    data, tail = _read(file, length, at), _read(file, TAIL, at)
    if len(data) < length or len(tail) < TAIL:
        raise _End(f"the file is cut off within the record at byte {at}")
    if int.from_bytes(tail, "little") != checksum(data):
        return Record(at, data, "the checksum of the record is wrong")
    return Record(at, data)


def _is_head(head: bytes) -> bool:
    return len(head) == HEAD and int.from_bytes(head[8:], "little") == checksum(head[:8])


def _skip(file: BinaryIO, count: int, at: int) -> None:
    if file.seekable():
        file.seek(count, os.SEEK_CUR)
        return
    while count and (part := _read(file, min(_SKIP, count), at)):
        count -= len(part)


def _read(file: BinaryIO, count: int, at: int) -> bytes:
    try:
        return file.read(count)
    except Damaged as error:
        raise _End(str(error)) from error
    except OSError as error:
        raise _End(f"the file cannot be read beyond byte {at}: {error.strerror}") from error
