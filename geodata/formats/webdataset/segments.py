"""A compressed tar as segments, each of which is a range of the file and can be unpacked alone.

The first holds the tar's first member, the last its last member and its end; each between them
holds a unit's run of members. To any other reader the file is one compressed stream.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from geodata.errors import CorruptShard
from geodata.formats.units import BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [offset, offset + length) of a file, and what they hold: `nbytes` of the tar."""

    offset: int
    length: int
    nbytes: int
    crc32: int
    """Of the bytes of the tar."""


class Packer(Protocol):
    """Makes a file of one tar, piece by piece."""

    start: bytes
    """Before the first segment."""

    def add(self, content: bytes) -> bytes:
        """Return the segment that holds the next bytes of the tar, of which there are some."""

    def end(self) -> bytes:
        """Return what follows the last segment."""


class Codec(Protocol):
    """One way to compress a tar by segments."""

    def packer(self) -> Packer:
        """Start a file."""

    def segments(self, data: memoryview) -> list[Segment]:
        """Return the segments of a file; ValueError if `Packer` would not frame them so."""

    def unpack(self, data: memoryview, nbytes: int) -> bytes:
        """Return what a segment holds, no more than one byte over `nbytes`.

        Raises ValueError where it is damaged or does not end where it should.
        """


class Plain:
    """The packer of a tar that is not compressed."""

    start = b""

    def add(self, content: bytes) -> bytes:
        """Return the bytes as they are."""
        return content

    def end(self) -> bytes:
        """Return nothing."""
        return b""


def unpacked(
    codec: Codec, data: memoryview, segments: Sequence[Segment], number: int, shard: str
) -> bytes:
    """Return what a segment of a file holds; CorruptShard where it is not what it should be."""
    segment = segments[number]
    packed = data[segment.offset : segment.offset + segment.length]
    try:
        if not 0 < segment.nbytes < BATCH_BYTES:
            raise ValueError("compressed bytes of a length that no writer makes")
        found = codec.unpack(packed, segment.nbytes)
        if len(found) != segment.nbytes or zlib.crc32(found) != segment.crc32:
            raise ValueError("compressed bytes that are damaged")
    except ValueError as error:
        unit: dict[str, Any] = {}
        if 0 < number < len(segments) - 1:
            unit["unit"] = number - 1
        raise CorruptShard(str(error), shard=shard, **unit) from None
    return found
