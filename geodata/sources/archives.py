"""Zip archives, read where they lie: the directory at their end, then each member by its place.

Read by own means, since one bad name must not cost the whole archive, and opening a member must not
mean reading the directory again. What is wrong with a member is noted, to be said when it is read.
Names stay as they are, `..` and leading slashes too: they only ever become keys.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

from geodata.sources.compressed import Damaged, Unpacked

SUFFIX = ".zip"

_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_WIDE = 0xFFFFFFFF
_ENCRYPTED, _UTF8_NAME = 0x0001, 0x0800
_UNIX = 3

STORED, DEFLATED = 0, 8
FAULTS = (
    "",
    "the archive is truncated or damaged",
    "the member is encrypted",
    "the member is compressed in a way that is not read (only deflate is)",
    "two members of the archive have this name",
    "the member's bytes overlap those of another",
)
"""What `Member.fault` says."""
BROKEN, _IS_ENCRYPTED, _IS_ODD, _IS_DOUBLE, _OVERLAPS = range(1, 6)


class BrokenArchive(Exception):
    """A file is no zip archive, or not all of one."""


class Member(NamedTuple):
    """Where a member lies: number of the archive, byte of its header, bytes packed, its checksum.

    `fault` says what is wrong with it; an archive without a directory is one broken member.
    """

    archive: int
    offset: int
    packed: int
    crc: int
    method: int
    fault: int = 0


Found = tuple[bytes, int, Member]
"""A member's name, its size, and where it lies."""


def members_of(
    path: bytes, archive: int, encoding: str | None, ignored: Counter[str]
) -> list[Found]:
    """Return the members of a zip archive that are files; count the hidden and special ones.

    A name that is not UTF-8 is decoded by `encoding`, else left as its bytes. Raises BrokenArchive
    and OSError.
    """
    with io.FileIO(path) as file:
        size = os.fstat(file.fileno()).st_size
        start, length, shift = _directory(file, size)
        data = _at(file, start, length)
    found: list[Found] = []
    spans: list[tuple[int, int, int]] = []
    for name, made_of, nbytes, mode, reach in _entries(data, archive, shift):
        if made_of.offset + reach > start:
            made_of = made_of._replace(fault=made_of.fault or BROKEN)  # noqa: PLW2901
        what = _passed_over(name, mode)
        if what is None:
            spans.append((made_of.offset, made_of.offset + reach, len(found)))
            found.append((_in_utf8(name, encoding), nbytes, made_of))
        elif what:
            ignored[what] += 1
    return _without_doubt(found, spans)


def _directory(file: io.FileIO, size: int) -> tuple[int, int, int]:
    """Return where the directory starts, its bytes, and by how much all offsets are shifted."""
    tail_start = max(0, size - _LONGEST_COMMENT - _END.size)
    tail = _at(file, tail_start, size - tail_start)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + _END.size:
        raise BrokenArchive
    _, disk, first_disk, _, _, length, offset, _ = _END.unpack_from(tail, at)
    end = tail_start + at
    place = _at(file, end - _END64_PLACE.size, _END64_PLACE.size)
    if place.startswith(b"PK\6\7"):
        end, length, offset = _end64(file, end, place)
    elif disk or first_disk:
        raise BrokenArchive
    start = end - length
    if start < 0 or offset > start:
        raise BrokenArchive
    return start, length, start - offset


def _end64(file: io.FileIO, end: int, place: bytes) -> tuple[int, int, int]:
    """Return where the end record of a large archive lies, the directory's length and offset."""
    stated = _END64_PLACE.unpack(place)[2]
    for at in (stated, end - _END64_PLACE.size - _END64.size):
        record = _at(file, at, _END64.size)
        if len(record) == _END64.size and record.startswith(b"PK\6\6"):
            return at, *_END64.unpack(record)[-2:]
    raise BrokenArchive


def _at(file: io.FileIO, start: int, length: int) -> bytes:
    if start < 0:
        return b""
    file.seek(start)
    return b"".join(iter(lambda: file.read(length - file.tell() + start), b""))


def _entries(
    data: bytes, archive: int, shift: int
) -> Iterator[tuple[bytes, Member, int, int, int]]:
    """Yield each entry: name, place, size, Unix mode (0: none), bytes of header and content."""
    at = 0
    while at < len(data):
        if len(data) < at + _ENTRY.size:
            raise BrokenArchive
        entry = _ENTRY.unpack_from(data, at)
        sign, made_by, _, flags, method, _, _, crc, packed, nbytes = entry[:10]
        name_length, extra_length, comment_length, _, _, attributes, offset = entry[10:]
        name_at = at + _ENTRY.size
        extra_at = name_at + name_length
        at = extra_at + extra_length + comment_length
        if sign != b"PK\1\2" or at > len(data):
            raise BrokenArchive
        if _WIDE in (nbytes, packed, offset):
            extra = data[extra_at : extra_at + extra_length]
            nbytes, packed, offset = _wide(extra, nbytes, packed, offset)
        fault = _IS_ENCRYPTED if flags & _ENCRYPTED else 0
        if not fault and method not in (STORED, DEFLATED):
            fault = _IS_ODD
        member = Member(archive, offset + shift, packed, crc, method, fault)
        mode = attributes >> 16 if made_by >> 8 == _UNIX else 0
        yield data[name_at:extra_at], member, nbytes, mode, _LOCAL.size + name_length + packed


def _wide(extra: bytes, *values: int) -> list[int]:
    """Return size, packed size and offset, those of 64 bits from the extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            fields = extra[at + 4 : at + 4 + length]
            wide = iter([value for (value,) in struct.iter_unpack("<Q", fields[: length // 8 * 8])])
            found = [next(wide, -1) if value == _WIDE else value for value in values]
            if min(found) >= 0 and max(found) < 1 << 62:
                return found
            break
        at += 4 + length
    raise BrokenArchive


def _passed_over(name: bytes, mode: int) -> str | None:
    """Return why an entry is no file to read: "" for a folder; None if it is one."""
    if name.endswith(b"/"):
        return ""
    if any(part.startswith(b".") and part not in (b".", b"..") for part in name.split(b"/")):
        return "hidden"
    if stat.S_ISLNK(mode):
        return "link in an archive"
    return None if stat.S_IFMT(mode) in (0, stat.S_IFREG) else "not a regular file"


def _in_utf8(name: bytes, encoding: str | None) -> bytes:
    try:
        name.decode()
    except UnicodeDecodeError:
        if encoding is not None:
            try:
                return name.decode(encoding).encode()
            except UnicodeError:
                pass
    return name


def _without_doubt(found: list[Found], spans: list[tuple[int, int, int]]) -> list[Found]:
    """Note which members share their name, or their bytes."""
    faults: dict[int, int] = {}
    for (_, end, one), (start, _, other) in pairwise(sorted(spans)):
        if end > start:
            faults[one] = faults[other] = _OVERLAPS
    times = Counter(name for name, _, _ in found)
    if len(times) < len(found):
        faults |= {i: _IS_DOUBLE for i, entry in enumerate(found) if times[entry[0]] > 1}
    for index, fault in faults.items():
        name, nbytes, member = found[index]
        found[index] = name, nbytes, member._replace(fault=member.fault or fault)
    return found


class Archives:
    """The archives of a corpus, one open at a time; `path` tells where that of a number lies."""

    def __init__(self, path: Callable[[int], str]):
        self._path = path
        self._opened: tuple[int, int] | None = None

    def __enter__(self) -> Archives:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None

    def content(self, member: Member, nbytes: int) -> bytes:
        """Return a member's bytes, which are `nbytes`; raises Damaged and OSError."""
        descriptor = self._descriptor(member.archive)
        start = _content_start(descriptor, member)
        data = _read(descriptor, start, member.packed)
        if member.method == DEFLATED:
            data = _inflated(data, nbytes)
        _check(len(data), zlib.crc32(data), nbytes, member.crc)
        return data

    def _descriptor(self, archive: int) -> int:
        if self._opened is None or self._opened[0] != archive:
            self.__exit__()
            self._opened = archive, os.open(self._path(archive), os.O_RDONLY | os.O_CLOEXEC)
        return self._opened[1]


def opened_member(path: str, member: Member, nbytes: int) -> BinaryIO:
    """Return a member as a stream; reading it raises Damaged where it is not what it should be."""

    def packed() -> BinaryIO:
        return io.BufferedReader(_Packed(path, member), 1 << 16)

    if member.method == DEFLATED:
        unpacked: Any = Unpacked(packed, "deflate")
    else:
        unpacked = packed()
    return io.BufferedReader(_Checked(unpacked, nbytes, member.crc), 1 << 17)


class _Packed(io.RawIOBase):
    """The bytes of a member as they lie in the archive."""

    def __init__(self, path: str, member: Member):
        self._file = io.FileIO(path)
        self._left = member.packed
        self._file.seek(_content_start(self._file.fileno(), member))

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Checked(io.RawIOBase):
    """A stream that at its end must have had this size and checksum."""

    def __init__(self, stream: Any, nbytes: int, crc: int):
        self._stream, self._nbytes, self._crc = stream, nbytes, crc
        self._size = self._sum = 0

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        count: int = self._stream.readinto(buffer)
        self._size += count
        self._sum = zlib.crc32(memoryview(buffer)[:count], self._sum)
        if not count or self._size > self._nbytes:
            _check(self._size, self._sum, self._nbytes, self._crc)
        return count


def _content_start(descriptor: int, member: Member) -> int:
    head = os.pread(descriptor, _LOCAL.size, member.offset)
    if len(head) < _LOCAL.size or not head.startswith(b"PK\3\4"):
        raise Damaged("the member is not where the archive's directory says")
    name_length, extra_length = _LOCAL.unpack(head)[-2:]
    return int(member.offset + _LOCAL.size + name_length + extra_length)


def _read(descriptor: int, start: int, nbytes: int) -> bytes:
    data = more = os.pread(descriptor, nbytes, start)
    while more and len(data) < nbytes:
        more = os.pread(descriptor, nbytes - len(data), start + len(data))
        data += more
    return data


def _inflated(data: bytes, nbytes: int) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(data, nbytes + 1)
    except zlib.error as error:
        raise Damaged("the member is damaged: it cannot be inflated") from error


def _check(nbytes: int, crc: int, declared: int, checksum: int) -> None:
    if nbytes != declared:
        raise Damaged("the member does not have the size that the archive declares")
    if crc != checksum:
        raise Damaged("the member is damaged: its checksum does not match")
