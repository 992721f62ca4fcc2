"""Images in a folder for each class, or all in one folder; one record a file.

The bytes are stored as they are. The header is read, and whether the file goes on to its end, so
that a truncated or foreign file is rejected; nothing is decoded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO

import pyarrow as pa

from geodata.errors import ConfigError, MissingExtra
from geodata.schema import label_field, media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Unfit, assemble
from geodata.sources.corpus import Corpus
from geodata.sources.listing import Listing

LABEL = "label"

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_PNG_END = b"IEND\xaeB`\x82"
_JPEG_END = b"\xff\xd9"
_JPEG_SCAN = 0xDA
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers that no length follows."""


class ImageFolder(Corpus):
    """Image files. The first level of folders, where there is one, names their classes."""

    kind = "images"

    def __init__(self, listing: Listing, source_id: str):
        super().__init__(listing, source_id)
        _require_pillow()
        flat = next((f.name for f in self.files if "/" not in f.name), None)
        classed = next((f.name for f in self.files if "/" in f.name), None)
        if flat and classed:
            raise ConfigError(
                f"images lie in the folder itself ('{flat}') and in folders of classes "
                f"('{classed.partition('/')[0]}')",
                file=str(self.root),
                hint="Move the former into a folder of their class, or convert them on their own",
            )
        self.labelled = classed is not None

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files."""
        return self.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Count the files and collect their classes."""
        files = range(piece.file, piece.file + piece.files)
        names = {self._class_of(i) for i in files if self.labelled and self.named_in_utf8(i)}
        labels = {LABEL: names} if self.labelled else {}
        return Scan(piece.files, piece.files, labels=labels, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:  # noqa: ARG002
        """Return `image`, `label` where there are classes, `width` and `height` in pixels."""
        size = [pa.field("width", pa.int32()), pa.field("height", pa.int32())]
        label = [label_field(LABEL)] if self.labelled else []
        return pa.schema([media_field("image", "image"), *label, *size])

    def read(
        self,
        piece: Piece,
        first_row: int,  # noqa: ARG002
        schema: pa.Schema,
        labels: dict[str, list[str]],
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files that are whole images; labels are indices into `labels["label"]`."""
        numbers = {name: number for number, name in enumerate(labels.get(LABEL, ()))}

        def examine(index: int, data: bytes) -> tuple[bytes, int | None, int, int]:
            return data, self._label(index, numbers), *image_size(data)

        names = ("image", LABEL, "width", "height")
        for keys, images in self.whole_records(piece, examine, reject):
            columns = {
                name: pa.array(values, schema.field(name).type)
                for name, values in zip(names, zip(*images, strict=True), strict=True)
                if name in schema.names
            }
            yield assemble(schema, keys, columns)

    def _class_of(self, index: int) -> str:
        return self.files[index].name.partition("/")[0]

    def _label(self, index: int, numbers: dict[str, int]) -> int | None:
        if not self.labelled:
            return None
        try:
            return numbers[self._class_of(index)]
        except KeyError as error:
            raise Unfit("its class is not among the dataset's labels") from error


def image_size(data: bytes) -> tuple[int, int]:
    """Return (width, height) in pixels from an image's header.

    Raises Unfit for what is no PNG, JPEG, WebP, GIF, BMP or TIFF, claims absurdly many pixels, or
    (the first three) ends before its end.
    """
    from PIL import Image

    if not data:
        raise Unfit("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                kind, size = image.format, image.size
    except Image.DecompressionBombError as error:
        raise Unfit("the image claims too many pixels") from error
    except Exception as error:
        raise Unfit("the file is not an image of a known kind, or its header is damaged") from error
    if not _is_whole(data, kind):
        raise Unfit(f"the {kind} is truncated")
    return size


def _is_whole(data: bytes, kind: str | None) -> bool:
    """Return whether the file has its end, whatever may follow."""
    if kind == "PNG":
        return _PNG_END in data
    if kind in ("JPEG", "MPO"):
        return data.find(_JPEG_END, _jpeg_scan(data)) >= 0
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
        elif marker in _JPEG_BARE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            if marker == _JPEG_SCAN:
                break
    return at


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
