"""One image file judged by decoding it, or written anew: shrunk, upright, as another kind.

JPEG is decoded by libjpeg-turbo, at a reduced scale where that is enough, and as strictly as the
loader does; Pillow decodes the rest and writes. What a picture would silently lose is refused:
all frames but one, and in a PNG more than 8 bits a colour. JPEG and WebP hold 8 bits, and JPEG no
transparency, which is laid over white as in the loader. Inks (CMYK) become RGB without a profile.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from geodata.errors import MissingExtra
from geodata.prepare.exif import (
    JPEG,
    PNG,
    exif_of,
    jpeg_frame,
    jpeg_profile,
    orientation_of,
    upright,
)

Target = Literal["jpeg", "png", "webp"]

MOST_PIXELS = 89_478_485
"""Pixels of a picture (1 GiB at 12 bytes each), above which Pillow warns of a bomb."""
MOST_DRAWN = 16 * MOST_PIXELS
"""Pixels of all frames of an animation."""
LEAST_DRAWN = 1 << 14
"""As how many pixels a frame counts at least: it takes its time, however small it is."""

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
"""JPEG frames whose coefficients are all held before the first pixel comes out."""
_NATIVE = {
    "jpeg": frozenset({"L", "RGB"}),
    "png": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}),
    "webp": frozenset({"RGB", "RGBA"}),
}
"""Kinds of pixels (Pillow's modes) that a kind of file holds as they are."""
_SMOOTH = frozenset({"L", "LA", "RGB", "RGBA", "I;16"})
"""Kinds of pixels that a filter may mix."""
_COLOURS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
"""Kinds of pixels that are 8 bits of gray or of colour, in some spelling."""
_CLEAR = frozenset({"LA", "PA", "RGBA"})
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns a picture of an Exif orientation upright, in Pillow's names."""
_BITS_PER_SAMPLE, _PNG_DEPTH = 258, 24
"""A TIFF's tag, and where a PNG says the same."""
_AS_WAS: dict[str, Target] = {"JPEG": "jpeg", "WEBP": "webp"}
"""As what a shrunk image of a kind is written; GIF, BMP, TIFF and PNG: as PNG."""
_GAP = 2
"""A picture is decoded at this many times the side it is shrunk to, for the filter's sake."""


class Refused(Exception):
    """An image that cannot be decoded or written as asked; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How images are written anew: at most `side` pixels long, as `kind` (None: as they were)."""

    side: int | None
    kind: Target | None
    quality: int
    exif: bool
    """Whether the Exif block comes along."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An image written anew, and its dimensions in pixels."""

    data: bytes
    width: int
    height: int


def require_codecs() -> None:
    """Raise MissingExtra unless there is all that images are decoded and written with."""
    try:
        import PIL
        import simplejpeg
    except ImportError as error:
        raise MissingExtra.of(error.name or "pillow", "images") from error
    del PIL, simplejpeg


def dimensions(data: bytes) -> tuple[int, int]:
    """Return (width, height) in pixels of an image as its header says; Refused if it has none."""
    if data.startswith(JPEG):
        height, width = _jpeg_header(data)[:2]
        return width, height
    size: tuple[int, int] = _opened(data).size
    return size


def check(data: bytes) -> None:
    """Decode all of an image; raise Refused if that cannot be done."""
    if data.startswith(JPEG):
        _decoded_jpeg(data, None)
        return
    image = _opened(data)
    _bound(image.width * image.height)
    with _decoding(image.format):
        _draw(image)
        _opened(data).verify()  # the sums of a PNG's parts too


def _draw(image: Any) -> None:
    """Decode frame after frame: how many there are is known at the end only."""
    drawn = 0
    for frame in itertools.count():
        try:
            image.seek(frame)
        except EOFError:
            return
        _bound(image.width * image.height)
        drawn += max(image.width * image.height, LEAST_DRAWN)
        if drawn > MOST_DRAWN:
            raise Refused("an animation claims too many pixels")
        image.load()


def rewritten(data: bytes, writing: Writing) -> Rewritten:
    """Return an image written anew, upright; its colour profile comes along."""
    if data.startswith(JPEG):
        image, profile, kind = _decoded_jpeg(data, writing.side), jpeg_profile(data), "JPEG"
        size = dimensions(data)
    else:
        image = _decoded(data)
        profile, kind, size = image.info.get("icc_profile"), image.format, image.size
    target = writing.kind or _AS_WAS.get(kind, "png")
    if target == "png" and _is_deep(data, image):
        raise Refused("more than 8 bits a colour are read for JPEG and WebP only")
    size = _within(size, writing.side)
    image = _coloured(image, target, image.size == size)
    if image.size != size:
        image = image.resize(size, _imaging().Resampling.LANCZOS)
    turn = _TURNS.get(orientation_of(data))
    if turn is not None:
        image = image.transpose(getattr(_imaging().Transpose, turn))
    exif = upright(exif_of(data)) if writing.exif else b""
    made = _encoded(image, target, writing.quality, profile, exif)
    return Rewritten(made, *image.size)


def _within(size: tuple[int, int], side: int | None) -> tuple[int, int]:
    """Return the dimensions of a picture shrunk to a longer side of `side`, if it is longer."""
    share = min(1.0, (side or max(size)) / max(size))
    return max(1, round(size[0] * share)), max(1, round(size[1] * share))


def _jpeg_header(data: bytes) -> tuple[int, int, str]:
    import simplejpeg

    try:
        height, width, colours, _sampling = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise Refused("the JPEG's header is damaged, or of a kind that is not decoded") from error
    return height, width, colours


def _decoded_jpeg(data: bytes, side: int | None) -> Any:
    """Return a JPEG as a Pillow image, at a scale that still is twice `side` long if it was."""
    import simplejpeg

    height, width, colours = _jpeg_header(data)
    longer = max(height, width)
    huge = height * width > MOST_PIXELS
    wanted = min(longer, (side or longer) * (1 if huge else _GAP))
    eighths = math.ceil(8 * wanted / longer)
    if huge and jpeg_frame(data) in _PROGRESSIVE:
        _bound(height * width)
    _bound(math.ceil(height * eighths / 8) * math.ceil(width * eighths / 8))
    try:
        pixels = simplejpeg.decode_jpeg(
            data,
            colorspace="GRAY" if colours == "Gray" else "RGB",
            min_height=math.ceil(height * wanted / longer),
            min_width=math.ceil(width * wanted / longer),
            min_factor=1,
        )
    except ValueError as error:
        raise Refused("the JPEG cannot be decoded") from error
    return _imaging().fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _bound(pixels: int) -> None:
    if pixels > MOST_PIXELS:
        raise Refused(f"more than {MOST_PIXELS // 1_000_000} megapixels would have to be decoded")


def _opened(data: bytes) -> Any:
    """Return an image as Pillow sees it, not decoded yet; Refused if it sees none."""
    imaging = _imaging()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return imaging.open(io.BytesIO(data), formats=_FORMATS)
    except imaging.DecompressionBombError as error:
        raise Refused("the image claims too many pixels") from error
    except Exception as error:
        raise Refused("the file is not an image of a known kind, or is damaged") from error


@contextlib.contextmanager
def _decoding(kind: str) -> Iterator[None]:
    """Turn whatever a decoder raises into a refusal, and keep its warnings quiet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"the {kind} cannot be decoded") from error


def _decoded(data: bytes) -> Any:
    """Return an image that is no JPEG, decoded; Refused if it holds several pictures."""
    image = _opened(data)
    _bound(image.width * image.height)
    with _decoding(image.format):
        if getattr(image, "is_animated", False):
            raise Refused("a file of several pictures cannot become one picture")
        image.load()
    return image


def _coloured(image: Any, target: Target, whole: bool) -> Any:
    """Return an image of pixels that `target` holds, and that a filter may mix if not `whole`."""
    clear = "transparency" in image.info
    holds = image.mode in _NATIVE[target] and (target == "png" or not clear)
    if holds and (whole or (image.mode in _SMOOTH and not clear)):
        return image
    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PNG"):
        return _gray(image, target)
    if image.mode not in _COLOURS:
        raise Refused(f"pixels of the kind {image.mode} cannot be written as {target}")
    if clear or image.mode in _CLEAR:
        layer = image.convert("RGBA")
        return _over_white(layer) if target == "jpeg" else layer
    return image.convert("L" if image.mode in ("1", "L") and target != "webp" else "RGB")


def _is_deep(data: bytes, image: Any) -> bool:
    """Return whether a file has more bits a colour than Pillow reads."""
    if image.mode not in _COLOURS:
        return False
    if data.startswith(PNG):
        return data[_PNG_DEPTH] == 16
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, ()) if image.format == "TIFF" else ()
    return any(count > 8 for count in bits)


def _gray(image: Any, target: Target) -> Any:
    """Return gray of 16 bits: as it is in a PNG, else its upper 8 bits."""
    import numpy as np

    pixels = np.asarray(image)
    if target == "png":
        return _imaging().fromarray(pixels.astype(np.uint16))
    made = _imaging().fromarray((pixels >> 8).astype(np.uint8))
    return made.convert("RGB") if target == "webp" else made


def _over_white(layer: Any) -> Any:
    ground = _imaging().new("RGBA", layer.size, "white")
    ground.alpha_composite(layer)
    return ground.convert("RGB")


def _encoded(image: Any, target: Target, quality: int, profile: bytes | None, exif: bytes) -> bytes:
    """Return an image as a file, with the profile if that is one of its kind of colours."""
    space = b"GRAY" if image.mode in ("1", "L", "LA", "I;16") else b"RGB "
    options: dict[str, Any] = {} if target == "png" else {"quality": quality}
    if profile is not None and profile[16:20] == space:
        options["icc_profile"] = profile
    if exif:
        options["exif"] = b"Exif\0\0" + exif
    kept = {"transparency"} if target == "png" else set()
    image.info = {name: value for name, value in image.info.items() if name in kept}
    out = io.BytesIO()
    try:
        image.save(out, format=target.upper(), **options)
    except Exception as error:
        raise Refused(f"the image does not fit a {target}") from error
    return out.getvalue()


def _imaging() -> Any:
    from PIL import Image

    return Image
