"""The frames of a TFRecord file.

A frame is the length of its data (uint64), the checksum of these 8 bytes, the data, and the
checksum of the data. A checksum is a CRC-32C, rotated right by 15 bits plus a constant, so that
data which hold checksums have good ones themselves. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import CorruptShard, MissingExtra

try:
    import google_crc32c
except ImportError:
    raise MissingExtra.of("google-crc32c", "tfrecord") from None

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Data: TypeAlias = bytes | pa.Buffer

HEAD = 12
"""Bytes before the data."""
TAIL = 4
"""Bytes after the data."""
FRAME = HEAD + TAIL

_LENGTH = struct.Struct("<Q")
_TAIL = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


class Frames(NamedTuple):
    """Where the data of successive frames lie in a file."""

    offsets: Int64s
    sizes: Int64s

    def pick(self, which: slice | Int64s) -> Frames:
        """Return some of the frames."""
        return Frames(self.offsets[which], self.sizes[which])

    def marks(self, data: Bytes) -> bytes:
        """Return all bytes of these frames but the data; `data` is the file."""
        heads = data[(self.offsets - HEAD)[:, None] + np.arange(HEAD)]
        tails = data[(self.offsets + self.sizes)[:, None] + np.arange(TAIL)]
        return np.concatenate([heads, tails], axis=1).tobytes()


def checksum(data: Data) -> int:
    """Return the masked checksum."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def framed(pieces: Sequence[Data]) -> list[Data]:
    """Return head, data and tail of the frame of each piece, in order."""
    parts: list[Data] = [b""] * (3 * len(pieces))
    parts[0::3] = [_head(len(piece)) for piece in pieces]
    parts[1::3] = pieces
    parts[2::3] = [_TAIL.pack(checksum(piece)) for piece in pieces]
    return parts


def scan(data: memoryview, shard: str) -> Frames:
    """Return the frames of a file, at least one, following their lengths.

    The checksums of the lengths are verified; those of the data are not, so their pages stay
    untouched. Raises CorruptShard where a length is damaged or leads out of the file.
    """
    ends = [_end(data, 0, shard)]
    while ends[-1] < len(data):
        ends.append(_end(data, ends[-1], shard))
    bounds = np.array([0, *ends], np.int64)
    return Frames(bounds[:-1] + HEAD, bounds[1:] - bounds[:-1] - FRAME)


def _head(length: int) -> bytes:
    packed = _LENGTH.pack(length)
    return packed + _TAIL.pack(checksum(packed))


def _end(data: memoryview, at: int, shard: str) -> int:
    """Return where the frame that starts here ends."""
    head = bytes(data[at : at + HEAD])
    length = int.from_bytes(head[:8], "little")
    if length > len(data) - at - FRAME or head != _head(length):
        raise CorruptShard(f"no whole frame at byte {at}", shard=shard)
    return at + length + FRAME
