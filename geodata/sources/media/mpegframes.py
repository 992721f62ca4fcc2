"""The frames of MPEG audio (MP1, MP2, MP3) and of ADTS AAC, walked by their headers alone.

Each returns (sample rate, channels, samples of each channel), or None for what is not of its kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from geodata.sources.batches import Unfit

_RATES = ((11025, 12000, 8000), (), (22050, 24000, 16000), (44100, 48000, 32000))
"""Samples a second, by version (2.5, none, 2, 1) and code."""
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_KBITS = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits a second from code 1 on, by version and layer (of version 2, layer 3 as layer 2)."""
_XING_FIELDS = ((1, 4), (2, 4), (4, 100), (8, 4))
"""Flags of a Xing header, and the bytes of the fields that they announce."""
_MOST_PADDING = 1 << 16
"""Zeros that may stand before the first frame."""

_MOST_DAMAGE = 1 << 16
"""Bytes behind the last frame that are looked through for more."""
_RUN = 4
"""Frames that are surely no chance."""

_Frame = tuple[int, int, int, int]
"""Bytes, samples, sample rate, channels."""


def mpeg_info(data: bytes, start: int) -> tuple[int, int, int | None] | None:
    """Return what the frames of an MP3 (or MP1, MP2) from `start` on say.

    Encoder delay and padding that a LAME tag states are no samples. Where a frame is damaged their
    number is None, unless the first states it. Raises Unfit where it ends inside a frame, or before
    the end that its first frame states.
    """
    head = data[start : start + _MOST_PADDING]
    start += len(head) - len(head.lstrip(b"\0"))
    first = _mpeg_frame(data, start)
    if first is None or not _goes_on(data, start, first, _mpeg_frame):
        return None
    count, frames = _walk(data, start, _mpeg_frame, "MP3")
    stated, nbytes, trimmed = _stated(data, start, first)
    if nbytes > len(data) or count < (stated or 0):
        raise Unfit("the MP3 is truncated")
    if stated is None:
        return first[2], first[3], frames
    return first[2], first[3], max(0, min(stated, count - 1) * first[1] - trimmed)


def adts_info(data: bytes, start: int) -> tuple[int, int, int | None] | None:
    """Return what the frames of an AAC in ADTS from `start` on say."""
    first = _adts_frame(data, start)
    if first is None or not _goes_on(data, start, first, _adts_frame):
        return None
    _, frames = _walk(data, start, _adts_frame, "AAC")
    return first[2], first[3], frames


def _goes_on(
    data: bytes, start: int, first: _Frame, frame: Callable[[bytes, int], _Frame | None]
) -> bool:
    """Return whether what looks like a frame is one: another follows, or the end."""
    stop = start + first[0]
    return stop >= len(data) - 3 or frame(data, stop) is not None


def _walk(
    data: bytes, at: int, frame: Callable[[bytes, int], _Frame | None], kind: str
) -> tuple[int, int | None]:
    """Return how many frames and samples there are; what follows the last may be anything.

    If more frames do, a damaged one lies between: None samples, which only decoding counts.
    """
    count = samples = 0
    while (found := frame(data, at)) is not None:
        at += found[0]
        count += 1
        samples += found[1]
        if at > len(data):
            raise Unfit(f"the {kind} is truncated")
    return count, None if _resumes(data, at, frame) else samples


def _resumes(data: bytes, at: int, frame: Callable[[bytes, int], _Frame | None]) -> bool:
    """Return whether there is a run of frames of one kind some way behind the last."""
    behind = min(at + _MOST_DAMAGE, len(data))
    while (at := data.find(b"\xff", at, behind)) >= 0:
        stop = at
        kinds: list[tuple[int, ...]] = []
        while len(kinds) < _RUN and (found := frame(data, stop)) is not None:
            stop += found[0]
            kinds.append(found[2:])
        if len(kinds) == _RUN and len(set(kinds)) == 1:
            return True
        at += 1
    return False


def _mpeg_frame(data: bytes, at: int) -> _Frame | None:
    if at + 4 > len(data) or data[at] != 0xFF or data[at + 1] < 0xE0:
        return None
    version, layer = data[at + 1] >> 3 & 3, 4 - (data[at + 1] >> 1 & 3)
    bits, rate_code = data[at + 2] >> 4, data[at + 2] >> 2 & 3
    if version == 1 or layer == 4 or bits in (0, 15) or rate_code == 3:
        return None
    first_version = version == 3
    rate = _RATES[version][rate_code]
    kbits = _KBITS[(1, layer) if first_version else (2, min(layer, 2))][bits - 1]
    padding = data[at + 2] >> 1 & 1
    channels = 1 if data[at + 3] >> 6 == 3 else 2
    if layer == 1:
        return (12_000 * kbits // rate + padding) * 4, 384, rate, channels
    samples = 576 if layer == 3 and not first_version else 1152
    return samples // 8 * 1000 * kbits // rate + padding, samples, rate, channels


def _stated(data: bytes, start: int, first: _Frame) -> tuple[int | None, int, int]:
    """Return what the first frame says: frames that follow it, bytes of all, samples to cut off.

    Xing's is that of LAME's `Info` too; without one it is an ordinary frame: None, 0, 0.
    """
    side = (32, 17) if first[1] == 1152 else (17, 9)
    at = start + 4 + side[first[3] == 1]
    if data[at : at + 4] in (b"Xing", b"Info"):
        (flags,) = struct.unpack_from(">I", data, at + 4)
        count, nbytes = struct.unpack_from(">II", data, at + 8)
        if flags & 3 != 3:
            return count if flags & 1 else None, 0, 0
        fields = sum(size for flag, size in _XING_FIELDS if flags & flag)
        return count, nbytes, _trimmed(data, at + 8 + fields)
    if data[start + 36 : start + 40] == b"VBRI":
        nbytes, count = struct.unpack_from(">II", data, start + 46)
        return count, nbytes, 0
    return None, 0, 0


def _trimmed(data: bytes, lame: int) -> int:
    """Return delay and padding in samples, 12 bits each, of a tag in LAME's form."""
    if data[lame : lame + 4] not in (b"LAME", b"Lavf", b"Lavc"):
        return 0
    packed = int.from_bytes(data[lame + 21 : lame + 24], "big")
    return (packed >> 12) + (packed & 0xFFF)


def _adts_frame(data: bytes, at: int) -> _Frame | None:
    if at + 7 > len(data) or data[at] != 0xFF or data[at + 1] & 0xF6 != 0xF0:
        return None
    rate_code = data[at + 2] >> 2 & 15
    channels = (data[at + 2] & 1) << 2 | data[at + 3] >> 6
    nbytes = (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
    if rate_code >= len(_AAC_RATES) or nbytes < 7:
        return None
    blocks = (data[at + 6] & 3) + 1
    return nbytes, 1024 * blocks, _AAC_RATES[rate_code], 8 if channels == 7 else channels
