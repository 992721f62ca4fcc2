"""Whether a FLAC ends with its last frame (RFC 9639, section 9); nothing is decoded."""

from __future__ import annotations

_ID3V1 = 128
"""Bytes of the tag that some programs put behind any audio."""
_LONGEST = 1 << 22
"""Bytes that no frame has: 65,536 samples of 8 channels and 32 bits, and some."""
_BLOCKS = (0, 192, 576, 1152, 2304, 4608, 0, 0, *(256 << i for i in range(8)))
"""Samples of a frame by its code; codes 6 and 7 say them apart."""


def ends_whole(data: bytes, start: int, frames: int | None) -> bool:
    """Return whether the last frame from `start` on is whole, and the last of `frames` samples.

    Its checksum must hold; zeros or an ID3v1 tag may follow. None: any number of samples.
    """
    stop = len(data)
    if stop - start >= _ID3V1 and data.startswith(b"TAG", stop - _ID3V1):
        stop -= _ID3V1
    if stop == start:
        return not frames
    first, at = _header(data, start), stop
    lowest = max(start, stop - _LONGEST)
    while first and (at := data.rfind(data[start : start + 2], lowest, at)) >= 0:
        end = _end_of(data, at, first[1])
        if end is not None and (frames is None or end == frames):
            return _checksum(data[at:stop]) == 0
    return False


def _end_of(data: bytes, at: int, fixed: int) -> int | None:
    """Return the sample behind the frame whose header is at `at`; None if there is none."""
    found = _header(data, at)
    if found is None:
        return None
    number, size = found
    return number + size if data[at + 1] & 1 else number * fixed + size


def _header(data: bytes, at: int) -> tuple[int, int] | None:
    """Return number (of the frame, or of its first sample) and size in samples."""
    head = data[at : at + 16]
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xFE != 0xF8:
        return None
    block, rate = head[2] >> 4, head[2] & 15
    if block == 0 or rate == 15 or head[3] >> 4 > 10 or head[3] & 1 or head[3] >> 1 & 7 == 3:
        return None
    number, length = _coded(head)
    stop = 4 + length
    size = _BLOCKS[block]
    if block in (6, 7):
        size = int.from_bytes(head[stop : stop + block - 5], "big") + 1
        stop += block - 5
    stop += {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if not length or stop >= len(head) or _short_checksum(head[: stop + 1]):
        return None
    return number, size


def _coded(head: bytes) -> tuple[int, int]:
    """Return the number coded as UTF-8 does from byte 4 on, and its bytes; (0, 0) if malformed."""
    first = head[4]
    if first < 0x80:
        return first, 1
    length = 8 - (first ^ 0xFF).bit_length()
    if length == 1 or length > 7 or 4 + length > len(head):
        return 0, 0
    number = first & (0x7F >> length)
    for byte in head[5 : 4 + length]:
        if byte & 0xC0 != 0x80:
            return 0, 0
        number = number << 6 | byte & 0x3F
    return number, length


def _table(polynomial: int, bits: int) -> tuple[int, ...]:
    """Return the remainders of each byte."""
    top, mask, made = 1 << bits - 1, (1 << bits) - 1, []
    for byte in range(256):
        value = byte << bits - 8
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value & top else 0)) & mask
        made.append(value)
    return tuple(made)


_SHORT, _LONG = _table(0x07, 8), _table(0x8005, 16)


def _short_checksum(data: bytes) -> int:
    """Return the CRC-8 of a header; 0 if it ends with its own."""
    value = 0
    for byte in data:
        value = _SHORT[value ^ byte]
    return value


def _checksum(data: bytes) -> int:
    """Return the CRC-16 of a frame; 0 if it ends with its own."""
    value, table = 0, _LONG
    for byte in data:
        value = (value << 8 & 0xFF00) ^ table[value >> 8 ^ byte]
    return value
