"""The contents of files, one after another in one buffer: a column that needs no further copy."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from geodata.schema import data_fields
from geodata.sources.batches import Origin, assemble

_ENDS = "i"
"""Of 32 bits, as the offsets of binary arrays are."""

Known = TypeVar("Known", bound=Sequence[Any])


class Contents(Generic[Known]):
    """Files with their keys, what is known of them, and contents of at most `nbytes` in all."""

    def __init__(self, nbytes: int):
        self.keys: list[str] = []
        self.known: list[Known] = []
        self._buffer = pa.allocate_buffer(nbytes + 1)
        self._view = memoryview(self._buffer).cast("B")
        self._ends = array(_ENDS, [0])

    def fits(self, nbytes: int) -> bool:
        """Return whether there is room for another content of so many bytes."""
        return self._ends[-1] + nbytes < len(self._view)

    def read(self, path: str, nbytes: int, mtime_ns: int) -> memoryview | None:
        """Return the content of a file, where there is room; None if it is not as it was listed.

        Raises OSError.
        """
        end = self._ends[-1]
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = os.readv(descriptor, [self._view[end : end + nbytes + 1]])
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        same = count == nbytes == status.st_size and status.st_mtime_ns == mtime_ns
        return self._view[end : end + nbytes] if same else None

    def put(self, data: bytes) -> memoryview:
        """Return a content as it lies in the buffer, where there is room."""
        end = self._ends[-1]
        place = self._view[end : end + len(data)]
        place[:] = data
        return place

    def keep(self, key: str, known: Known, nbytes: int) -> None:
        """Keep the file that was read or put last; another takes its place if it is not kept."""
        self.keys.append(key)
        self.known.append(known)
        self._ends.append(self._ends[-1] + nbytes)

    def array(self) -> pa.BinaryArray:
        """Return the contents that were kept."""
        buffers = [None, pa.py_buffer(self._ends), self._buffer]
        return pa.Array.from_buffers(pa.binary(), len(self.keys), buffers)

    def batch(
        self, content: str, about: Sequence[str], schema: pa.Schema, origin: Origin
    ) -> pa.RecordBatch:
        """Return the records: the column `content`, and those of `about` that the schema has.

        What is known of a file is a value for each of `about`; the content too may be among them.
        """
        filled = {field.name for field in data_fields(schema)}
        columns = {}
        if content not in about:
            columns[content] = self.array().cast(schema.field(content).type)
        for name, values in zip(about, zip(*self.known, strict=True), strict=True):
            if name in filled:
                columns[name] = pa.array(values, schema.field(name).type)
        return assemble(schema, self.keys, columns, origin)
