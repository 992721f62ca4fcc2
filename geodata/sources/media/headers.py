"""What an image's header says, and whether its file goes on to its end; nothing is decoded.

Pillow reads the headers, and judges what is odd. A plain JPEG, of segments that Pillow surely
takes, is sized here.
"""

from __future__ import annotations

import warnings
from io import BytesIO

from geodata.sources.batches import Unfit

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_BEGIN = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_APP0, _QUANTIZATION, _SCAN = 0xE0, 0xDB, 0xDA
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
"""Baseline, extended sequential, progressive."""
_PASSED_OVER = frozenset({0xC4, 0xDD, 0xFE, _SCAN})
"""Huffman tables, restart interval, comment, scan header: Pillow only asks that they are there."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers that no length follows."""
_MOST_HEADERS = 4 << 10
"""Bytes of a plain JPEG before its first scan."""
_TAIL = 64
"""Bytes among which the end usually is."""
_SURELY_FEW = 1 << 26
"""Pixels of an image that Pillow surely does not take for a bomb."""


def image_size(content: bytes | memoryview) -> tuple[int, int]:
    """Return (width, height) in pixels from an image's header.

    Raises Unfit for what is no PNG, JPEG, WebP, GIF, BMP or TIFF, claims absurdly many pixels, or
    (the first three) ends before its end.
    """
    plain = plain_jpeg(bytes(content[:_MOST_HEADERS]))
    if plain is not None and _JPEG_END in bytes(content[max(plain[1], len(content) - _TAIL) :]):
        return plain[0]
    data = bytes(content)
    if plain is None:
        kind, size = _opened(data)
        whole = _is_whole(data, kind)
    else:
        kind, (size, scan) = "JPEG", plain
        whole = data.rfind(_JPEG_END, scan) >= 0
    if not whole:
        raise Unfit(f"the {kind} is truncated")
    return size


def plain_jpeg(data: bytes) -> tuple[tuple[int, int], int] | None:
    """Return (width, height) of a plain JPEG and where its first scan begins; None for all else."""
    if not data.startswith(_JPEG_BEGIN):
        return None
    size, at = (0, 0), 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, start = data[at + 1], at + 4
        at += 2 + (data[at + 2] << 8 | data[at + 3])
        if marker in _PASSED_OVER and start < at <= len(data):
            if marker == _SCAN:
                return (size, at) if 0 < size[0] * size[1] < _SURELY_FEW else None
        elif at > len(data) or not _is_plain(marker, data, start, at):
            return None
        elif marker in _FRAMES:
            if size[0]:
                return None
            size = data[start + 3] << 8 | data[start + 4], data[start + 1] << 8 | data[start + 2]
    return None


def _is_plain(marker: int, data: bytes, start: int, stop: int) -> bool:
    """Return whether Pillow surely takes the segment with these contents."""
    length = stop - start
    if marker == _QUANTIZATION:
        return length > 0 and length % 65 == 0 and max(data[start:stop:65]) < 16
    if marker == _APP0:
        return length >= 14 and data.startswith(b"JFIF\0", start)
    layers = data[start + 5] if marker in _FRAMES and length >= 6 else 0
    return layers in (1, 3) and length == 6 + 3 * layers and data[start] == 8


def _opened(data: bytes) -> tuple[str | None, tuple[int, int]]:
    """Return format and size of an image as Pillow sees it; Unfit if it sees none."""
    from PIL import Image

    if not data:
        raise Unfit("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                return image.format, image.size
    except Image.DecompressionBombError as error:
        raise Unfit("the image claims too many pixels") from error
    except Exception as error:
        raise Unfit("the file is not an image of a known kind, or its header is damaged") from error


def _is_whole(data: bytes, kind: str | None) -> bool:
    """Return whether the file has its end, whatever may follow."""
    if kind == "PNG":
        return data.rfind(_PNG_END) >= 0
    if kind in ("JPEG", "MPO"):
        return data.rfind(_JPEG_END, _jpeg_scan(data)) >= 0
    if kind == "WEBP":
        return len(data) >= 8 + int.from_bytes(data[4:8], "little")
    return True


def _jpeg_scan(data: bytes) -> int:
    """Return where the first scan's header ends: previews in the headers before have ends too."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            if marker == _SCAN:
                break
    return at
