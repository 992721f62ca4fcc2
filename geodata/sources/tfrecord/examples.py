"""One `tf.train.Example` from anywhere → its features.

Features stand in any order; lists of numbers are packed or not. What a parser of Protocol Buffers
would pass over or overwrite silently (a feature twice, unknown fields) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from geodata.formats.tfrecord.wire import VARINT_NBYTES, unpacked
from geodata.sources.batches import Unfit
from geodata.sources.observed import MAX_FIELDS

Kind = Literal["bytes", "float", "int64"]
Values = list[bytes] | npt.NDArray[np.float32] | npt.NDArray[np.int64]

_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_VARINT, _LENGTH, _FIXED32 = 0, 2, 5
_FLOAT = np.dtype("<f4")
_MANY = 1 << 10
"""Bytes of integers from which numpy reads them faster."""


@dataclass(frozen=True, slots=True)
class Feature:
    """The values of a feature."""

    kind: Kind
    values: Values

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the values take."""
        values = self.values
        return sum(map(len, values)) if isinstance(values, list) else values.nbytes


class _Malformed(Exception):
    pass


def features_of(record: bytes) -> dict[str, Feature]:
    """Return the features of an Example that have a kind; raise Unfit if the record is none."""
    try:
        return dict(_features(record))
    except (_Malformed, ValueError) as error:
        raise Unfit("the record is no tf.train.Example") from error


def _features(record: bytes) -> Iterator[tuple[str, Feature]]:
    names = set()
    for number, start, stop in _messages(record, 0, len(record)):
        if number == 2:
            raise Unfit("the record is a tf.train.SequenceExample; only Example is read")
        if number != 1:
            raise _Malformed
        for entry in _messages(record, start, stop):
            name, feature = _entry(record, *entry)
            if name in names:
                raise Unfit("the record has a feature twice")
            names.add(name)
            if len(names) > MAX_FIELDS:
                raise Unfit(f"the record has more than {MAX_FIELDS} features")
            if feature is not None:
                yield name, feature


def _entry(record: bytes, number: int, start: int, stop: int) -> tuple[str, Feature | None]:
    name, feature, last = "", None, 0
    if number != 1:
        raise _Malformed
    for part, begin, end in _messages(record, start, stop):
        if part <= last or part > 2:
            raise _Malformed
        last = part
        if part == 1:
            name = record[begin:end].decode()
        else:
            feature = _feature(record, begin, end)
    return name, feature


def _feature(record: bytes, start: int, stop: int) -> Feature | None:
    found = None
    for number, begin, end in _messages(record, start, stop):
        if found is not None or number not in _KINDS:
            raise _Malformed
        kind = _KINDS[number]
        if kind == "bytes":
            found = Feature(kind, _bytes(record, begin, end))
        else:
            found = Feature(kind, _numbers(record, begin, end, kind))
    return found


def _bytes(record: bytes, start: int, stop: int) -> list[bytes]:
    values = []
    for number, begin, end in _messages(record, start, stop):
        if number != 1:
            raise _Malformed
        values.append(record[begin:end])
    return values


def _numbers(
    record: bytes, start: int, stop: int, kind: Kind
) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """Return the values of a list of floats or integers."""
    read = _floats if kind == "float" else _integers
    wire = _FIXED32 if kind == "float" else _VARINT
    parts = []
    for number, found, begin, end in _fields(record, start, stop):
        if number != 1 or found not in (wire, _LENGTH):
            raise _Malformed
        parts.append(read(record[begin:end]))
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty(0, np.float32 if kind == "float" else np.int64), *parts])


def _floats(data: bytes) -> npt.NDArray[np.float32]:
    if len(data) % _FLOAT.itemsize:
        raise _Malformed
    return np.frombuffer(data, _FLOAT)


def _integers(data: bytes) -> npt.NDArray[np.int64]:
    if len(data) >= _MANY:
        numbers, _ = unpacked(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
        return numbers
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        if byte > 127:
            shift += 7
            continue
        found.append(_signed(value))
        value = shift = 0
    if shift:
        raise _Malformed
    return np.array(found, np.int64)


def _signed(value: int) -> int:
    """Return the integer of 64 bits that a varint means."""
    if value >> 7 * VARINT_NBYTES:
        raise _Malformed
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _messages(record: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number and bounds of each field of a message that has only fields with a length."""
    for number, wire, begin, end in _fields(record, start, stop):
        if wire != _LENGTH:
            raise _Malformed
        yield number, begin, end


def _fields(record: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type and bounds of the content of each field of a message."""
    while at < stop:
        tag, at = record[at], at + 1
        if tag > 127:
            tag, at = _varint(record, at - 1, stop)
        wire, begin = tag & 7, at
        if wire == _LENGTH:
            length, begin = _varint(record, at, stop)
            at = begin + length
        elif wire == _VARINT:
            _, at = _varint(record, at, stop)
        elif wire == _FIXED32:
            at += 4
        else:
            raise _Malformed
        if at > stop:
            raise _Malformed
        yield tag >> 3, wire, begin, at


def _varint(record: bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the varint that starts here, and where it ends."""
    if at < stop and record[at] < 128:
        return record[at], at + 1
    value = shift = 0
    for place in range(at, min(stop, at + VARINT_NBYTES)):
        byte = record[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, place + 1
        shift += 7
    raise _Malformed
