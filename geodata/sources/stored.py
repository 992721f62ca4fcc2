"""Batches as a file stores them → batches of the dataset: typed, keyed, bounded, row by row.

A row that does not fit is rejected with an Arrow IPC stream of this one row, in the file's types,
as its original bytes; nothing stands for a row of more than 64 MiB, or one whose lists and strings
point outside of their values. A string column `__key__` is kept as the key where it is not null;
a key that stands twice within a piece is found here (the later row is rejected), any other when
the dataset is sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from geodata.formats.lowering import retype
from geodata.schema import KEY, SUBJECT, SYSTEM, is_reserved
from geodata.sources.base import Reject
from geodata.sources.batches import BATCH_BYTES, Origin, Unfit, assemble, fitting
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.unite import conform

_MOST_ROWS = 4096
_MOST_RAW = 64 << 20
_MOST_KEYS = 1 << 18
"""Keys remembered; beyond, a duplicate is found only among those that follow."""


class Rows:
    """The rows of a file, brought to the schema of the dataset.

    `key` starts the keys; `row` is how many rows of the file precede the next. `constants` are
    values of columns that hold for all of the file; where it has such a column, they must be equal.
    """

    def __init__(
        self,
        schema: pa.Schema,
        file: str,
        key: str,
        row: int,
        reject: Callable[[Reject], None],
        constants: Mapping[str, pa.Scalar] | None = None,
    ):
        self.row = row
        self._schema, self._file, self._key, self._reject = schema, file, key, reject
        self._constants = constants or {}
        self._seen: dict[bytes, int] = {}

    def fit(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fit, reject the others; `batch` has passed `validate()`."""
        for part in _parts(batch):
            for start, stop in self._fresh(part):
                yield from self._run(part.slice(start, stop - start), self.row + start)
            self.row += part.num_rows

    def lose(self, count: int, reason: str) -> None:
        """Reject the next rows, which cannot be read."""
        for _ in range(count):
            self.row += 1
            self._reject(Reject(self._file, self.row, reason))

    def _fresh(self, batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        """Yield runs of rows whose keys were not seen before; reject the others."""
        start = 0
        for place, key in enumerate(_keys(batch)):
            row = self.row + place + 1
            first = row if key is None else self._seen.setdefault(key, row)
            if first < row:
                reason, raw = f"its key stands in row {first} already", _raw(batch.slice(place, 1))
                self._reject(Reject(self._file, row, reason, raw))
                yield start, place
                start = place + 1
        if len(self._seen) > _MOST_KEYS:
            self._seen.clear()
        yield start, batch.num_rows

    def _run(self, run: pa.RecordBatch, row: int) -> Iterator[pa.RecordBatch]:
        def refuse(i: int, reason: str) -> None:
            self._reject(Reject(self._file, row + i + 1, reason, _raw(run.slice(i, 1))))

        return fitting(self._builder(run, row), run.num_rows, refuse)

    def _builder(
        self, batch: pa.RecordBatch, first_row: int
    ) -> Callable[[Sequence[int]], pa.RecordBatch]:
        """Return what makes batches of some rows of a batch, which are in order."""

        def build(rows: Sequence[int]) -> pa.RecordBatch:
            part = _chosen(batch, rows)
            if not _is_sound(part):
                raise Unfit("a string is not UTF-8, or a value is malformed")
            if _has_too_long(part):
                raise Unfit(TOO_LONG)
            columns = self._columns(part)
            numbers = [first_row + i + 1 for i in rows]
            keys = pa.array([f"{self._key}{number}" for number in numbers], pa.string())
            if KEY in columns:
                keys = pc.coalesce(columns[KEY], keys)
            return assemble(self._schema, keys, columns, Origin(self._file, numbers))

        return build

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = {}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name in columns:
                raise Unfit(f"two columns have the name '{name}'")
            if name == SUBJECT and array.null_count < len(array):
                raise Unfit(f"'{name}' holds a value, and the name is reserved")
            columns[name] = conform(array, self._type(name), name)
        for name, value in self._constants.items():
            if name in columns:
                if first_difference(batch.column(name), value) is not None:
                    raise Unfit(f"'{name}' differs from the name of the file's folder")
            else:
                array = pa.repeat(value, batch.num_rows)
                columns[name] = conform(array, self._type(name), name)
        return columns

    def _type(self, name: str) -> pa.DataType:
        index = self._schema.get_field_index(name)
        if index < 0:
            reserved = is_reserved(name) and name not in SYSTEM
            raise Unfit(
                f"'{name}': names in double underscores are reserved"
                if reserved
                else f"'{name}' is not in the schema"
            )
        return self._schema.field(index).type


def first_difference(array: pa.Array, value: pa.Scalar) -> int | None:
    """Return where the array first differs from a value of a folder's name; None: nowhere."""
    if not value.is_valid:
        same = array.is_null()
    else:
        try:
            kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
            as_there = value.cast(kind)
            same = pc.fill_null(pc.equal(array.cast(kind), as_there), False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return 0 if len(array) else None
    place = pc.index(same, False).as_py()
    return None if place < 0 else int(place)


def integer_range(array: pa.Array) -> tuple[int, int] | None:
    """Return the smallest and largest integer of a column, or 0; None where it is malformed.

    Of a dictionary, those that are in it.
    """
    if pa.types.is_dictionary(array.type):
        if not _is_sound(array):
            return None
        array = array.dictionary
    ends = pc.min_max(array).as_py()
    return min(0, ends["min"] or 0), max(0, ends["max"] or 0)


def _chosen(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    """Return some rows of a batch; where they are not one run, each was found sound before."""
    if isinstance(rows, range):
        return batch.slice(rows.start, len(rows))
    try:
        return batch.take(pa.array(rows, pa.int64()))
    except pa.ArrowNotImplementedError:  # views
        return pa.concat_batches([batch.slice(row, 1) for row in rows])


def _has_too_long(batch: pa.RecordBatch) -> bool:
    """Return whether a row of a sound batch is longer than a record may be."""
    rows = (batch.slice(row, 1) for row in range(batch.num_rows))
    return batch.nbytes > MAX_RECORD and any(row.nbytes > MAX_RECORD for row in rows)


def _is_sound(values: pa.RecordBatch | pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield runs of rows of modest size, their dictionaries decoded unless they are malformed."""
    coded = [
        place
        for place, array in enumerate(batch.columns)
        if pa.types.is_dictionary(array.type) and _is_sound(array)
    ]
    size = max(1, min(_MOST_ROWS, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, size):
        yield from _decoded(batch.slice(start, size), coded)


def _decoded(batch: pa.RecordBatch, coded: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these dictionaries decoded, in runs that are still modest then."""
    nbytes = sum(_decoded_nbytes(batch.column(place)) for place in coded)
    if batch.num_rows > 1 and nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _decoded(batch.slice(0, half), coded)
        yield from _decoded(batch.slice(half), coded)
        return
    for place in coded:
        name, array = batch.schema.names[place], batch.column(place)
        batch = batch.set_column(place, name, array.dictionary_decode())
    yield batch


def _decoded_nbytes(array: pa.DictionaryArray) -> int:
    """Return about how many bytes the values take once decoded."""
    values = array.dictionary
    try:
        lengths = pc.binary_length(values)
    except pa.ArrowNotImplementedError:
        return int(values.nbytes) * len(array) // max(1, len(values))
    return int(pc.sum(lengths.take(array.indices)).as_py() or 0)


def _keys(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return the keys that the rows bring with them; none where they are malformed."""
    if batch.schema.names.count(KEY) != 1:
        return []
    column = batch.column(KEY)
    if pa.types.is_string_view(column.type) and _is_sound(column):
        column = column.cast(pa.string())
    raw = _as_bytes(column)
    if raw.type not in (pa.binary(), pa.large_binary()) or not _is_sound(raw):
        return []
    keys: list[bytes | None] = raw.to_pylist()
    return keys


def _raw(row: pa.RecordBatch) -> bytes:
    """Return a row as an Arrow IPC stream."""
    sound = all(_is_sound(_as_bytes(array)) for array in row.columns)
    if not sound or row.nbytes > _MOST_RAW:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    made: bytes = sink.getvalue().to_pybytes()
    return made if len(made) <= _MOST_RAW else b""


def _as_bytes(array: pa.Array) -> pa.Array:
    """Return the array with bytes in place of strings, which may be anything."""
    kind = retype(array.type, _bytes_for)
    return array if kind == array.type else array.view(kind)


def _bytes_for(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else None
