"""Reads Petastorm datasets for another process; run by an interpreter that has petastorm.

`client` says how the two speak. The pickled schema is opened here only, and can name nothing but
Petastorm's own classes, NumPy's scalar types and a few plain ones; types of pyspark, which is not
installed, become empty classes. Images stay encoded, exactly as they are stored.

    {"do": "hello"}                                  versions
    {"do": "describe", "root"}                       the columns, and their schema as an empty batch
    {"do": "read", "root", "path", "values", "group", "first", "slow"}
                                    the rows of a row group from one on, a few or one at a time
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib import metadata
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from petastorm import codecs, unischema

ROW = "__row__"
"""Column of a batch: where in its row group a row stands, from 0."""

METADATA = "_common_metadata"
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
_FRAME = struct.Struct(">cQ")
_BATCH_BYTES = 4 << 20
_FASTER = 16
"""How many times more rows a batch may have than the one before, whose width is known."""

_MOST_RECORD = (1 << 30) - 1

_LEGACY = ("av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_TENSORS = (codecs.NdarrayCodec, codecs.CompressedNdarrayCodec)
_OF_PETASTORM = {
    unischema: "Unischema UnischemaField",
    codecs: "ScalarCodec NdarrayCodec CompressedNdarrayCodec CompressedImageCodec",
}
_KNOWN: dict[tuple[str, str], Any] = {
    **{
        (module.__name__, name): getattr(module, name)
        for module, names in _OF_PETASTORM.items()
        for name in names.split()
    },
    ("collections", "OrderedDict"): OrderedDict,
    ("decimal", "Decimal"): Decimal,
    ("numpy", "dtype"): np.dtype,
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (object, tuple, list, dict, str, bytes, int, float, bool)
    },
}


class Unreadable(Exception):
    """What cannot be read; the text says why, without content."""


class Field:
    """A column: its Unischema field, the Arrow type that is sent, and its place among columns."""

    def __init__(self, field: Any, stored: pa.DataType | None):
        self.name: str = field.name
        self.field = field
        self.stored = stored
        self.dtype = _dtype(field.numpy_dtype)
        self.shape = tuple(field.shape or ())
        self.role, self.kind = self._role_and_kind()

    def _role_and_kind(self) -> tuple[str, pa.DataType]:
        if isinstance(self.field.codec, codecs.CompressedImageCodec):
            return "image", pa.binary()
        if isinstance(self.field.codec, _TENSORS):
            return self._tensor()
        if self.stored is None:
            return "plain", _partition_type(self.dtype)
        if self.shape or self.dtype is None or pa.types.is_nested(self.stored):
            return "plain", self.stored
        wanted = pa.from_numpy_dtype(self.dtype)
        number = pa.types.is_integer(self.stored) or pa.types.is_floating(self.stored)
        return "plain", wanted if number or pa.types.is_boolean(self.stored) else self.stored

    def _tensor(self) -> tuple[str, pa.DataType]:
        if self.dtype is None:
            return "strings", _nested(pa.string(), len(self.shape))
        item = pa.from_numpy_dtype(self.dtype)
        size = int(np.prod([n or 0 for n in self.shape], dtype=np.int64)) if self.shape else 0
        if size:
            return "fixed", pa.list_(item, size)
        shape = pa.list_(pa.int32())
        return "varying", pa.struct([("data", pa.list_(item)), ("shape", shape)])

    def to_json(self) -> dict[str, Any]:
        """Return what our process must know beside the type."""
        return {"name": self.name, "role": self.role, "shape": list(self.shape)}

    def decoded(self, value: Any) -> Any:
        """Return an encoded array as `pa.array` takes it; raise Unreadable if it is another."""
        try:
            self._check_size(value)
            array = np.asarray(self.field.codec.decode(self.field, value))
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"'{self.name}' cannot be decoded: {type(error).__name__}") from error
        if self.role == "strings":
            return _texts(array, self.name)
        assert self.dtype is not None
        if not np.can_cast(array.dtype, self.dtype, "safe"):
            raise Unreadable(f"'{self.name}' is {self.dtype} here, this record holds {array.dtype}")
        if not _complies(array.shape, self.shape):
            raise Unreadable(f"'{self.name}' has shape {self.shape} here, not {array.shape}")
        return array.astype(self.dtype, "C", copy=False)

    def _check_size(self, value: bytes) -> None:
        """Raise Unreadable for a compressed array that says that it is longer than a record."""
        if isinstance(self.field.codec, codecs.CompressedNdarrayCodec):
            with zipfile.ZipFile(io.BytesIO(value)) as content:
                if sum(member.file_size for member in content.infolist()) > _MOST_RECORD:
                    raise Unreadable(f"'{self.name}' holds 1 GiB or more once it is decoded")

    def tensors(self, arrays: list[Any]) -> pa.Array:
        """Return arrays, or None for null, as a column."""
        there = [array for array in arrays if array is not None]
        flat = np.concatenate([a.reshape(-1) for a in there]) if there else np.empty(0, self.dtype)
        if self.role == "fixed":
            return self._of_fixed_shape(arrays, flat)
        lengths = [0 if array is None else array.size for array in arrays]
        shapes = [None if array is None else array.shape for array in arrays]
        data = pa.ListArray.from_arrays(_offsets(lengths), pa.array(flat))
        missing = pa.array([array is None for array in arrays], pa.bool_())
        parts = [data, pa.array(shapes, pa.list_(pa.int32()))]
        return pa.StructArray.from_arrays(parts, fields=list(self.kind), mask=missing)

    def _of_fixed_shape(self, arrays: list[Any], flat: Any) -> pa.Array:
        """Return arrays as lists of one size: those that are there, placed by `take`."""
        made = pa.FixedSizeListArray.from_arrays(pa.array(flat), self.kind.list_size)
        there = np.array([array is not None for array in arrays])
        return made.cast(self.kind).take(pa.array(np.cumsum(there) - 1, pa.int32(), mask=~there))


def _dtype(found: Any) -> np.dtype[Any] | None:
    """Return the type of numbers or booleans that a field has, or None."""
    try:
        dtype = np.dtype(found)
    except TypeError:
        return None
    return dtype.newbyteorder("=") if dtype.kind in "biuf" and dtype.itemsize <= 8 else None


def _nested(kind: pa.DataType, levels: int) -> pa.DataType:
    return pa.list_(_nested(kind, levels - 1)) if levels else kind


def _partition_type(dtype: np.dtype[Any] | None) -> pa.DataType:
    return pa.string() if dtype is None else pa.from_numpy_dtype(dtype)


def _offsets(lengths: list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _complies(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == found for size, found in zip(wanted, shape, strict=True)
    )


def _texts(array: Any, name: str) -> Any:
    if array.dtype.kind not in "US":
        raise Unreadable(f"'{name}' is an array of strings here, this record holds {array.dtype}")
    try:
        return (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).tolist()
    except UnicodeDecodeError as error:
        raise Unreadable(f"'{name}' is not UTF-8") from error


class _Opener(pickle.Unpickler):
    """Opens a pickled Unischema, and nothing that names anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a known class, or raise."""
        for old in _LEGACY:
            if module.startswith(f"{old}."):
                module = f"petastorm.{module[len(old) + 1 :]}"
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if (module, name) in (("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")):
            return _reconstructed
        scalar = getattr(np, name, None) if module == "numpy" and name.isidentifier() else None
        if isinstance(scalar, type) and issubclass(scalar, np.generic):
            return scalar
        if module == "pyspark.sql.types" and name.isidentifier():
            return type(name, (), {})
        raise Unreadable(f"the pickled schema names {module}.{name}, which is not opened")


def _reconstructed(kind: type, base: type, state: Any) -> Any:
    """Make an object as old pickles ask for it."""
    return object.__new__(kind) if base is object else base.__new__(kind, state)


def unischema_of(path: str) -> tuple[Any, pa.Schema]:
    """Return the Unischema in a dataset's `_common_metadata`, and the Arrow schema of its files."""
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise Unreadable(f"{METADATA} cannot be read") from error
    pickled = (schema.metadata or {}).get(UNISCHEMA_KEY)
    if pickled is None:
        raise Unreadable(f"{METADATA} holds no Unischema")
    try:
        found = _Opener(io.BytesIO(pickled)).load()
        fields = list(found.fields.values())
        assert all(isinstance(field.name, str) for field in fields)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"the pickled schema cannot be opened: {type(error).__name__}") from error
    return found, schema


def fields_of(path: str) -> list[Field]:
    """Return the columns of the dataset whose `_common_metadata` lies at `path`."""
    found, schema = unischema_of(path)
    known = {field.name: field.type for field in schema}
    return [Field(field, known.get(field.name)) for field in found.fields.values()]


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
                    width = _MOST_RECORD if batch is None else batch.nbytes // max(1, len(batch))
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


if __name__ == "__main__":
    main()
