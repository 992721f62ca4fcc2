"""Arrow IPC: the file format (Feather 2 too) and the stream format, known by their first bytes.

A file is mapped, so that uncompressed batches are views of it. The places of a file's batches stand
in its footer, those of a stream are found by going from message to message; a file whose footer is
lost is read as the stream that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from geodata.sources.corpus import CHANGED, Broken, unreadable
from geodata.sources.tables.footers import DAMAGE
from geodata.sources.tables.parts import Cut
from geodata.sources.unite import check_usable

_FILE, _FEATHER_1 = b"ARROW1", b"FEA1"
_HEAD = 8
"""Bytes before the stream that a file holds."""

CUT_OFF = "the file was cut off, or its end is damaged"
LOST = "a record batch cannot be read"
_NO_ARROW = "the file is not Arrow IPC, or its schema is damaged"


def open_ipc(path: Path) -> IpcFile | IpcStream:
    """Map a file and read its schema; raise Broken if it is no Arrow file."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise Broken(unreadable(error)) from error
    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except DAMAGE:
        raise Broken("the file cannot be mapped") from None
    if data.size == 0:
        raise Broken("the file is empty")
    head = data.slice(0, min(_HEAD, data.size)).to_pybytes()
    if head.startswith(_FEATHER_1):
        raise Broken("the file is Feather of version 1; write it as version 2")
    if head.startswith(_FILE):
        try:
            return IpcFile(data)
        except DAMAGE:
            return IpcStream(data, min(_HEAD, data.size), whole=False)
    return IpcStream(data, 0)


class IpcFile:
    """An Arrow file: its batches have numbers."""

    def __init__(self, data: pa.Buffer):
        self._reader = pa.ipc.open_file(data)
        self._size = data.size
        self.schema: pa.Schema = self._reader.schema
        check_usable(self.schema)

    def cuts(self) -> list[Cut]:
        """Return the batches one by one."""
        count = self._reader.num_record_batches
        return [(i, i + 1, self._size // count) for i in range(count)]

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch | str]:
        """Yield the batches [start, stop); in the place of one that cannot be read, why."""
        for number in range(start, stop):
            try:
                batch = self._reader.get_batch(number)
                batch.validate()
            except (IndexError, *DAMAGE):
                yield LOST
            else:
                yield batch


class IpcStream:
    """An Arrow stream: its batches have places, counted in bytes.

    The stream begins at `origin`; `whole` is false where it is all that is left of a file.
    """

    def __init__(self, data: pa.Buffer, origin: int, *, whole: bool = True):
        self._data, self._origin, self._whole = data, origin, whole
        try:
            self.schema: pa.Schema = pa.ipc.open_stream(data.slice(origin)).schema
            check_usable(self.schema)
        except DAMAGE:
            raise Broken(_NO_ARROW) from None
        self._coded = any(_is_coded(field.type) for field in self.schema)

    def cuts(self) -> list[Cut]:
        """Return the batches one by one; all at once where they share dictionaries."""
        size = self._data.size
        if self._coded:
            return [(self._origin, size, size)]
        places = [place for place, message in self._messages(self._origin, size) if message]
        bounds = [self._origin, *places[1:], size]
        return [(start, stop, stop - start) for start, stop in pairwise(bounds)]

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch | str]:
        """Yield the batches in these bytes; in the place of what cannot be read, why."""
        if stop > self._data.size:
            yield CHANGED
            return
        found = self._in_sequence() if self._coded else self._in_place(start, stop)
        ended = not self._whole and stop == self._data.size
        for batch in found:
            if isinstance(batch, str) and batch == CUT_OFF:
                ended = True
            else:
                yield batch
        if ended:
            yield CUT_OFF

    def _in_place(self, start: int, stop: int) -> Iterator[pa.RecordBatch | str]:
        for _, message in self._messages(start, stop):
            if message is None:
                yield CUT_OFF
                return
            try:
                batch = pa.ipc.read_record_batch(message, self.schema)
                batch.validate()
            except DAMAGE:
                yield LOST
            else:
                yield batch

    def _in_sequence(self) -> Iterator[pa.RecordBatch | str]:
        try:
            reader = pa.ipc.open_stream(self._data.slice(self._origin))
            for batch in reader:
                batch.validate()
                yield batch
        except DAMAGE:
            yield CUT_OFF

    def _messages(self, start: int, stop: int) -> Iterator[tuple[int, pa.Message | None]]:
        """Yield the batches' messages and places; None where there is none that can be."""
        source = pa.BufferReader(self._data.slice(start, stop - start))
        while True:
            place = start + source.tell()
            try:
                message = pa.ipc.read_message(source)
            except EOFError:
                return
            except DAMAGE:
                yield place, None
                return
            if message.type == "record batch":
                yield place, message


def _is_coded(kind: pa.DataType) -> bool:
    """Return whether dictionaries stand anywhere in the type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_coded(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_is_coded(kind.field(i).type) for i in range(kind.num_fields))
