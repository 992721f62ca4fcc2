"""What processes say to each other on a pipe: frames of a letter, a length, and the content.

`J` is JSON, `A` an Arrow stream of one record batch. What comes is checked, since the process that
sends it may have been led astray by what it reads.
"""

from __future__ import annotations

import json
import os
import select
import struct
from typing import Any, BinaryIO

import pyarrow as pa

_HEAD = struct.Struct(">cQ")
_READ_BYTES = 1 << 20
_MOST_BYTES = 3 << 30
"""Of a frame: three times what a record may hold."""


class Ended(Exception):
    """No frame comes any more: the pipe is closed."""


class Garbled(Ended):
    """What came is no frame."""


class Silent(Exception):
    """Nothing has come for too long."""


def send(out: BinaryIO, what: dict[str, Any] | pa.RecordBatch) -> None:
    """Write a frame; a batch goes out as it lies in memory."""
    if isinstance(what, dict):
        data = json.dumps(what).encode()
        out.write(_HEAD.pack(b"J", len(data)) + data)
    else:
        sizer = pa.MockOutputStream()
        _write(sizer, what)
        out.write(_HEAD.pack(b"A", sizer.size()))
        _write(pa.PythonFile(out, "w"), what)
    out.flush()


def receive(descriptor: int, patience: float) -> Any:
    """Return the next frame: what JSON says, or a record batch that has passed `validate()`.

    Raises Ended, which may be Garbled; Silent after `patience` seconds without a byte.
    """
    kind, length = _HEAD.unpack(_exactly(descriptor, _HEAD.size, patience))
    if kind not in (b"A", b"J") or length > _MOST_BYTES:
        raise Garbled
    data = _exactly(descriptor, length, patience)
    try:
        return _batch(data) if kind == b"A" else json.loads(data)
    except (pa.ArrowException, ValueError, StopIteration, RecursionError) as error:
        raise Garbled from error


def _write(sink: Any, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _batch(data: bytearray) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        batch = stream.read_next_batch()
    batch.validate()
    return batch


def _exactly(descriptor: int, length: int, patience: float) -> bytearray:
    data = bytearray(length)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    at = 0
    with memoryview(data) as view:
        while at < length:
            if not waiting.poll(patience * 1000):
                raise Silent
            count = os.readv(descriptor, [view[at : at + _READ_BYTES]])
            if not count:
                raise Ended
            at += count
    return data
