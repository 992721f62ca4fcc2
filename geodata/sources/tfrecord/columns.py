"""The columns of features of `tf.train.Example`, whose types only the values tell.

    every record has one value     the value; else all have lists (none where the feature is absent)
    bytes                          image or audio if every value starts as such a file does; string
                                   if all are UTF-8 without control characters; else binary
    float                          float32
    int64                          int64; with floats float64, if it holds the integers exactly

A list without values says nothing of the type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from geodata.errors import SchemaError
from geodata.schema import media_field
from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.observed import Place
from geodata.sources.tensors import lists_of
from geodata.sources.tfrecord.examples import Feature, Kind
from geodata.sources.unite import conform

_EXACT = 1 << 53
_STARTS = {
    "image": (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"),
    "audio": (b"fLaC", b"OggS\0", b"ID3\x02", b"ID3\x03", b"ID3\x04"),
}
_RIFF = {b"WEBP": "image", b"WAVE": "audio"}
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TYPES = {"bytes": pa.binary(), "float": pa.float32(), "int64": pa.int64()}
_MEND = "Mend the source, or keep the first type and reject the rest: --on-error skip"


LAST: Place = (1 << 62, 0)
"""After every place."""


@dataclass(slots=True)
class FeatureSeen:
    """What was seen of a feature: where each kind is first, and what holds of all its values.

    `media` are the kinds of files that values start as, None among them for no file. `place` is
    where the feature is first.
    """

    place: Place
    first: dict[Kind, Place] = field(default_factory=dict)
    single: bool = True
    text: bool = True
    media: set[str | None] = field(default_factory=set)
    largest: int = 0

    def see(self, feature: Feature, place: Place) -> None:
        """Note the values of one more record."""
        self.single = self.single and len(feature.values) == 1
        if len(feature.values) == 0:
            return
        self.first.setdefault(feature.kind, place)
        if isinstance(feature.values, list):
            for value in feature.values:
                self._see_bytes(value)
        elif feature.kind == "int64":
            low, high = int(feature.values.min()), int(feature.values.max())
            self.largest = max(self.largest, -low, high)

    def absorb(self, later: FeatureSeen, first_row: int) -> None:
        """Unite with what was seen in a later piece, before which the file has `first_row` rows."""
        self.place = min(self.place, _moved(later.place, first_row))
        for kind, place in later.first.items():
            moved = _moved(place, first_row)
            self.first[kind] = min(self.first.get(kind, moved), moved)
        self.single = self.single and later.single
        self.text = self.text and later.text
        self.media |= later.media
        self.largest = max(self.largest, later.largest)

    def field(self, name: str, corpus: Corpus, first_wins: bool) -> pa.Field:
        """Return the column that holds all values; SchemaError names both kinds and places."""
        kinds = [kind for _, kind in sorted((place, kind) for kind, place in self.first.items())]
        value = self._value(kinds, name, corpus, first_wins)
        if not self.single:
            return pa.field(name, pa.list_(value))
        if kinds[:1] == ["bytes"] and len(self.media) == 1 and None not in self.media:
            (medium,) = self.media
            return media_field(name, str(medium))
        return pa.field(name, value)

    def _see_bytes(self, value: bytes) -> None:
        if value:
            self.media.add(_medium(value))
        if self.text and value:
            try:
                self.text = _CONTROL.search(value.decode()) is None
            except UnicodeDecodeError:
                self.text = False

    def _value(self, kinds: list[Kind], name: str, corpus: Corpus, first_wins: bool) -> pa.DataType:
        if not kinds:
            return pa.null()
        if set(kinds) == {"float", "int64"} and self.largest <= _EXACT:
            return pa.float64()
        if len(kinds) > 1 and not first_wins:
            raise self._conflict(kinds, name, corpus)
        if kinds[0] == "bytes" and self.text and self.media:
            return pa.string()
        return _TYPES[kinds[0]]

    def _conflict(self, kinds: list[Kind], name: str, corpus: Corpus) -> SchemaError:
        one, other = kinds[:2]
        (file, row), (second, at) = self.first[one], self.first[other]
        return SchemaError(
            f"the column holds {one} (first in {corpus.shown(file)} row {row}) "
            f"and {other} (first in {corpus.shown(second)} row {at})",
            column=name,
            file=corpus.shown(second),
            row=at,
            hint=_MEND,
        )


def column_of(found: Sequence[Feature | None], stored: pa.Field) -> pa.Array:
    """Return the values of a feature in some records, None where it is absent, as a column.

    Raises Unfit where one does not fit.
    """
    kind, name = stored.type, stored.name
    present = [feature for feature in found if feature is not None]
    there = np.array([feature is not None for feature in found], bool)
    lengths = np.array([len(feature.values) for feature in present], np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return lists_of(_flat(present, kind.value_type, f"{name}[]"), lengths, there, kind)
    if (lengths != 1).any():
        raise Unfit.of(name, kind, "a list of another length than 1")
    flat = _flat(present, kind, name)
    return flat if there.all() else flat.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _flat(features: Sequence[Feature], kind: pa.DataType, name: str) -> pa.Array:
    """Return all values of the features, one after another."""
    features = [feature for feature in features if len(feature.values)]
    kinds = sorted({feature.kind for feature in features})
    if not kinds:
        return pa.nulls(0, kind)
    if kinds == ["bytes"]:
        return _bytes([feature.values for feature in features], kind, name)
    if "bytes" in kinds:
        raise Unfit.of(name, kind, " and ".join(kinds))
    if len(kinds) == 1:
        values = np.concatenate([feature.values for feature in features])
        return conform(pa.array(values), kind, name)
    parts = [conform(pa.array(feature.values), kind, name) for feature in features]
    return pa.concat_arrays(parts)


def _bytes(lists: Sequence[object], kind: pa.DataType, name: str) -> pa.Array:
    array = pa.array(list(chain.from_iterable(lists)), pa.binary())  # type: ignore[arg-type]
    if kind in (pa.string(), pa.large_string()):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid as error:
            raise Unfit.of(name, kind, "bytes that are not UTF-8") from error
    return conform(array, kind, name)


def _medium(value: bytes) -> str | None:
    """Return the kind of file that these bytes start as, if they do."""
    if value.startswith(b"RIFF"):
        return _RIFF.get(value[8:12])
    return next((medium for medium, starts in _STARTS.items() if value.startswith(starts)), None)


def _moved(place: Place, rows: int) -> Place:
    return place[0], place[1] + rows
