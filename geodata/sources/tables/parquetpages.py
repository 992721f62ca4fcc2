"""What the page headers of a Parquet file claim, read by own means before anything is allocated.

Headers are Thrift structs in its compact protocol, of which only a few fields matter here. A page
that claims more bytes than are there makes its reader take as much memory as it says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_SURE_BYTES = 64 << 20
_MOST_RATIO = 1 << 16
"""A page of more than the former claims at most so many times what is stored of it."""

_HEADER_BYTES = 1 << 10
_MOST_HEADER = 16 << 20
"""Most bytes of a header, which may hold the smallest and largest value of its page."""

_UNPACKED, _PACKED = 2, 3
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
"""Fields of a header: sizes of its page, and what is said of the kinds of pages."""

_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY = 1, 2, 3, (4, 5, 6), 7, 8
_LISTS, _MAP, _STRUCT = (9, 10), 11, 12
_MOST_DEPTH = 8


class Malformed(Exception):
    """Bytes that are no struct, or not all of one."""


def pages_fit(path: Path, group: pq.RowGroupMetaData) -> bool:
    """Return whether all pages of a row group lie in the file, and none claims far more than that.

    Raises OSError.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return all(
                _fits(file.fileno(), group.column(index), size)
                for index in range(group.num_columns)
            )
        except Malformed:
            return False


def _fits(descriptor: int, column: pq.ColumnChunkMetaData, size: int) -> bool:
    at, left = column.data_page_offset, column.num_values
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    while left > 0:
        header, length = _header(descriptor, at)
        packed, unpacked = header.get(_PACKED, -1), header.get(_UNPACKED, -1)
        at += length + packed
        if not (packed >= 0 and at <= size):
            return False
        if not 0 <= unpacked <= max(_SURE_BYTES, _MOST_RATIO * packed):
            return False
        if header.get(_DICTIONARY, {}).get(1, 0) > unpacked:
            return False
        left -= (header.get(_DATA) or header.get(_DATA_2) or {}).get(1, 0)
    return True


def _header(descriptor: int, at: int) -> tuple[dict[int, Any], int]:
    """Return the header at a byte of the file, and its length."""
    wanted = _HEADER_BYTES
    while True:
        data = os.pread(descriptor, wanted, at) if at >= 0 else b""
        try:
            return _struct(data, 0, 0)
        except IndexError:
            if len(data) < wanted or wanted > _MOST_HEADER:
                raise Malformed from None
            wanted *= 8


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return integers and structs of the struct at a place, by field, and where it ends.

    Raises IndexError where the data end within it.
    """
    if depth > _MOST_DEPTH:
        raise Malformed
    found: dict[int, Any] = {}
    number = 0
    while data[at]:
        kind, step, at = data[at] & 15, data[at] >> 4, at + 1
        if not step:
            number, at = _integer(data, at)
        number += step
        value, at = _value(data, at, kind, depth)
        if value is not None:
            found[number] = value
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """Return the value of a field, None of one that does not matter, and where it ends."""
    if kind in (_TRUE, _FALSE):
        return None, at
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in _LISTS:
        return None, _after_list(data, at, depth)
    if kind == _BINARY:
        length, at = _varint(data, at)
        at += length
    else:
        at += {_BYTE: 1, _DOUBLE: 8}.get(kind, len(data) + 1)
    if at > len(data):
        raise IndexError
    return None, at


def _after_list(data: bytes, at: int, depth: int) -> int:
    count, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if count == 15:
        count, at = _varint(data, at)
    for _ in range(count):
        _, at = (None, at + 1) if kind in (_TRUE, _FALSE) else _value(data, at, kind, depth)
        data[at - 1]
    return at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed integer, whose lowest bit is its sign."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise Malformed
