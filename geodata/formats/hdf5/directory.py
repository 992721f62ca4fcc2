"""Where all lies in an HDF5 shard: read from the file's bytes, without HDF5.

The first 512 bytes are one JSON object, padded with spaces: the format version, the file's size,
where `about` and `table` lie, and their SHA-256. `about` is JSON: the schema, the metadata, and the
names of the parts. `table` has a row of `int64` for each unit: its slots, then for each part the
place and the number of its values; -1 values say that the unit lacks the part. Where `about` names
a codec, a third number is the bytes that the part takes: fewer than its values have say that they
are deflated. Such shards are of version 2, the others of version 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import CorruptShard, FormatVersionError, GeodataError
from geodata.formats.base import VERSION_KEY, UnitRange, check_version
from geodata.formats.hdf5.deflate import CODEC, MOST_NBYTES, RATIO, inflate
from geodata.formats.layout import Array, Layout, Part
from geodata.schema import from_json, to_json

HEAD_NBYTES = 512
"""Bytes before HDF5's own: the smallest user block."""
ALIGNMENT = 8
"""Every part starts at a multiple of these bytes."""
ABSENT = -1
DEFLATED_VERSION = 2
"""The format version of shards with deflated parts."""

_MALFORMED = (
    GeodataError,
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What decoding raises on content that no writer made."""

Int64s = npt.NDArray[np.int64]
Extent = tuple[int, int]
"""Offset and number of bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The contents of a shard.

    `slots` per unit; `places`, shape (units, parts, 3): offset, number of values and bytes in the
    file; `bounds`, one more than units: where each ends and the next starts; `columns`: each
    column's layout, and the number of its first part.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    slots: Int64s
    places: Int64s
    bounds: Int64s
    columns: Mapping[str, tuple[Layout, int]]

    def ranges(self) -> list[UnitRange]:
        """Return the byte range of each unit."""
        pairs = zip(pairwise(self.bounds.tolist()), self.slots.tolist(), strict=True)
        return [UnitRange(start, stop - start, slots) for (start, stop), slots in pairs]

    def column(self, unit: int, name: str, data: Array) -> tuple[Layout, dict[str, Array]]:
        """Return a column's layout and its parts in a unit; views of the file's bytes if plain.

        Raises ValueError where deflated bytes are damaged.
        """
        layout, first = self.columns[name]
        places = self.places[unit, first : first + len(layout.parts)].tolist()
        found = {
            part.name: _values(data, part, offset, count, nbytes)
            for part, (offset, count, nbytes) in zip(layout.parts, places, strict=True)
            if count != ABSENT
        }
        return layout, found


def layouts_of(schema: pa.Schema) -> list[Layout]:
    """Return the layout of each column."""
    return [Layout(field) for field in schema]


def encode_about(schema: pa.Schema, metadata: Mapping[str, str], *, deflated: bool) -> bytes:
    """Return the JSON of `about`."""
    parts = [part.name for layout in layouts_of(schema) for part in layout.parts]
    about = {"metadata": dict(metadata), "schema": to_json(schema), "parts": parts}
    return json.dumps(about | {"codec": CODEC} if deflated else about).encode()


def encode_head(version: str, nbytes: int, extents: Sequence[Extent], content: bytes) -> bytes:
    """Return the first bytes of a shard; `content` is that of `about` and of the table."""
    about, table = extents
    head = {
        VERSION_KEY: version,
        "nbytes": nbytes,
        "about": about,
        "table": table,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return json.dumps(head).encode().ljust(HEAD_NBYTES - 1) + b"\n"


def load(data: pa.Buffer, shard: str) -> Directory:
    """Return the directory of a shard; CorruptShard where it contradicts itself or the file."""
    view = memoryview(data)
    with _corrupt(shard):
        head = _head(view, shard)
        check_version(head.get(VERSION_KEY), shard, DEFLATED_VERSION)
        if head["nbytes"] != len(view):
            raise CorruptShard("the file was cut off or added to", shard=shard)
        about, table = _cut(view, *head["about"]), _cut(view, *head["table"])
        if hashlib.sha256(bytes(about) + table).hexdigest() != head["sha256"]:
            raise CorruptShard("its table of contents is damaged", shard=shard)
        return _directory(json.loads(bytes(about)), np.frombuffer(table, "<i8"), len(view))


def _head(view: memoryview, shard: str) -> dict[str, Any]:
    try:
        head = json.loads(bytes(view[:HEAD_NBYTES]))
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise CorruptShard("no shard of geodata", shard=shard)
    return head


def _cut(view: memoryview, offset: int, nbytes: int) -> memoryview:
    if not 0 <= offset <= offset + nbytes <= len(view):
        raise ValueError("an extent outside the file")
    return view[offset : offset + nbytes]


def _directory(about: dict[str, Any], table: Int64s, nbytes: int) -> Directory:
    schema = from_json(about["schema"])
    layouts = layouts_of(schema)
    parts = [part for layout in layouts for part in layout.parts]
    if [part.name for part in parts] != about["parts"]:
        raise ValueError("other parts than its schema has")
    if about.get("codec", CODEC) != CODEC:
        raise ValueError("a codec that there is none of")
    numbers = 3 if "codec" in about else 2
    rows = table.reshape(-1, 1 + numbers * len(parts))
    slots, told = rows[:, 0], rows[:, 1:].reshape(len(rows), len(parts), numbers)
    firsts = np.cumsum([0, *(len(layout.parts) for layout in layouts)]).tolist()
    columns = dict(zip(schema.names, zip(layouts, firsts, strict=False), strict=True))
    if (slots >> 31).any():
        raise ValueError("a unit of fewer than no rows, or of more than any batch has")
    places = _places(told, parts, nbytes)
    bounds = _bounds(places[:, :, 0], places[:, :, 2], nbytes)
    return Directory(schema, dict(about["metadata"]), slots, places, bounds, columns)


def _places(told: Int64s, parts: list[Part], nbytes: int) -> Int64s:
    """Return offset, number of values and bytes of each part; ValueError unless the file has room.

    Values without a third number are not deflated.
    """
    widths = np.array([part.nbytes for part in parts], np.int64)
    counts, plain = told[:, :, 1], told.shape[2] == 2
    most = (nbytes if plain else nbytes * RATIO) // np.maximum(widths, 1)
    if (counts < ABSENT).any() or (counts > most)[:, widths > 0].any():
        raise ValueError("a part larger than the file")
    sizes = np.maximum(counts, 0) * widths
    if plain:
        return np.dstack([told, sizes])
    stored = told[:, :, 2]
    if ((stored < 0) | (stored > sizes) | (sizes > stored * RATIO)).any():
        raise ValueError("a part with more bytes than its values, or far fewer")
    if (sizes > MOST_NBYTES)[stored < sizes].any():
        raise ValueError("a deflated part larger than any")
    return told


def _bounds(offsets: Int64s, sizes: Int64s, nbytes: int) -> Int64s:
    """Return where the units end; ValueError unless all lie in the file, one after another."""
    outside = (offsets < HEAD_NBYTES) | (offsets > nbytes - sizes) | (offsets % ALIGNMENT != 0)
    if (outside & (sizes > 0)).any():
        raise ValueError("a part outside the file")
    starts = np.where(sizes > 0, offsets, nbytes).min(axis=1, initial=nbytes)
    ends = np.where(sizes > 0, offsets + sizes, 0).max(axis=1, initial=0)
    bounds = np.maximum.accumulate([starts.min(initial=nbytes), *ends])
    if (starts < bounds[:-1]).any():
        raise ValueError("units that overlap")
    return bounds


def _values(data: Array, part: Part, offset: int, count: int, nbytes: int) -> Array:
    flat, size = data[offset : offset + nbytes], count * part.nbytes
    if nbytes < size:
        flat = inflate(flat, size, part.dtype.itemsize)
    return flat.view(part.dtype).reshape(count, *part.shape)


@contextmanager
def _corrupt(shard: str) -> Iterator[None]:
    """Name the shard instead of what the reading of it stumbled over."""
    try:
        yield
    except (CorruptShard, FormatVersionError):
        raise
    except _MALFORMED as error:
        text = f"not readable as an HDF5 shard ({type(error).__name__})"
        raise CorruptShard(text, shard=shard) from None
