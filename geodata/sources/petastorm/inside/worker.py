"""Reads Petastorm datasets for another process.

`client` says how the two speak. Images stay encoded, exactly as they are stored.

    {"do": "hello"}                                  versions
    {"do": "describe", "root"}                       the columns, and their schema as an empty batch
    {"do": "read", "root", "path", "values", "group", "first", "slow"}
                                    the rows of a row group from one on, a few or one at a time
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .fields import MOST_RECORD, Field, Unreadable
from .pickles import METADATA, fields_of

ROW = "__row__"
"""Column of a batch: where in its row group a row stands, from 0."""

_FRAME = struct.Struct(">cQ")
_BATCH_BYTES = 4 << 20
_FASTER = 16
"""How many times more rows a batch may have than the one before, whose width is known."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class Rows:
    """The rows of a row group on their way out: the good ones as batches, the others by number."""

    def __init__(self, fields: list[Field], values: dict[str, str]):
        self._fields = fields
        self._values = values
        named = [(field.name, field.kind) for field in fields]
        self.schema = pa.schema([(ROW, pa.int64()), *named])

    def batch(self, found: pa.RecordBatch, first: int, refuse: Callable[[int, str], None]) -> Any:
        """Return the rows of a batch as read that can be decoded; `refuse` the others."""
        bad: dict[int, str] = {}
        columns = [self._column(field, found, bad) for field in self._fields]
        good = [row for row in range(found.num_rows) if row not in bad]
        rows = pa.array(np.arange(first, first + found.num_rows))
        batch = pa.RecordBatch.from_arrays([rows, *columns], schema=self.schema)
        batch = batch.take(pa.array(good, pa.int64())) if bad else batch
        for row, reason in sorted(bad.items()):
            refuse(first + row, reason)
        return batch

    def _column(self, field: Field, found: pa.RecordBatch, bad: dict[int, str]) -> pa.Array:
        index = found.schema.get_field_index(field.name)
        if index < 0:
            return self._same(field, found.num_rows)
        array = found.column(index)
        if field.role not in ("fixed", "varying", "strings"):
            return _converted(array, field, bad)
        values: list[Any] = []
        for row, value in enumerate(array.to_pylist()):
            try:
                values.append(None if value is None else field.decoded(value))
            except Unreadable as error:
                bad.setdefault(row, str(error))
                values.append(None)
        return pa.array(values, field.kind) if field.role == "strings" else field.tensors(values)

    def _same(self, field: Field, count: int) -> pa.Array:
        """Return a column that the file lacks: the value is that of its folder, or null."""
        text = self._values.get(field.name, _NO_VALUE)
        if text == _NO_VALUE:
            return pa.nulls(count, field.kind)
        try:
            return pa.array([text] * count, pa.string()).cast(field.kind)
        except pa.ArrowException as error:
            raise Unreadable(f"'{field.name}' of the folder is no {field.kind}") from error


def _converted(array: pa.Array, field: Field, bad: dict[int, str], row: int = 0) -> pa.Array:
    """Return a column from `row` on as its type; what does not fit is null, and noted as bad."""
    if array.type.equals(field.kind):
        return array
    try:
        return array.cast(field.kind)
    except pa.ArrowException:
        if len(array) == 1:
            bad.setdefault(row, f"'{field.name}' is {field.kind} here, this record's does not fit")
            return pa.nulls(1, field.kind)
    return pa.concat_arrays(
        [_converted(array[i : i + 1], field, bad, i) for i in range(len(array))]
    )


def batches_of(path: str, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, in batches of bounded stored size."""
    with pq.ParquetFile(path) as file:
        about = file.metadata.row_group(group)
        width = max(1, about.total_byte_size // max(1, about.num_rows))
        size = max(1, min(4096, _BATCH_BYTES // width))
        there = [name for name in names if name in file.schema_arrow.names]
        if not there:
            empty = pa.record_batch([pa.nulls(about.num_rows)], [ROW])
            yield empty
            return
        yield from file.iter_batches(size, [group], columns=there, use_threads=False)


class Speaker:
    """Answers requests on a pipe."""

    def __init__(self, out: BinaryIO):
        self._out = out
        self._fields: dict[tuple[str, int, int], list[Field]] = {}

    def answer(self, request: dict[str, Any]) -> None:
        """Answer one request."""
        doing = {"hello": self._hello, "describe": self._describe, "read": self._read}
        try:
            self._say({"end": doing[request["do"]](request)})
        except Unreadable as error:
            self._say({"error": str(error)})

    def _hello(self, _request: dict[str, Any]) -> dict[str, Any]:
        wanted = ("petastorm", "pyarrow", "numpy", "pandas")
        version = ".".join(map(str, sys.version_info[:3]))
        return {"python": version, "packages": {name: metadata.version(name) for name in wanted}}

    def _describe(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        fields = self._fields_of(request["root"])
        schema = Rows(fields, {}).schema
        self._send(pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema))
        return [field.to_json() for field in fields]

    def _read(self, request: dict[str, Any]) -> int:
        fields = self._fields_of(request["root"])
        rows = Rows(fields, request["values"])
        done, step, faster = 0, 1, 1 if request["slow"] else _FASTER
        try:
            for found in batches_of(request["path"], request["group"], [f.name for f in fields]):
                start = min(found.num_rows, max(0, request["first"] - done))
                while start < found.num_rows:
                    part = found.slice(start, step)
                    batch = self._batch(rows, part, done + start)
                    start += part.num_rows if batch is not None or step == 1 else 0
                    width = MOST_RECORD if batch is None else batch.nbytes // max(1, len(batch))
                    step = max(1, min(faster * step, _BATCH_BYTES // max(1, width)))
                done += found.num_rows
        except (OSError, pa.ArrowException) as error:
            raise Unreadable("its row group cannot be read") from error
        return done

    def _batch(self, rows: Rows, found: pa.RecordBatch, first: int) -> Any:
        """Send some rows, and return them; None where they, or the only one, take too much."""
        try:
            batch = rows.batch(found, first, self._refuse)
        except MemoryError:
            if len(found) == 1:
                self._refuse(first, "the record takes more memory than there may be")
            return None
        self._send(batch)
        return batch

    def _fields_of(self, root: str) -> list[Field]:
        """Return a dataset's columns, as they are now."""
        path = os.path.join(root, METADATA)  # noqa: PTH118
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise Unreadable(f"{METADATA} cannot be read") from error
        place = path, status.st_mtime_ns, status.st_size
        if place not in self._fields:
            self._fields = {place: fields_of(path)}
        return self._fields[place]

    def _refuse(self, row: int, reason: str) -> None:
        self._say({"row": row, "reason": reason})

    def _send(self, batch: pa.RecordBatch) -> None:
        sizer = pa.MockOutputStream()
        self._write(sizer, batch)
        self._out.write(_FRAME.pack(b"A", sizer.size()))
        self._write(pa.PythonFile(self._out, "w"), batch)
        self._out.flush()

    def _write(self, sink: Any, batch: pa.RecordBatch) -> None:
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)

    def _say(self, what: dict[str, Any]) -> None:
        data = json.dumps(what).encode()
        self._out.write(_FRAME.pack(b"J", len(data)) + data)
        self._out.flush()


def main() -> None:
    """Answer until the requests end; nothing else may write where answers go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        speaker = Speaker(out)
        for line in sys.stdin.buffer:
            speaker.answer(json.loads(line))
