"""Tars compressed by gzip (RFC 1952), which every stock reader of tar.gz reads.

The tar is one member of gzip, since streaming readers (Python's `tarfile`, and so `webdataset`)
read no further than the first. A segment is a run of deflate's blocks that ends with a full flush:
it refers to nothing before it, and ends with a whole byte. Members without content follow, whose
extra fields say where the segments lie.

The bytes depend on the implementation and the version of zlib; what they hold does not, and so
neither does the content digest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from geodata.formats.units import check_batch_bytes
from geodata.formats.webdataset.segments import Segment

LEVEL = 6
"""Of 9. The highest takes five times as long for integers, and saves one part in a hundred."""

_START = b"\x1f\x8b\x08\0" + bytes(4) + b"\x02\xff"
"""Of a member: no name, no time, of no system."""
_START_TABLE = b"\x1f\x8b\x08\x04" + bytes(4) + b"\x02\xff"
"""Of a member with an extra field."""
_NOTHING = b"\x03\0"
"""The last block of deflate, without content."""
_FLUSHED = b"\0\0\xff\xff"
"""The end of a full flush."""
_SUMS = struct.Struct("<II")
"""CRC-32 and size of a member's content."""
_FIELD = struct.Struct("<H2sH")
"""Length of the extra fields; name and length of the one that there is."""
_NAME = b"gd"
_ROW = struct.Struct("<QQI")
"""A segment's length, `nbytes` and CRC-32."""
_ABOUT = struct.Struct("<IQ")
"""After the rows: the tar's CRC-32, and where the first table starts."""
_AFTER = len(_NOTHING) + _SUMS.size
"""Bytes of a member without content after its extra field."""
_ROWS = (0xFFFF - 4 - _ABOUT.size) // _ROW.size
"""The most of one extra field."""


class Gzip:
    """The codec of tars in gzip."""

    def packer(self) -> GzipPacker:
        """Start a file."""
        return GzipPacker()

    def segments(self, data: memoryview) -> list[Segment]:
        """Return the segments that the tables tell of; ValueError if anything beside is amiss."""
        try:
            crc32, at = _ABOUT.unpack(data[:-_AFTER][-_ABOUT.size :])
            rows = list(_rows(data, at))
        except struct.error:
            raise ValueError("no table of segments") from None
        found, stop = [], len(_START)
        for length, nbytes, crc in rows:
            found.append(Segment(stop, length, nbytes, crc))
            stop += length
        if data[: len(_START)] != _START or data[stop:] != _end(found, crc32, stop):
            raise ValueError("a table of other segments")
        return found

    def unpack(self, data: memoryview, nbytes: int) -> bytes:
        """Return what a segment holds, no more than one byte over `nbytes`."""
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = unpacker.decompress(data, nbytes + 1)
        except zlib.error:
            raise ValueError("compressed bytes that are damaged") from None
        if unpacker.eof or unpacker.unconsumed_tail or bytes(data[-len(_FLUSHED) :]) != _FLUSHED:
            raise ValueError("compressed bytes that end elsewhere")
        return found


class GzipPacker:
    """Makes one gzip file of a tar."""

    start = _START

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._at, self._crc32 = len(_START), 0

    def add(self, content: bytes) -> bytes:
        """Return the blocks of these bytes; SchemaError for 2 GiB of them."""
        check_batch_bytes(len(content))
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)
        segment = Segment(self._at, len(packed), len(content), zlib.crc32(content))
        self._segments.append(segment)
        self._at += len(packed)
        self._crc32 = zlib.crc32(content, self._crc32)
        return packed

    def end(self) -> bytes:
        """Return the end of the tar's member, and the tables."""
        return _end(self._segments, self._crc32, self._at)


def _rows(data: memoryview, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of the tables from `at` to the end of the file; struct.error if it is none."""
    while at < len(data):
        if data[at : at + len(_START_TABLE)] != _START_TABLE:
            raise struct.error("no table")
        at += len(_START_TABLE)
        _length, _name, nbytes = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        yield from _ROW.iter_unpack(data[at : at + max(nbytes - _ABOUT.size, 0)])
        at += nbytes + _AFTER


def _end(segments: Sequence[Segment], crc32: int, stop: int) -> bytes:
    """Return what follows the last segment, which stops at `stop`."""
    nbytes = sum(segment.nbytes for segment in segments)
    last = _NOTHING + _SUMS.pack(crc32, nbytes & 0xFFFFFFFF)
    about = _ABOUT.pack(crc32, stop + len(last))
    tables = (segments[i : i + _ROWS] for i in range(0, len(segments), _ROWS))
    return last + b"".join(_table(rows, about) for rows in tables)


def _table(segments: Sequence[Segment], about: bytes) -> bytes:
    """Return a member without content that tells of these segments."""
    content = b"".join(_ROW.pack(s.length, s.nbytes, s.crc32) for s in segments) + about
    field = _FIELD.pack(4 + len(content), _NAME, len(content))
    return _START_TABLE + field + content + _NOTHING + _SUMS.pack(0, 0)
