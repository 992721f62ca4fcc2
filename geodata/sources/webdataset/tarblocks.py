"""The members of a tar file from anywhere: ustar, GNU and pax headers, nothing taken on trust.

A header counts if its checksum is right. What a header asks to be read (a long name, pax records)
is bounded; contents are passed over unless they are asked for. Where the blocks stop making sense,
the reading ends with what is wrong and where: nothing is guessed of what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from geodata.formats.webdataset.tarball import BLOCK
from geodata.sources.compressed import Damaged

_MOST_EXTENSION = 1 << 20
"""Bytes of a long name or of pax records."""
_MOST_HEADERS = 4 * _MOST_EXTENSION
"""Bytes of all that stands before a member's content."""
_SKIP = 1 << 20
_ZEROS = bytes(BLOCK)
_REGULAR = frozenset(b"\x0007")
_WITHOUT_CONTENT = frozenset(b"123456")
FOLDER = "a folder"
LINKS = ("a hard link", "a symbolic link")
_KINDS = {
    ord("1"): LINKS[0],
    ord("2"): LINKS[1],
    ord("3"): "a device",
    ord("4"): "a device",
    ord("5"): FOLDER,
    ord("6"): "a pipe",
    ord("S"): "a sparse file",
}


class Broken(Exception):
    """A tar that cannot be read further; the text says why, and at which byte.

    `whole` is whether the members before surely are all there.
    """

    def __init__(self, reason: str, *, whole: bool = False):
        super().__init__(reason)
        self.whole = whole


@dataclass(frozen=True, slots=True)
class Entry:
    """A member: `start` of its first header, `offset` and `size` of its content.

    `kind` is what it is if it is no regular file: "a symbolic link" and so on.
    """

    name: bytes
    start: int
    offset: int
    size: int
    kind: str | None = None


class TarStream:
    """The bytes of a tar, from `at` on; a plain file can be entered anywhere."""

    def __init__(self, file: BinaryIO, nbytes: int | None):
        """Take the stream; `nbytes` is the length of a plain file, None of a compressed one."""
        self._file, self._nbytes = file, nbytes
        self.at = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end; Broken where they cannot be read."""
        parts, left = [], size
        try:
            while left and (part := self._file.read(left)):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise Broken(_reason(error, self.at)) from error
        self.at += size - left
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def go(self, to: int) -> bool:
        """Go to a byte, only forwards in a compressed file; return whether it is there."""
        if self._nbytes is not None:
            if to > self._nbytes:
                return False
            try:
                self._file.seek(to)
            except OSError as error:
                raise Broken(_reason(error, to)) from error
            self.at = to
            return True
        while self.at < to and self.read(min(_SKIP, to - self.at)):
            pass
        return self.at == to

    def members(self, start: int, stop: int | None = None) -> Iterator[Entry]:
        """Yield the members whose headers start in bytes [start, stop); to the end mark if None.

        The caller may read an entry's content before it goes on. Raises Broken where the tar ends
        before its end mark, or makes no sense.
        """
        self.go(start)
        while stop is None or self.at < stop:
            entry = self._next()
            if entry is None:
                self._check_end()
                return
            yield entry
            if not self.go(entry.offset + entry.size):
                raise Broken(f"the tar is cut off within the member at byte {entry.start}")
            self.go(entry.offset + _padded(entry.size))

    def _next(self) -> Entry | None:
        """Return the member whose headers start here, None at the end mark."""
        said: dict[bytes, bytes] = {}
        start, long_name = self.at, None
        while True:
            at, block = self.at, self.read(BLOCK)
            if at - start > _MOST_HEADERS:
                raise Broken(f"the headers at byte {start} are too long")
            if block == _ZEROS and at == start:
                return None
            if not block and at == start == 0:
                raise Broken("the file is empty")
            if not block and at == start:
                raise Broken(f"the tar ends at byte {at} without an end mark: it may be cut off")
            name, size, kind = _parsed(block, at)
            if kind in b"xX":
                said.update(_pax_records(self._extension(size, at), at))
            elif kind == b"L":
                long_name = self._extension(size, at).partition(b"\0")[0]
            elif kind in b"Kg":
                self._extension(size, at)
            else:
                return self._entry(start, block, said, long_name or name, size)

    def _entry(
        self, start: int, block: bytes, said: dict[bytes, bytes], name: bytes, size: int
    ) -> Entry:
        """Return the member of this last header, with what pax records say of it instead."""
        name = said.get(b"path", name)
        size = _pax_size(said, size, start)
        flag = block[156]
        if flag == ord("S"):
            extended = block[482]
            while extended:
                more = self.read(BLOCK)
                extended = more[504] if len(more) == BLOCK else 0
        if flag in b"\0" and name.endswith(b"/"):
            flag = ord("5")
        kind = None if flag in _REGULAR else _KINDS.get(flag, "of an unknown type")
        if any(key.startswith(b"GNU.sparse.") for key in said):
            kind = "a sparse file"
        return Entry(name, start, self.at, 0 if flag in _WITHOUT_CONTENT else size, kind)

    def _extension(self, size: int, at: int) -> bytes:
        if size > _MOST_EXTENSION:
            raise Broken(f"the header at byte {at} is too long")
        data = self.read(_padded(size))
        if len(data) < size:
            raise Broken(f"the tar is cut off within the header at byte {at}")
        return data[:size]

    def _check_end(self) -> None:
        """Read on to the end of the file: after the end mark only zeros may stand."""
        at = self.at
        try:
            while block := self.read(_SKIP):
                if block.count(0) != len(block):
                    at += len(block) - len(block.lstrip(b"\0"))
                    raise Broken(f"other bytes follow the end mark, at byte {at}", whole=True)
                at += len(block)
        except Broken as error:
            raise Broken(str(error), whole=True) from error


def starts_tar(block: bytes) -> bool:
    """Return whether a file that starts with this block is a plain tar."""
    try:
        return block == _ZEROS or bool(_parsed(block, 0))
    except Broken:
        return False


def _parsed(block: bytes, at: int) -> tuple[bytes, int, bytes]:
    """Return name, size and type of a header; Broken if it is none."""
    if len(block) < BLOCK:
        raise Broken(f"the tar is cut off within the header at byte {at}")
    size = _number(block[124:136])
    if size is None or not _is_summed(block):
        raise Broken(f"no tar header at byte {at}")
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name, size, block[156:157]


def _is_summed(block: bytes) -> bool:
    """Return whether a checksum is right, of bytes or (as some writers have it) signed ones."""
    told = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if told == total:
        return True
    return told == total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def _number(field: bytes) -> int | None:
    """Return the number in a field of a header: octal digits, or bits after a mark."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:]) if field[0] == 0x80 else None
    digits = field.partition(b"\0")[0].strip()
    try:
        return int(digits, 8) if digits.isdigit() else (None if digits else 0)
    except ValueError:
        return None


def _pax_records(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records "LENGTH KEY=VALUE" of a pax header."""
    place = 0
    while place < len(data) and data[place]:
        digits, space, _ = data[place : place + 20].partition(b" ")
        stop = place + int(digits) if digits.isdigit() else 0
        record = data[place + len(digits) + 1 : stop - 1]
        key, equals, value = record.partition(b"=")
        if not (space and equals) or stop > len(data) or data[stop - 1 : stop] != b"\n":
            raise Broken(f"a broken pax header at byte {at}")
        yield key, value
        place = stop


def _pax_size(said: dict[bytes, bytes], size: int, at: int) -> int:
    told = said.get(b"size")
    if told is None:
        return size
    if not told.isdigit() or len(told) > 20:
        raise Broken(f"a broken pax header at byte {at}")
    return int(told)


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _reason(error: OSError, at: int) -> str:
    if isinstance(error, Damaged):
        return str(error)
    return f"the file cannot be read beyond byte {at} of the tar: {error.strerror or error}"
