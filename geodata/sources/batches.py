"""Record batches of bounded size, with their system columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from geodata.schema import KEY, SUBJECT, is_origin

BATCH_BYTES = 8 << 20
"""Most bytes of a batch of more than one record."""

_LONGEST_REASON = 240


class Unfit(Exception):
    """A value that its column cannot hold without change; the text says why, without the value.

    As a string it is one short line, whatever names are in it.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _LONGEST_REASON:
            half = _LONGEST_REASON // 2
            text = f"{text[:half]}…{text[-half:]}"
        shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        return text if text.isprintable() else "".join(shown)

    @classmethod
    def of(cls, path: str, wanted: object, found: str) -> Unfit:
        """Return the error of a value of type `found` in the column `path` of type `wanted`."""
        return cls(f"'{path}' is {wanted} here, this record holds {found}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the records of a batch stand: one file or each its own, and their rows in it from 1.

    Without rows a record is all of its file.
    """

    files: str | Sequence[str]
    rows: Sequence[int] | pa.Array | None = None

    def array(self, count: int, kind: pa.DataType) -> pa.Array:
        """Return the column of `count` origins."""
        files = [self.files] * count if isinstance(self.files, str) else self.files
        rows = pa.nulls(count, pa.int64()) if self.rows is None else pa.array(self.rows, pa.int64())
        return pa.StructArray.from_arrays([pa.array(files, pa.string()), rows], fields=list(kind))


def assemble(
    schema: pa.Schema,
    keys: Sequence[str] | pa.Array,
    columns: Mapping[str, pa.Array],
    origin: Origin | None = None,
) -> pa.RecordBatch:
    """Return the batch of these records: columns that are not given are null."""
    count = len(keys)
    keys = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
    given = {**columns, KEY: keys, SUBJECT: pa.nulls(count, pa.string())}
    arrays = []
    for field in schema:
        if origin is not None and is_origin(field):
            arrays.append(origin.array(count, field.type))
        elif field.name in given:
            arrays.append(given[field.name])
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of `batch` in batches of at most 8 MiB; an empty batch yields nothing."""
    if batch.num_rows > 1 and batch.nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        yield from bounded(batch.slice(0, half))
        yield from bounded(batch.slice(half))
    elif batch.num_rows:
        yield batch


def fitting(
    build: Callable[[Sequence[int]], pa.RecordBatch],
    count: int,
    refuse: Callable[[int, str], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the records of [0, count) that `build` can make; `refuse` the others, one by one.

    `build(rows)` returns a batch or raises Unfit; a failing run is halved until the record that
    fails stands alone.
    """
    good: Sequence[int] = range(count)
    try:
        batch = build(good)
    except Unfit:
        faults = dict(_faults(build, range(count)))
        for row, reason in faults.items():
            refuse(row, reason)
        good = [row for row in range(count) if row not in faults]
        if not good:
            return
        batch = build(good)
    yield from bounded(batch)


def _faults(
    build: Callable[[Sequence[int]], pa.RecordBatch], rows: range
) -> Iterator[tuple[int, str]]:
    try:
        build(rows)
    except Unfit as error:
        if len(rows) == 1:
            yield rows[0], str(error)
            return
        half = len(rows) // 2
        yield from _faults(build, rows[:half])
        yield from _faults(build, rows[half:])


def most_rows(schema: pa.Schema) -> int:
    """Return how many records surely stay below 8 MiB in columns of fixed width alone."""
    width = sum(_width(field.type) for field in schema)
    return max(1, BATCH_BYTES // max(1, width))


def _width(kind: pa.DataType) -> int:
    """Return about how many bytes one null of this type takes."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    if pa.types.is_struct(kind):
        return 1 + sum(_width(field.type) for field in kind)
    try:
        return 1 + (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 9
