"""Which columns of a record are members of their own in a tar, under which extension.

The schema alone decides (`plan`):

    image or audio       .jpg .png .webp .gif .bmp .tif .wav .flac .ogg .mp3 by the content's
                         first bytes, else .bin; with several such columns .COLUMN.jpg and so on
    text                 .txt; with several .COLUMN.txt
    label                .cls, a decimal integer, if it is the only one
    tensor of numbers    .npy; with several .COLUMN.npy
    binary               .COLUMN.bin
    all else             .json, one object for the record, with `__key__`; nulls are left out

COLUMN is the column's name in lower case with all but [a-z0-9_-] percent-encoded; where two
columns then agree, upper case letters are encoded too. Null is no member, empty an empty member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import array_nbytes, ragged
from geodata.formats.slices import Slices
from geodata.formats.webdataset import npy
from geodata.schema import is_label, media_of

Kind = Literal["media", "text", "label", "tensor", "binary"]
Content = bytes | memoryview

_STARTS = (
    (b"\xff\xd8\xff", b".jpg"),
    (b"\x89PNG\r\n\x1a\n", b".png"),
    (b"GIF8", b".gif"),
    (b"BM", b".bmp"),
    (b"II*\0", b".tif"),
    (b"MM\0*", b".tif"),
    (b"fLaC", b".flac"),
    (b"OggS", b".ogg"),
    (b"ID3", b".mp3"),
    (b"\xff\xfb", b".mp3"),
)
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_RIFF = {b"WEBP": b".webp", b"WAVE": b".wav"}
_EXTENSIONS: dict[Kind, tuple[bytes, ...]] = {
    "media": (*dict.fromkeys(ending for _, ending in _STARTS), *_RIFF.values(), b".bin"),
    "text": (b".txt",),
    "label": (b".cls",),
    "tensor": (b".npy",),
    "binary": (b".bin",),
}


@dataclass(frozen=True, slots=True)
class Member:
    """A column with a member of its own; `prefix` comes before the extension."""

    column: int
    field: pa.Field
    kind: Kind
    prefix: bytes

    @property
    def suffixes(self) -> list[bytes]:
        """Return every suffix the member can have."""
        return [self.prefix + extension for extension in _EXTENSIONS[self.kind]]

    @property
    def is_plain(self) -> bool:
        """Return whether a content is its value's bytes."""
        return self.kind in ("media", "text", "binary")

    def suffix(self, content: Content) -> bytes:
        """Return the suffix of the member with this content."""
        if self.kind == "media":
            return self.prefix + _sniff(bytes(content[:12]))
        return self.prefix + _EXTENSIONS[self.kind][0]

    def encode(self, array: pa.Array) -> Sequence[Content | None]:
        """Return each value's content, None for null; SchemaError for a broken tensor."""
        if self.kind == "tensor":
            return npy.encode(array, self.field)
        return _contents(array.cast(pa.string()) if self.kind == "label" else array)

    def decode(self, slices: Slices) -> pa.Array:
        """Return the values with these contents; ValueError where one is malformed."""
        if self.kind == "tensor":
            return npy.decode(slices, self.field.type)
        values = slices.gather()
        if self.kind == "label":
            values = values.cast(pa.large_string())
        return values.cast(self.field.type)

    def nbytes(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """Return about how long each value's content is at most; -1 for null."""
        sizes = array_nbytes(array)
        if self.kind == "label":
            sizes = np.full(len(array), len(str(-(1 << 63))))
        elif self.kind == "tensor":
            sizes += npy.HEADER_NBYTES
        return np.where(array.is_valid(), sizes, -1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the columns of a schema stand: in members of their own, or in `.json` by number."""

    members: list[Member]
    json: list[int]


def plan(schema: pa.Schema) -> Plan:
    """Return where each column of `schema` stands."""
    kinds = {i: kind for i, field in enumerate(schema) if (kind := _kind(field))}
    counts = Counter(kinds.values())
    if counts["label"] > 1:
        kinds = {i: kind for i, kind in kinds.items() if kind != "label"}
    names = _names([field.name for field in schema])
    members = [
        Member(i, schema.field(i), kind, names[i] if kind == "binary" or counts[kind] > 1 else b"")
        for i, kind in kinds.items()
    ]
    return Plan(members, [i for i in range(len(schema)) if i not in kinds])


def _kind(field: pa.Field) -> Kind | None:
    media, kind = media_of(field), field.type
    if media == "text" and kind in (pa.string(), pa.large_string()):
        return "text"
    if kind in (pa.binary(), pa.large_binary()):
        return "media" if media in ("image", "audio") else "binary"
    if is_label(field) and pa.types.is_integer(kind):
        return "label"
    return "tensor" if npy.holds(field) else None


def _names(names: list[str]) -> list[bytes]:
    """Return the columns' names as prefixes with a dot; readers lower the case of extensions."""
    raw = [name.encode() for name in names]
    counts = Counter(name.lower() for name in raw)
    return [b"." + _spell(name.lower() if counts[name.lower()] == 1 else name) for name in raw]


def _spell(name: bytes) -> bytes:
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02x" % byte for byte in name)


def _sniff(start: bytes) -> bytes:
    for magic, extension in _STARTS:
        if start.startswith(magic):
            return extension
    return _RIFF.get(start[8:12], b".bin") if start.startswith(b"RIFF") else b".bin"


def _contents(array: pa.Array) -> list[Content | None]:
    offsets, data = ragged(array)
    view, bounds = data.data, offsets.tolist()
    spans = zip(pairwise(bounds), array.is_valid().to_pylist(), strict=True)
    return [view[start:stop] if valid else None for (start, stop), valid in spans]
