"""Takes out of image files what cameras and editors add, without touching a pixel.

What showing the picture needs is kept, and nothing else: frames, tables, pixels, transparency,
colour profiles. So Exif (place, time, device, thumbnail), XMP, IPTC, comments and whatever stands
behind the picture's end go, also of kinds that are not known yet. A turned picture (Exif
orientation other than 1) keeps a new Exif block that says this alone. Only lengths and names are
read, each within the file, and every step goes forwards.

Segments: ITU-T T.81 annex B (JPEG); PNG third edition, section 5; RFC 9649 (WebP); GIF89a,
section 15 ff.; TIFF 6.0, section 2; CIPA DC-008 (Exif).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Literal
from zlib import crc32

JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"

_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""The next segment of a JPEG: zeros are stuffed, 0xD0 to 0xD7 only restart the decoder."""
_SCAN, _END = 0xDA, 0xD9
_APP0, _APP1, _APP2, _APP14 = 0xE0, 0xE1, 0xE2, 0xEE
_APPS, _CODING = range(0xE0, 0xF0), range(0xC0, 0xE0)
_BARE = frozenset({0x01, 0xD8, _END})
"""Markers that no length follows."""
_EXIF, _ICC, _JFIF = b"Exif\0", b"ICC_PROFILE\0", b"JFIF\0"
_JFIF_BYTES = 14

_PNG_KEPT = frozenset(
    b"tRNS gAMA cHRM sRGB iCCP sBIT cICP mDCV cLLI bKGD hIST pHYs acTL fcTL fdAT".split()
)
"""Chunks kept beside the critical ones, whose names begin with a capital."""
_WEBP_KEPT = frozenset((b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP"))
_WEBP_EXIF, _WEBP_XMP = 0x08, 0x04
_GIF_KEPT = frozenset((b"NETSCAPE2.0", b"ANIMEXTS1.0", b"ICCRGBG1012"))
"""Applications whose blocks say how a GIF is shown."""
_TIFF_KEPT = frozenset(
    number
    for first, last in (
        *((254, 259), (262, 263), (266, 266), (273, 274), (277, 284), (290, 293), (296, 297)),
        *((301, 301), (317, 325), (332, 332), (334, 334), (336, 336), (338, 342)),
        *((347, 347), (512, 521), (529, 532), (34675, 34675)),
    )
    for number in range(first, last + 1)
)
"""Tags of a TIFF that only say how its pixels are laid out and shown."""
_ORIENTATION, _SHORT = 0x0112, 3


class CannotStrip(Exception):
    """A file whose structure cannot be followed to its end; the text says why, in one line."""


def stripped(data: bytes) -> bytes:
    """Return the image without all that showing it does not need; `data` itself if that is all.

    Raises CannotStrip for a damaged file, a TIFF that holds more than its picture, and a kind of
    file that is not known. BMP has no room for such data.
    """
    if data.startswith(JPEG):
        made = _strip_jpeg(data)
    elif data.startswith(PNG):
        made = _strip_png(data)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        made = _strip_webp(data)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        made = _strip_gif(data)
    elif data.startswith((b"II", b"MM")):
        made = _checked_tiff(data)
    elif data and not data.startswith(b"BM"):
        raise CannotStrip("the file is not an image of a known kind")
    else:
        made = data
    return data if made == data else made


def exif_of(data: bytes) -> bytes:
    """Return the Exif block (a TIFF without pixels) of a JPEG, PNG or WebP; empty if none."""
    try:
        if data.startswith(JPEG):
            return _exif_of_jpeg(data)
        if data.startswith(PNG):
            return next((data[a + 8 : b - 4] for k, a, b in _chunks(data) if k == b"eXIf"), b"")
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return next((_bare_exif(data, a, b) for k, a, b in _riff(data) if k == b"EXIF"), b"")
    except CannotStrip:
        pass
    return b""


def orientation_of(data: bytes) -> int:
    """Return how a picture is to be turned, 1 (upright) to 8, as its Exif block says."""
    block = exif_of(data)
    at, order = _orientation_place(block)
    return int.from_bytes(block[at : at + 2], order) if at else 1


def upright(block: bytes) -> bytes:
    """Return an Exif block whose orientation, if it has one, is 1."""
    at, order = _orientation_place(block)
    return block[:at] + (1).to_bytes(2, order) + block[at + 2 :] if at else block


def jpeg_profile(data: bytes) -> bytes:
    """Return the colour profile of a JPEG, joined from its parts; empty if it has none."""
    parts: dict[int, bytes] = {}
    try:
        for marker, start, stop in _segments(data):
            if marker == _APP2 and data.startswith(_ICC, start + 4):
                parts[data[start + 16] if start + 16 < stop else 0] = data[start + 18 : stop]
    except CannotStrip:
        return b""
    return b"".join(parts[number] for number in sorted(parts))


def jpeg_frame(data: bytes) -> int:
    """Return the marker of a JPEG's frame (0xC2: progressive); 0 if none comes before its scan."""
    try:
        for marker, _start, _stop in _segments(data):
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                return marker
            if marker == _SCAN:
                break
    except CannotStrip:
        pass
    return 0


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of each segment of a JPEG; coded pixels belong to their scan."""
    at = 2
    while found := _MARKER.search(data, at):
        start, marker = found.start(), data[found.end() - 1]
        at = found.end()
        if marker not in _BARE:
            length = int.from_bytes(data[at : at + 2], "big")
            if length < 2:
                raise CannotStrip("a segment of the JPEG has no length")
            at += length
        if marker == _SCAN:
            following = _MARKER.search(data, at)
            at = following.start() if following else len(data) + 1
        if at > len(data):
            break
        yield marker, start, at
        if marker == _END:
            return
    raise CannotStrip("the JPEG is truncated")


def _strip_jpeg(data: bytes) -> bytes:
    parts: list[bytes] = []
    for marker, start, stop in _segments(data):
        if marker == _APP0:
            parts += _jfif(data, start, stop)
        elif _is_kept(marker, data, start):
            parts.append(data[start:stop])
    parts.insert(int(parts[0][1] == _APP0), _jpeg_note(orientation_of(data)))
    return data[:2] + b"".join(parts)


def _is_kept(marker: int, data: bytes, start: int) -> bool:
    if marker in _APPS:
        icc = marker == _APP2 and data.startswith(_ICC, start + 4)
        return icc or (marker == _APP14 and data.startswith(b"Adobe", start + 4))
    return marker in _CODING


def _jfif(data: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Yield a JFIF header, without its thumbnail; nothing for another segment of this number."""
    body = data[start + 4 : stop]
    if len(body) >= _JFIF_BYTES and body.startswith(_JFIF):
        head = struct.pack(">BBH", 0xFF, _APP0, _JFIF_BYTES + 2)
        yield head + body[: _JFIF_BYTES - 2] + b"\0\0"


def _jpeg_note(orientation: int) -> bytes:
    if orientation == 1:
        return b""
    body = _EXIF + b"\0" + _note(orientation)
    return struct.pack(">BBH", 0xFF, _APP1, len(body) + 2) + body


def _exif_of_jpeg(data: bytes) -> bytes:
    for marker, start, stop in _segments(data):
        if marker == _APP1 and data.startswith(_EXIF, start + 4):
            return data[start + 10 : stop]
        if marker == _SCAN:
            break
    return b""


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, stop) of each chunk of a PNG, up to its end."""
    at = len(PNG)
    while at + 12 <= len(data):
        name, stop = data[at + 4 : at + 8], at + 12 + int.from_bytes(data[at : at + 4], "big")
        if not name.isalpha():
            raise CannotStrip("a chunk of the PNG has no name")
        if stop > len(data):
            break
        yield name, at, stop
        if name == b"IEND":
            return
        at = stop
    raise CannotStrip("the PNG is truncated")


def _strip_png(data: bytes) -> bytes:
    parts, orientation = [PNG], orientation_of(data)
    for name, start, stop in _chunks(data):
        if name[:1].isupper() or name in _PNG_KEPT:
            parts.append(data[start:stop])
        if name == b"IHDR" and orientation != 1:
            body = b"eXIf" + _note(orientation)
            parts.append(struct.pack(">I", len(body) - 4) + body + struct.pack(">I", crc32(body)))
    return b"".join(parts)


def _riff(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start, stop) of each chunk of a WebP, the byte that pads it included."""
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise CannotStrip("the WEBP is truncated")
    at = 12
    while at + 8 <= end:
        stop = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        if stop > end:
            raise CannotStrip("a chunk of the WEBP goes on behind its end")
        yield data[at : at + 4], at, min(stop + (stop & 1), end)
        at = stop + (stop & 1)


def _strip_webp(data: bytes) -> bytes:
    chunks = [(name, data[start:stop]) for name, start, stop in _riff(data) if name in _WEBP_KEPT]
    orientation = orientation_of(data)
    turned = orientation != 1 and any(name == b"VP8X" for name, _ in chunks)
    parts = [_flagged(chunk, turned) if name == b"VP8X" else chunk for name, chunk in chunks]
    if turned:
        note = _note(orientation)
        parts.append(b"EXIF" + struct.pack("<I", len(note)) + note)
    body = b"WEBP" + b"".join(part + bytes(len(part) & 1) for part in parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _flagged(chunk: bytes, has_exif: bool) -> bytes:
    """Return the header of an extended WebP that announces Exif or not, and no XMP."""
    flags = int.from_bytes(chunk[8:9]) & ~(_WEBP_EXIF | _WEBP_XMP)
    return chunk[:8] + bytes([flags | (_WEBP_EXIF if has_exif else 0)]) + chunk[9:]


def _bare_exif(data: bytes, start: int, stop: int) -> bytes:
    """Return the block of an EXIF chunk, which some writers begin as JPEG has it."""
    return data[start + 8 : stop].removeprefix(_EXIF + b"\0")


def _strip_gif(data: bytes) -> bytes:
    at = 13 + _gif_colours(data[10:11])
    parts = [data[:at]]
    while at < len(data):
        start, kind = at, data[at]
        if kind == 0x3B:
            parts.append(data[at : at + 1])
            break
        if kind == 0x2C:
            at = _gif_blocks(data, at + 11 + _gif_colours(data[at + 9 : at + 10]))
            parts.append(data[start:at])
        elif kind == 0x21:
            at = _gif_blocks(data, at + 2)
            if _is_shown(data, start):
                parts.append(data[start:at])
        elif kind == 0:  # a block of no kind, which decoders step over
            at += 1
        else:
            raise CannotStrip("a block of the GIF is of no known kind")
    return b"".join(parts)


def _gif_colours(flags: bytes) -> int:
    """Return the bytes of the colour table that the flags announce."""
    if not flags:
        raise CannotStrip("the GIF is truncated")
    return 3 << (flags[0] & 7) + 1 if flags[0] & 0x80 else 0


def _gif_blocks(data: bytes, at: int) -> int:
    """Return where the sub-blocks that begin at `at` end."""
    while at < len(data):
        length = data[at]
        at += 1 + length
        if not length:
            return at
    raise CannotStrip("the GIF is truncated")


def _is_shown(data: bytes, start: int) -> bool:
    """Return whether an extension says how the picture is shown: timing, loops, colours, text."""
    label = data[start + 1]
    return label in (0x01, 0xF9) or (label == 0xFF and data[start + 3 : start + 14] in _GIF_KEPT)


def _checked_tiff(data: bytes) -> bytes:
    """Return the file if its directories hold nothing but the layout of its pixels."""
    order = _byte_order(data)
    if order is None:
        raise CannotStrip("the file is not an image of a known kind")
    at, room = int.from_bytes(data[4:8], order), len(data)
    while at:
        entries = int.from_bytes(data[at : at + 2], order)
        stop = at + 2 + 12 * entries
        room -= stop + 4 - at
        if not entries or stop + 4 > len(data) or room < 0:
            raise CannotStrip("the TIFF is truncated, or its directories overlap")
        tags = {int.from_bytes(data[i : i + 2], order) for i in range(at + 2, stop, 12)}
        if tags - _TIFF_KEPT:
            raise CannotStrip("what a TIFF holds beside its picture goes only if it is encoded")
        at = int.from_bytes(data[stop : stop + 4], order)
    return data


def _byte_order(block: bytes) -> Literal["little", "big"] | None:
    orders: dict[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
    return orders.get(block[:4])


def _orientation_place(block: bytes) -> tuple[int, Literal["little", "big"]]:
    """Return where an Exif block says the orientation (0 where it says none), and its order."""
    order = _byte_order(block)
    if order is None:
        return 0, "little"
    first = int.from_bytes(block[4:8], order)
    count = int.from_bytes(block[first : first + 2], order)
    for at in range(first + 2, min(first + 2 + 12 * count, len(block) - 11), 12):
        tag, kind = (int.from_bytes(block[i : i + 2], order) for i in (at, at + 2))
        if tag == _ORIENTATION:
            value = int.from_bytes(block[at + 8 : at + 10], order)
            return (at + 8 if kind == _SHORT and 1 <= value <= 8 else 0), order
    return 0, order


def _note(orientation: int) -> bytes:
    """Return an Exif block that says the orientation alone."""
    entry = struct.pack("<HHIHH", _ORIENTATION, _SHORT, 1, orientation, 0)
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
