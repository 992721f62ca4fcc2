"""Records as one picture: a tile for each, with what it shows, its labels and its region."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from geodata.durable import replacing
from geodata.errors import MissingExtra
from geodata.jobs.shown import label_text, tensor_of, tensor_text
from geodata.schema import KEY, SUBJECT, is_label, is_tensor, media_of

if TYPE_CHECKING:
    from PIL.Image import Image

TILE = 192
CAPTION = 64
MARGIN = 12
ACROSS = 6
LINE = 14
FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "Arial Unicode.ttf", "Arial.ttf")
"""Tried in this order; Pillow's own knows Latin letters only."""

INK, PALE, PAPER, BACKGROUND = "#1a1a1a", "#6b6b6b", "#ffffff", "#e9e9e6"
REGIONS = ("#2f6db3", "#b3572f", "#3d8a4e", "#7d4fa3", "#a38a2f", "#2f9aa3")


@dataclass(frozen=True, slots=True)
class Tile:
    """What is drawn of a record: a picture, or else text; and a caption of a few lines."""

    region: str
    picture: Image | None
    text: str
    caption: Sequence[str]


def draw(title: str, tiles: Sequence[Tile], path: Path) -> None:
    """Write the tiles as a PNG, six in a row; StoreError if the path cannot be written."""
    picture = _imaging()
    across = max(1, min(ACROSS, len(tiles)))
    down = -(-len(tiles) // across)
    width = MARGIN + across * (TILE + MARGIN)
    height = 3 * MARGIN + LINE + down * (TILE + CAPTION + MARGIN)
    sheet = picture.new("RGB", (width, height), BACKGROUND)
    pen = _Pen(sheet)
    pen.line((MARGIN, MARGIN), title, INK, width - 2 * MARGIN)
    colours = {region: REGIONS[i % len(REGIONS)] for i, region in enumerate(_regions(tiles))}
    for number, tile in enumerate(tiles):
        left = MARGIN + number % across * (TILE + MARGIN)
        top = 2 * MARGIN + LINE + number // across * (TILE + CAPTION + MARGIN)
        pen.tile(tile, (left, top), colours[tile.region])
    with replacing(path) as temporary:
        sheet.save(temporary, "png")


def tile_of(
    batch: pa.RecordBatch, row: int, region: str, labels: Mapping[str, Sequence[str]]
) -> Tile:
    """Return the tile of a record: its first image or tensor to be seen, else its longest text."""
    one = batch.slice(row, 1)
    columns = {f: array for f, array in zip(one.schema, one, strict=True) if not array.null_count}
    pictures = (_picture(field, array) for field, array in columns.items())
    picture = next((found for found in pictures if found is not None), None)
    text = max((_text(field, array) for field, array in columns.items()), key=len, default="")
    caption = [_tail(str(one.column(KEY)[0]), 30), region]
    caption += [
        f"{field.name}: {_value(field, array, labels)}"
        for field, array in columns.items()
        if _captioned(field)
    ]
    return Tile(region, picture, text, caption[: CAPTION // LINE])


class _Pen:
    """Draws onto a sheet."""

    def __init__(self, sheet: Image):
        from PIL import ImageDraw

        self._sheet = sheet
        self._draw = ImageDraw.Draw(sheet)
        self._font = _font(11)

    def line(self, at: tuple[int, int], text: str, ink: str, width: int) -> None:
        """Write one line, cut to fit."""
        text = " ".join(text.split())
        while text and self._draw.textlength(text, self._font) > width:
            text = text[: max(len(text) - 2, 0)] + ("…" if len(text) > 2 else "")
            if len(text) <= 1:
                break
        self._draw.text(at, text, ink, self._font)

    def tile(self, tile: Tile, at: tuple[int, int], colour: str) -> None:
        """Draw picture or text, a bar in the region's colour, and the caption."""
        left, top = at
        self._draw.rectangle((left, top, left + TILE - 1, top + TILE + CAPTION - 5), PAPER)
        if tile.picture is not None:
            shown = tile.picture
            place = (left + (TILE - shown.width) // 2, top + (TILE - shown.height) // 2)
            self._sheet.paste(shown, place)
        else:
            self._paragraph(tile.text, (left + 6, top + 6))
        self._draw.rectangle((left, top + TILE, left + TILE - 1, top + TILE + 2), colour)
        for number, text in enumerate(tile.caption):
            ink = (INK, colour)[number] if number < 2 else PALE
            self.line((left + 4, top + TILE + 4 + number * LINE), text, ink, TILE - 8)

    def _paragraph(self, text: str, at: tuple[int, int]) -> None:
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 30) or [""]]
        for number, line in enumerate(lines[: (TILE - 12) // LINE]):
            self.line((at[0], at[1] + number * LINE), line, INK, TILE - 12)


def _imaging() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
    return Image


def _font(size: int) -> Any:
    from PIL import ImageFont

    for name in FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _regions(tiles: Sequence[Tile]) -> list[str]:
    return sorted({tile.region for tile in tiles})


def _picture(field: pa.Field, array: pa.Array) -> Image | None:
    """Return a thumbnail of an encoded image, or of a tensor that can be seen."""
    if media_of(field) == "image":
        return _thumbnail(array[0].as_py())
    if is_tensor(field):
        tensor = tensor_of(field, array)
        return None if tensor is None else _heat(tensor)
    return None


def _thumbnail(data: bytes) -> Image | None:
    imaging = _imaging()
    try:
        image = imaging.open(io.BytesIO(data))
        image.draft("RGB", (TILE, TILE))
        layer = image.convert("RGBA")
    except Exception:
        return None
    white = imaging.new("RGBA", layer.size, "white")
    white.alpha_composite(layer)
    return _fitted(white.convert("RGB"))


def _heat(tensor: npt.NDArray[Any]) -> Image | None:
    """Return a tensor as grey levels or colours over its range; None where it has no plane."""
    plane = _plane(tensor)
    if plane is None:
        return None
    levels = np.nan_to_num(plane.astype(np.float64))
    low, high = levels.min(), levels.max()
    shades = ((levels - low) * (255 / (high - low if high > low else 1))).astype(np.uint8)
    return _fitted(_imaging().fromarray(shades).convert("RGB"))


def _plane(tensor: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return [H, W] or [H, W, 3] of a tensor that can be seen: planes, colours, or one row."""
    if tensor.size == 0 or tensor.dtype.kind not in "biuf":
        return None
    plane = np.atleast_2d(np.squeeze(tensor))
    if plane.ndim == 3 and plane.shape[0] in (3, 4):
        plane = np.moveaxis(plane, 0, 2)
    if plane.ndim == 3 and plane.shape[2] in (3, 4):
        return plane[..., :3]
    return plane if plane.ndim == 2 else None


def _fitted(image: Image) -> Image:
    """Return the image scaled into a tile; small ones grow by whole pixels."""
    from PIL.Image import Resampling

    scale = min(TILE / image.width, TILE / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Resampling.NEAREST if scale > 1 else Resampling.LANCZOS)


def _text(field: pa.Field, array: pa.Array) -> str:
    if is_tensor(field):
        tensor = tensor_of(field, array)
        return "" if tensor is None else tensor_text(tensor)
    readable = types.is_string(field.type) or types.is_large_string(field.type)
    return str(array[0])[:600] if readable and field.name not in (KEY, SUBJECT) else ""


def _captioned(field: pa.Field) -> bool:
    scalar = types.is_integer(field.type) or types.is_floating(field.type)
    short = types.is_string(field.type) and media_of(field) is None
    return field.name not in (KEY, SUBJECT) and (is_label(field) or scalar or short)


def _value(field: pa.Field, array: pa.Array, labels: Mapping[str, Sequence[str]]) -> str:
    value = array[0].as_py()
    if is_label(field):
        return label_text(value, labels.get(field.name, ()))
    return str(value)[:60]


def _tail(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[1 - length :]
