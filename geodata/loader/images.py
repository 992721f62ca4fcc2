"""Encoded images → uint8 [B, 3, size, size], whole or by random crops, in threads."""

from __future__ import annotations

import functools
import io
import math
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from geodata.config import ImageSection
from geodata.errors import MissingExtra
from geodata.loader.seeds import Seeds

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a crop, as shares of the image's width and height."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of one image: with a crop of `area` at (x, y), else its centre.

    `area` is a share of the image's, `aspect` width by height; x and y in [0, 1) say where the crop
    lies in the room it has.
    """

    area: float | None = None
    aspect: float = 1.0
    x: float = 0.5
    y: float = 0.5
    mirrored: bool = False

    def box(self, width: int, height: int) -> Box:
        """Return the crop of an image of these dimensions: clipped to it, else as drawn."""
        if self.area is None:
            side = min(width, height)
            wide, high = side / width, side / height
        else:
            pixels = self.area * width * height
            wide = min(math.sqrt(pixels * self.aspect) / width, 1.0)
            high = min(math.sqrt(pixels / self.aspect) / height, 1.0)
        left, top = self.x * (1 - wide), self.y * (1 - high)
        return left, top, left + wide, top + high


CENTRE = View()


def draw_views(section: ImageSection, seeds: Seeds) -> list[View]:
    """Return a view per sample: areas uniform, aspects uniform in their logarithm.

    The distribution is that of Szegedy et al. 2015, section 6; where their crop does not fit the
    image, ours is clipped to it.
    """
    count = len(seeds.samples)
    mirrored = seeds.uniform("flip") < 0.5 if section.flip else np.zeros(count, np.bool_)
    if section.crop == "center":
        return [View(mirrored=bool(flag)) for flag in mirrored]
    low, high = section.area
    areas = low + (high - low) * seeds.uniform("crop area")
    first, last = map(math.log, section.aspect)
    aspects = np.exp(first + (last - first) * seeds.uniform("crop aspect"))
    places = seeds.uniform("crop x"), seeds.uniform("crop y")
    columns = [drawn.tolist() for drawn in (areas, aspects, *places, mirrored)]
    return [View(*drawn) for drawn in zip(*columns, strict=True)]


class ImageDecoder:
    """Decodes a column in threads: the decoders release the GIL.

    Random crops and flips are drawn where `augmented`; else all views are of the centre.
    """

    def __init__(self, section: ImageSection, augmented: bool):
        self.section = section
        self.augmented = augmented and (section.flip or section.crop == "random")
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def __call__(
        self,
        column: pa.Array,
        there: Sequence[bool],
        seeds: Seeds,
        bad: Callable[[int, str], None],
        places: Sequence[int],
        count: int,
    ) -> torch.Tensor:
        """Decode a column into a tensor of `count` images at these places, 0 elsewhere.

        A row that is `there` but cannot be decoded is told to `bad`. The colours of a pixel lie
        together in memory (channels last).
        """
        out = np.zeros((count, self.section.size, self.section.size, 3), np.uint8)
        buffers = [value.as_buffer() if value.is_valid else None for value in column]
        views = draw_views(self.section, seeds) if self.augmented else [CENTRE] * len(column)

        def one(row: int) -> str | None:
            data = buffers[row]
            if data is None:
                return "a record has no image" if there[row] else None
            image = out[places[row]]
            try:
                decode_into(image, data, views[row])
            except MissingExtra:
                raise
            except Exception as error:
                image[:] = 0
                return f"an image cannot be decoded: {error}"
            return None

        for row, reason in enumerate(self._pool().map(one, range(len(column)))):
            if reason is not None:
                bad(row, reason)
        return torch.from_numpy(out).permute(0, 3, 1, 2)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None or self._pid != os.getpid():
            self._threads = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
            self._pid = os.getpid()
        return self._threads

    def __getstate__(self) -> dict[str, Any]:
        return {"section": self.section, "augmented": self.augmented}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


@functools.cache
def _imaging() -> Any:
    """Return Pillow's module; its warning of large images is off: `convert` bounds their size."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image


def decode_image(data: Any, size: int, view: View = CENTRE) -> Pixels:
    """Return what `view` sees of an encoded image, scaled to uint8 [size, size, 3]."""
    out = np.empty((size, size, 3), np.uint8)
    decode_into(out, data, view)
    return out


def decode_into(out: Pixels, data: Any, view: View = CENTRE) -> None:
    """Fill `out` [size, size, 3] with what `view` sees of an encoded image, scaled.

    JPEG is decoded at a reduced scale where that is enough. Transparency is laid over white.
    """
    raw, imaging = memoryview(data).cast("B"), _imaging()
    if bytes(raw[:2]) == b"\xff\xd8":
        pixels, box = _decode_jpeg(raw, out, view)
        if pixels.shape == out.shape and box == WHOLE:
            if pixels is not out:
                out[:] = pixels[:, ::-1] if view.mirrored else pixels
            return
        image = imaging.fromarray(pixels)
    else:
        image = _in_colour(imaging.open(io.BytesIO(raw)))
        box = view.box(*image.size)
    width, height = image.size
    found = (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
    seen = image.resize(out.shape[:2], imaging.Resampling.BILINEAR, box=found, reducing_gap=2.0)
    if view.mirrored:
        seen = seen.transpose(imaging.Transpose.FLIP_LEFT_RIGHT)
    if seen.mode == "RGBA":
        layer, seen = seen, imaging.new("RGBA", seen.size, "white")
        seen.alpha_composite(layer)
    out[:] = np.asarray(seen)[..., :3]


def _in_colour(image: Any) -> Any:
    """Return a Pillow image as RGB, or RGBA where parts are transparent; 16 bits become 8."""
    if image.mode.startswith("I"):
        image = _imaging().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    see_through = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    return image.convert("RGBA" if see_through else "RGB")


def _decode_jpeg(raw: memoryview, out: Pixels, view: View) -> tuple[Pixels, Box]:
    """Return the image, at a scale at which the crop still has the size of `out`, and the crop.

    What needs neither scaling nor mirroring is decoded into `out`.
    """
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtra.of("simplejpeg", "images") from error
    height, width, _colours, _sampling = simplejpeg.decode_jpeg_header(raw)
    box, size = view.box(width, height), len(out)
    is_seen = box == WHOLE and (height, width, 3) == out.shape and not view.mirrored
    decoded: Pixels = simplejpeg.decode_jpeg(
        raw,
        colorspace="RGB",
        min_height=math.ceil(size / (box[3] - box[1])),
        min_width=math.ceil(size / (box[2] - box[0])),
        min_factor=1,
        buffer=out if is_seen else None,
    )
    return (out if is_seen else decoded), box
