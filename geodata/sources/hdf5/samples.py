"""HDF5 files with a group for each record: its datasets and attributes are the fields.

A dataset of several values is a tensor, whose shape may vary; a group within a group gives names in
dots. One axis of `uint8` that begins as an encoded image or sound does is its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata.schema import KEY, plain_type
from geodata.sources.batches import BATCH_BYTES
from geodata.sources.columns import Range, Stated, type_span, wider
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.guard.guarded import Say
from geodata.sources.hdf5.file import (
    FAULTS,
    Link,
    Walk,
    attribute_names,
    attribute_of,
    hard_links,
    link_at,
    member_of,
    text_of,
    value_of,
)
from geodata.sources.hdf5.types import (
    BYTES,
    NUMBER,
    Array,
    Element,
    Refused,
    array_of,
    media_kind,
    type_of,
)
from geodata.sources.tensors import is_fixed, is_varying, tensor_type, value_type
from geodata.sources.unite import bare, conform

LOST = "the record cannot be read"

_MOST_ROWS = 4096
_PEEKED = 16
"""Records of a run whose bytes are looked at."""

_HEAD = 16

Sample = dict[str, pa.Array]
"""The fields of a record, each an array of one value."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A dataset of a record, or an attribute, whose value is there."""

    name: str
    element: Element
    shape: tuple[int, ...]
    dataset: Any
    value: Array | None = None

    @property
    def type(self) -> pa.DataType:
        """Return the Arrow type of the value."""
        return type_of(self.element, self.shape)

    def load(self) -> pa.Array:
        """Return the value as an array of one; ArrowInvalid where it has no name."""
        value = value_of(self.dataset) if self.value is None else self.value[()]
        if self.element.form == BYTES and not self.shape:
            return pa.array([np.asarray(value).tobytes()], pa.binary())
        whole: Array = np.zeros((1, *self.shape), self.element.dtype)
        whole[0] = value
        array = array_of(whole, self.element)
        kind = bare(plain_type(array.type, self.name))
        if kind != array.type:
            array.validate(full=True)
            array = conform(array, kind, self.name)
        return array


@dataclass(slots=True)
class Looked:
    """What the records of a run hold: for each field its types, each with the row it is first in.

    `media` are the kinds of media seen, by field.
    """

    rows: int = 0
    types: dict[str, dict[object, tuple[pa.DataType, int]]] = field(default_factory=dict)
    media: dict[str, set[str]] = field(default_factory=dict)

    def add(self, found: _Field) -> None:
        """Note a field of the last record. Tensors of several shapes become of varying shape."""
        kind, known = found.type, self.types.setdefault(found.name, {})
        first, row = known.setdefault(_family(kind), (kind, self.rows))
        if first != kind:
            known[_family(kind)] = tensor_type(value_type(kind), first, kind), row
        if kind == pa.binary() and self.rows <= _PEEKED:
            head = (found.load()[0].as_py() or b"")[:_HEAD]
            self.media.setdefault(found.name, set()).add(media_kind(head))

    def stated(self) -> list[Stated]:
        """Return what `unite_columns` takes."""
        found = []
        for name, kinds in self.types.items():
            span: Range | None = (0, 0)
            for kind, _ in kinds.values():
                span = wider(span, type_span(kind))
            types = tuple(kinds.values())
            found.append(Stated(pa.field(name, types[0][0]), types, span))
        return found


class Samples:
    """The groups of a file that are its records, in the order of their names' bytes."""

    def __init__(self, group: Any, path: Path):
        self._group = group
        self.count = int(group.get_num_objs())
        """Of the links in the group."""
        self._nbytes = path.stat().st_size

    def cuts(self, target_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield runs of links of about `target_bytes`."""
        size = max(1, target_bytes * self.count // max(1, self._nbytes))
        for start in range(0, self.count, size):
            yield start, min(start + size, self.count)

    def look(self, start: int, stop: int, skip: Collection[int], say: Say) -> Looked:
        """Return what the records of the links [start, stop) hold, those to `skip` nothing."""
        found = Looked()
        for _, link in self._links(start, stop, skip, say):
            found.rows += 1
            if link is None:
                continue
            try:
                for one in list(_fields(link)):
                    found.add(one)
            except (Refused, pa.ArrowException, *FAULTS):
                continue
        return found

    def batches(
        self, start: int, stop: int, key: str, say: Say, *, skip: Collection[int] = ()
    ) -> None:
        """Send the records, with `__key__`; in the place of one that cannot be read, why."""
        run = _Run()
        for number, link in self._links(start, stop, skip, say):
            sample = None if link is None else _loaded(link, key)
            if not isinstance(sample, dict):
                run.flush(number, say)
                say({"lost": 1, "why": sample, "next": number + 1})
                continue
            if not run.takes(sample):
                run.flush(number, say)
            run.add(sample)
        run.flush(stop, say)

    def _links(
        self, start: int, stop: int, skip: Collection[int], say: Say
    ) -> Iterator[tuple[int, Link | None]]:
        """Yield the number and the link of each record, None of one to skip."""
        for number, raw in hard_links(self._group, Counter(), start, stop - start):
            if number in skip:
                yield number, None
                continue
            say({"at": number, "rows": 1})
            link = link_at(self._group, raw)
            if link is not None and not link.is_scalar:
                yield number, link


class _Run:
    """Records that can stand in one batch."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._kinds: dict[str, object] = {}
        self._nbytes = 0

    def takes(self, sample: Sample) -> bool:
        """Return whether a record has the types of those before it, and there is room."""
        full = self._nbytes + _nbytes(sample) > BATCH_BYTES or len(self._samples) >= _MOST_ROWS
        kinds = {name: _family(array.type) for name, array in sample.items()}
        alike = all(self._kinds.get(name, kind) == kind for name, kind in kinds.items())
        return alike and not (full and self._samples)

    def add(self, sample: Sample) -> None:
        """Take a record."""
        self._samples.append(sample)
        self._kinds |= {name: _family(array.type) for name, array in sample.items()}
        self._nbytes += _nbytes(sample)

    def flush(self, number: int, say: Say) -> None:
        """Send the batch of the records, which end before a link, if there are any."""
        if self._samples:
            arrays = [_joined([s.get(name) for s in self._samples], name) for name in self._kinds]
            say({"next": number})
            say(pa.RecordBatch.from_arrays(arrays, list(self._kinds)))
        self._samples, self._kinds, self._nbytes = [], {}, 0


def _joined(arrays: list[pa.Array | None], name: str) -> pa.Array:
    """Return one array of arrays of one family; None is null."""
    kinds = list(dict.fromkeys(array.type for array in arrays if array is not None))
    kind = kinds[0] if len(kinds) == 1 else tensor_type(value_type(kinds[0]), *kinds)
    null = pa.nulls(1, kind)
    return pa.concat_arrays([null if a is None else conform(a, kind, name) for a in arrays])


def _family(kind: pa.DataType) -> object:
    """Return what types have in common that may stand in one column of a batch."""
    return ("tensor", value_type(kind)) if is_fixed(kind) or is_varying(kind) else kind


def _nbytes(sample: Sample) -> int:
    return sum(int(array.nbytes) for array in sample.values())


def _loaded(link: Link, key: str) -> Sample | str:
    """Return a record with its key, or why there is none."""
    try:
        sample = {KEY: pa.array([f"{key}{link.name}"])}
        for one in list(_fields(link)):
            sample[one.name] = one.load()
    except Refused as error:
        return str(error)
    except (pa.ArrowException, *FAULTS):
        return LOST
    return sample


def _fields(link: Link) -> Iterator[_Field]:
    """Yield the fields of a record; Refused where it cannot be one."""
    if not link.is_group:
        raise Refused("it stands among groups that are records, and is none", "")
    nbytes = 0
    for name, path, dataset in Walk(Counter()).datasets(link.target):
        if dataset.shape is None:
            continue
        member = member_of(name, path, dataset)
        nbytes += member.width * prod(member.shape)
        if nbytes > MAX_RECORD:
            raise Refused(TOO_LONG, "")
        yield _as_bytes(_Field(name, member.element, member.shape, dataset))
    for raw in attribute_names(link.target):
        name = text_of(raw)
        element, value = attribute_of(link.target, raw, name)
        if value is not None:
            yield _Field(name, element, value.shape, None, value)


def _as_bytes(found: _Field) -> _Field:
    """Return a field of encoded media as one of bytes, any other as it is."""
    element = found.element
    if element.form != NUMBER or element.type != pa.uint8() or len(found.shape) != 1:
        return found
    if media_kind(value_of(found.dataset, _HEAD).tobytes()) == "other":
        return found
    return _Field(found.name, Element(BYTES, element.dtype, pa.binary()), (), found.dataset)
