"""The blocks of a tar file: member headers, padding, and names made from keys.

Headers are POSIX ustar with mode 0644 and with owner and time zero, so equal members are equal
bytes; a name over 100 bytes stands in a pax header before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import ragged
from geodata.errors import CorruptShard

Int64s = npt.NDArray[np.int64]

BLOCK = 512
NAME_BYTES = 100
"""How long a name may be without a pax header."""
END = bytes(2 * BLOCK)
"""Closes a tar file."""

_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]
_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"\0" + b"0" * 11 + b"\0"
_REST = bytes(100) + b"ustar\0" + b"00" + bytes(247)
_CHECKSUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")

_SAFE = np.zeros(256, bool)
_SAFE[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")] = True
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class Entry(NamedTuple):
    """A member of a tar file: `start` of its header, `offset` and `size` of its content."""

    name: bytes
    start: int
    offset: int
    size: int


def header(name: bytes, size: int) -> bytes:
    """Return all blocks before the content of a regular file."""
    if len(name) <= NAME_BYTES:
        return _block(name, size, b"0")
    record = _pax_record(name)
    return _block(b"././@PaxHeader", len(record), b"x") + padded(record) + _block(name, size, b"0")


def header_nbytes(name_nbytes: Int64s) -> Int64s:
    """Return the length of the headers of members whose names have these lengths."""
    record = name_nbytes + len("12345 path=\n")
    return np.where(name_nbytes <= NAME_BYTES, BLOCK, 2 * BLOCK + padded_nbytes(record))


def padding(size: int) -> bytes:
    """Return the zeros that follow content of this size."""
    return _PADDING[size % BLOCK]


def padded(content: bytes) -> bytes:
    """Return content filled up to whole blocks."""
    return content + padding(len(content))


def padded_nbytes(size: Int64s) -> Int64s:
    """Return sizes rounded up to whole blocks."""
    return size + -size % BLOCK


def entries(data: memoryview, shard: str, *, ends: bool = True) -> Iterator[Entry]:
    """Yield the members of a tar file up to its end mark; without `ends`, those of a run.

    Raises CorruptShard, naming the last member read, for a header that `header` would not write
    and for a file that stops early.
    """
    at, name = 0, b""
    while bytes(data[at : at + BLOCK]) != END[:BLOCK] if ends else at < len(data):
        try:
            entry = _entry(data, at)
        except ValueError as error:
            raise CorruptShard(f"{error} after member", shard=shard, file=name.decode()) from None
        at, name = entry.offset + entry.size + -entry.size % BLOCK, entry.name
        yield entry
    if ends and bytes(data[at : at + len(END) + 1]) != END:
        raise CorruptShard("the tar file does not end where it should", shard=shard)


def stems(keys: pa.Array) -> list[bytes | None]:
    """Return each key percent-encoded, all but [A-Za-z0-9_-]; None for null, "%" for empty."""
    data, ends, bounds = _measure(keys)
    encoded = _percent(data, ends).tobytes()
    spans = zip(pairwise(bounds.tolist()), keys.is_valid().to_pylist(), strict=True)
    return [(encoded[start:stop] or b"%") if valid else None for (start, stop), valid in spans]


def stem_nbytes(keys: pa.Array) -> Int64s:
    """Return the lengths of the stems of these keys."""
    _, _, bounds = _measure(keys)
    return np.maximum(np.diff(bounds), 1)


def key_of(stem: bytes) -> str:
    """Return the key that `stems` encoded; ValueError when it did not."""
    return "" if stem == b"%" else unquote_to_bytes(stem).decode()


def _measure(keys: pa.Array) -> tuple[npt.NDArray[np.uint8], Int64s, Int64s]:
    """Return the keys' bytes, where each byte's encoding ends (from 0), and each key's."""
    offsets, data = ragged(keys)
    data = data[offsets[0] : offsets[-1]]
    ends = np.concatenate([[0], np.cumsum(np.where(_SAFE[data], 1, 3))])
    return data, ends, ends[offsets - offsets[0]]


def _percent(data: npt.NDArray[np.uint8], ends: Int64s) -> npt.NDArray[np.uint8]:
    """Return the percent-encoded bytes of what `_measure` measured."""
    out = np.empty(int(ends[-1]), np.uint8)
    safe = _SAFE[data]
    out[ends[:-1][safe]] = data[safe]
    unsafe, at = data[~safe], ends[:-1][~safe]
    out[at] = ord("%")
    out[at + 1] = _HEX[unsafe >> 4]
    out[at + 2] = _HEX[unsafe & 15]
    return out


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    name = name[:NAME_BYTES]
    digits = b"%011o" % size
    total = _CHECKSUM + sum(name) + sum(digits) + kind[0]
    return b"".join(
        (name.ljust(NAME_BYTES, b"\0"), _OWNER, digits, _TIME, b"%06o\0 " % total, kind, _REST)
    )


def _pax_record(name: bytes) -> bytes:
    """Return the record "LENGTH path=NAME", whose length counts its own digits."""
    body = b" path=" + name + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def _entry(data: memoryview, start: int) -> Entry:
    """Return the member whose header starts here; ValueError if there is none whole."""
    name, size, kind = _parse(data, start)
    offset = start + BLOCK
    if kind == b"x":
        record = bytes(data[offset : offset + size])
        name = record[record.find(b"=") + 1 : -1]
        if _pax_record(name) != record:
            raise ValueError("a broken pax header")
        offset += size + -size % BLOCK
        _, size, kind = _parse(data, offset)
        offset += BLOCK
    if kind != b"0":
        raise ValueError("a member that is no regular file")
    if offset + size > len(data):
        raise ValueError("the tar file is cut off")
    return Entry(name, start, offset, size)


def _parse(data: memoryview, at: int) -> tuple[bytes, int, bytes]:
    block = bytes(data[at : at + BLOCK])
    if len(block) < BLOCK:
        raise ValueError("the tar file is cut off")
    name, size, kind = block[:NAME_BYTES].rstrip(b"\0"), block[124:135], block[156:157]
    if not size.isdigit() or b"8" in size or b"9" in size or block[257:265] != _REST[100:108]:
        raise ValueError("a broken header")
    return name, int(size, 8), kind
