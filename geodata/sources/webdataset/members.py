"""What the members of a tar are by their extensions, as stock readers of WebDataset take them.

The last part of an extension decides (`.seg.png` is an image); the column has the whole extension
as its name:

    jpg jpeg png webp gif bmp tif tiff           image, the bytes as they are
    wav flac ogg opus mp3 m4a aac                audio, the bytes as they are
    txt text transcript                          text in UTF-8
    cls cls2 class count index inx id            an integer in decimal digits; else a string
    json jsn                                     the value, typed over all records
    npy                                          a tensor of numbers
    all else                                     binary, the bytes as they are

Pickles (pkl pickle pyd pt pth joblib dill, compressed too) are refused: reading one runs code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa

from geodata.schema import media_field, tensor_field
from geodata.sources.batches import Unfit
from geodata.sources.columns import Stated
from geodata.sources.encodings.declared import UTF8, coding_of_text
from geodata.sources.observed import MAX_FIELDS, Place, Seen, see
from geodata.sources.tensors import value_type
from geodata.sources.text.jsontext import json_value
from geodata.sources.unite import conform
from geodata.sources.values import array_of
from geodata.sources.webdataset.npyfile import HEADER_BYTES, header_of, tensors
from geodata.sources.webdataset.tars import Member

Kind = Literal["image", "audio", "text", "number", "json", "tensor", "binary", "pickle"]

_EXTENSIONS: dict[Kind, str] = {
    "image": "jpg jpeg png webp gif bmp tif tiff",
    "audio": "wav flac ogg opus mp3 m4a aac",
    "text": "txt text transcript",
    "number": "cls cls2 class count index inx id",
    "json": "json jsn",
    "tensor": "npy",
    "pickle": "pkl pickle pyd pt pth joblib dill",
}
_KINDS = {name: kind for kind, names in _EXTENSIONS.items() for name in names.split()}
_PACKED = frozenset({"gz", "bz2", "xz", "zst"})
_INTEGER = re.compile(rb"\s*[+-]?\d{1,4000}\s*", re.ASCII)
_PICKLE = "the member is a pickle: reading it would run code"


def kind_of(extension: str) -> Kind:
    """Return what a member with this extension is."""
    parts = extension.split(".")
    if len(parts) > 1 and parts[-1] in _PACKED and _KINDS.get(parts[-2]) == "pickle":
        return "pickle"
    return _KINDS.get(parts[-1], "binary")


def wanted_to_scan(extension: str, size: int) -> int:
    """Return how many bytes of a member tell its type."""
    kind = kind_of(extension)
    if kind == "tensor":
        return min(size, HEADER_BYTES)
    return size if kind in ("number", "json") else 0


def wanted_to_read(extension: str, size: int) -> int:
    """Return how many bytes of a member make its value."""
    return 0 if kind_of(extension) == "pickle" else size


class Extensions:
    """What a piece of a tar holds under each extension."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        """Of numbers and JSON: the types of the values."""
        self._types: dict[str, dict[pa.DataType, int]] = {}

    def note(self, told: Sequence[tuple[str, Any]], place: Place) -> None:
        """Note the members of a record: extensions, and what `typed` told of each."""
        for name, value in told:
            kind = kind_of(name)
            if len(self.seen) + len(self._types) > MAX_FIELDS:
                return
            if kind in ("number", "json"):
                see(self.seen.setdefault(name, Seen()), value, place)
            else:
                stored = _field(name, kind, value).type
                self._types.setdefault(name, {}).setdefault(stored, place[1])

    def stated(self) -> list[Stated]:
        """Return what is said of the columns whose types need no look at all values."""
        said = []
        for name, types in self._types.items():
            first = next(iter(types))
            value = value_type(first) if kind_of(name) == "tensor" else None
            said.append(Stated(_field(name, kind_of(name), value), tuple(types.items())))
        return said


def typed(member: Member) -> Any:
    """Return what tells the type of a member's value, from `wanted_to_scan` bytes, or Unfit."""
    kind = kind_of(member.extension)
    if kind == "number":
        return _number(member.content)
    if kind == "json":
        return json_value(member.content)
    if kind == "tensor":
        return header_of(member.content, member.size).value_type
    if kind == "pickle":
        raise Unfit(_PICKLE)
    return None


def valued(member: Member, encoding: str) -> Any:
    """Return a member's value as `column_of` takes it; raise Unfit if it has none.

    Text is in `encoding`.
    """
    kind = kind_of(member.extension)
    if kind == "text":
        return _text(member.content, encoding)
    if kind == "tensor":
        header_of(member.content, member.size)
    return typed(member) if kind in ("number", "json", "pickle") else member.content


def column_of(values: Sequence[Any], stored: pa.Field) -> pa.Array:
    """Return values, of members of one extension, as a column; None is null."""
    kind, name = kind_of(stored.name), stored.name
    if kind == "tensor":
        return tensors(values, stored.type, name)
    if kind in ("number", "json"):
        return array_of(values, stored.type, name)
    plain = pa.string() if kind == "text" else pa.binary()
    return conform(pa.array(values, plain), stored.type, name)


def _field(name: str, kind: Kind, value: pa.DataType | None) -> pa.Field:
    """Return the field of an extension; `value` is the type of a tensor's values."""
    if kind == "tensor":
        return tensor_field(name, value)
    if kind in ("image", "audio", "text"):
        return media_field(name, kind)
    return pa.field(name, pa.binary())


def _number(content: bytes) -> int | str:
    return int(content) if _INTEGER.fullmatch(content) else _text(content, UTF8)


def _text(content: bytes, encoding: str) -> str:
    coding = coding_of_text(encoding, content)
    if coding.name != UTF8:
        content = content.removeprefix(coding.mark)
    try:
        return coding.text(content)
    except UnicodeError as error:
        raise Unfit(coding.fault(error)) from error
