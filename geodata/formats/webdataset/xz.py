"""Tars compressed by xz (its file format 1.2), which every stock reader of tar.xz reads.

A segment is a block of the one stream there is; blocks are compressed each by itself, say how long
they are and end with the CRC-32 of what they hold. The stream's index says where they lie.

The bytes depend on the version of liblzma; what they hold does not, and so neither does the content
digest.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Sequence

from geodata.formats.units import check_batch_bytes
from geodata.formats.webdataset.segments import Segment

DICTIONARY_BYTES = 4 << 20
PRESET = 6

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": PRESET, "dict_size": DICTIONARY_BYTES}]
_LZMA2 = bytes([lzma.FILTER_LZMA2, 1, 20])
"""The one filter of a block: with one byte of properties, which stands for `DICTIONARY_BYTES`."""
_BOTH_SIZES = 0xC0
_CHECKED = b"\0\x01"
"""The flags of a stream whose blocks have a CRC-32."""
_CRC_BYTES = 4
_FOOTER_BYTES = 12
_ALIGN = 4


class Xz:
    """The codec of tars in xz."""

    def packer(self) -> XzPacker:
        """Start a file."""
        return XzPacker()

    def segments(self, data: memoryview) -> list[Segment]:
        """Return the blocks that the index tells of; ValueError if anything beside is amiss."""
        sizes = _sizes(data)
        found, stop = [], len(_START)
        for length, nbytes in sizes:
            crc_at = stop + _aligned(length) - _CRC_BYTES
            crc32 = int.from_bytes(data[crc_at : crc_at + _CRC_BYTES], "little")
            found.append(Segment(stop, _aligned(length), nbytes, crc32))
            stop += _aligned(length)
        if data[: len(_START)] != _START or data[stop:] != _end(sizes):
            raise ValueError("an index of other blocks")
        return found

    def unpack(self, data: memoryview, nbytes: int) -> bytes:
        """Return what a block holds, no more than one byte over `nbytes`."""
        start = (data[0] + 1) * _ALIGN if data else 0
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
        try:
            found = unpacker.decompress(data[start:-_CRC_BYTES], nbytes + 1)
        except lzma.LZMAError:
            raise ValueError("compressed bytes that are damaged") from None
        filling = unpacker.unused_data
        packed = len(data) - start - _CRC_BYTES - len(filling)
        if not unpacker.eof or data[:start] != _header(packed, nbytes):
            raise ValueError("compressed bytes that end elsewhere")
        if filling != bytes(-packed % _ALIGN):
            raise ValueError("compressed bytes that are not filled up with zeros")
        return found


class XzPacker:
    """Makes one xz file of a tar."""

    def __init__(self) -> None:
        self.start = _START
        self._sizes: list[tuple[int, int]] = []

    def add(self, content: bytes) -> bytes:
        """Return the block of these bytes; SchemaError for 2 GiB of them."""
        check_batch_bytes(len(content))
        packed = lzma.compress(content, lzma.FORMAT_RAW, filters=_FILTERS)
        header = _header(len(packed), len(content))
        self._sizes.append((len(header) + len(packed) + _CRC_BYTES, len(content)))
        return header + _filled(packed) + _crc(content)

    def end(self) -> bytes:
        """Return the index and the stream's footer."""
        return _end(self._sizes)


def _sizes(data: memoryview) -> list[tuple[int, int]]:
    """Return of each block in the index its bytes without filling, and those of what it holds."""
    footer = data[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES:
        raise ValueError("no footer of a stream")
    backward = (int.from_bytes(footer[4:8], "little") + 1) * _ALIGN
    index = data[:-_FOOTER_BYTES][-backward:]
    count, at = _number(index, 1)
    if count > len(index):
        raise ValueError("more blocks than the index holds")
    found = []
    for _ in range(count):
        length, at = _number(index, at)
        nbytes, at = _number(index, at)
        found.append((length, nbytes))
    return found


def _end(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the index of blocks of these sizes, and the footer."""
    numbers = [len(sizes), *(size for pair in sizes for size in pair)]
    index = _filled(b"\0" + b"".join(map(_vli, numbers)))
    backward = (len(index) + _CRC_BYTES) // _ALIGN - 1
    fields = struct.pack("<I", backward) + _CHECKED
    return index + _crc(index) + _crc(fields) + fields + b"YZ"


def _header(packed: int, nbytes: int) -> bytes:
    """Return the header of a block of `packed` bytes that hold `nbytes`."""
    fields = bytes([_BOTH_SIZES]) + _vli(packed) + _vli(nbytes) + _LZMA2
    size = _aligned(1 + len(fields) + _CRC_BYTES)
    header = bytes([size // _ALIGN - 1]) + fields
    header = header.ljust(size - _CRC_BYTES, b"\0")
    return header + _crc(header)


def _vli(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = b""
    while number >= 0x80:
        groups += bytes([number & 0x7F | 0x80])
        number >>= 7
    return groups + bytes([number])


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that stands there, and where it ends; ValueError where there is none."""
    number = 0
    for place in range(9):
        if at + place >= len(data):
            break
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("no number in the index")


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(_CRC_BYTES, "little")


def _aligned(size: int) -> int:
    return size + -size % _ALIGN


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGN)


_START = b"\xfd7zXZ\0" + _CHECKED + _crc(_CHECKED)
