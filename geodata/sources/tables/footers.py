"""What the footer of a Parquet file states, trusted no further than it makes sense."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geodata.schema import SUBJECT
from geodata.sources.columns import Range, integer_fields, wider
from geodata.sources.corpus import Broken, unreadable
from geodata.sources.guard import guard
from geodata.sources.tables.parquetpages import pages_fit
from geodata.sources.unite import check_usable

DAMAGE = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises for a damaged file."""

_READ_AHEAD = 256 << 10
"""Bytes buffered of each column while its pages are read one by one."""

_MOST_ROWS = 4096
_FIRST_ROWS = 64
_BATCH_BYTES = 2 << 20
"""Bytes read at once, by what is known before: rows may be of very different size."""
_TOO_LARGE = 32 << 20
"""Bytes after which the rest is read by fewer rows."""

_SMALL = 16 << 10
"""Bytes of encoded values that cannot swell to much, however often each of them stands."""

_NO_PARQUET = "the file is not Parquet, or its footer is damaged"
_LOOK = "geodata.sources.tables.footerlook"
_ASKED = 256
"""Files that are asked about at once."""


def open_parquet(path: Path, *, sound: bool | None = None) -> pq.ParquetFile:
    """Open a file and look through its schema; raise Broken if it makes no sense.

    `sound` is what `sound_footers` says of it, where that is known.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise Broken(unreadable(error)) from error
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_AHEAD)
        check_usable(file.schema_arrow)
        (sound,) = sound_footers([path]) if sound is None else (sound,)
        sound = sound and _counts_agree(file.metadata)
    except DAMAGE as error:
        raise Broken(_NO_PARQUET) from error
    if not sound:
        file.close()
        raise Broken(_NO_PARQUET)
    return file


def sound_footers(paths: Iterable[Path]) -> Iterator[bool]:
    """Yield of each file whether what its footer says of columns can be looked at.

    pyarrow ends its process where that makes no sense, so that another looks first. One that dies
    may do so of what came before: a fresh one is asked about the file again.
    """
    coming = iter(paths)
    while left := [str(path.absolute()) for path in islice(coming, _ASKED)]:
        while left:
            done = 0
            with suppress(guard.Died):
                for said in guard.ask(_LOOK, "look", {"paths": left}):
                    done += 1
                    yield said["sound"]
            if not done:
                done = 1
                yield False
            left = left[done:]


def group_batches(file: pq.ParquetFile, group: int, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, as far as they can be read, by pages and about 2 MiB at once.

    How large a row is once decoded shows only then; should that be too large, the rest of the group
    is read anew by fewer rows. `path` is the file's.
    """
    about = file.metadata.row_group(group)
    if not can_be_read(path, about):
        return
    size = max(1, min(_MOST_ROWS, _BATCH_BYTES // _row_nbytes(about)))
    size = min(size, _FIRST_ROWS) if _may_swell(about) else size
    done = 0
    while done < about.num_rows:
        try:
            for batch in _after(file, group, size, done):
                done += batch.num_rows
                fit = _fitting_size(batch)
                too_large = batch.nbytes > _TOO_LARGE
                yield batch
                del batch
                if (too_large and fit < size) or done <= _FIRST_ROWS < fit:
                    size = max(fit, size // 8)
                    break
            else:
                return
        except pa.ArrowNotImplementedError:
            if size == 1:
                return
            size = max(1, size // 16)
        except DAMAGE:
            return


def spans(groups: Sequence[pq.RowGroupMetaData], schema: pa.Schema) -> dict[str, Range | None]:
    """Return the range of each column of integers, None where it is not stated of all groups."""
    found: dict[str, Range | None] = dict.fromkeys(integer_fields(schema), (0, 0))
    for group in groups:
        known = _statistics(group, found)
        for name, span in found.items():
            found[name] = wider(span, _span(known.get(name), group))
    return found


def all_null(groups: Sequence[pq.RowGroupMetaData], name: str) -> bool:
    """Return whether every group states that the column holds nulls only."""
    found = [(_statistics(group, [name]).get(name), group) for group in groups]
    return all(known is not None and _all_null(known, group) for known, group in found)


def can_be_read(path: Path, group: pq.RowGroupMetaData) -> bool:
    """Return whether the pages of a row group claim no more memory than they may."""
    try:
        return pages_fit(path, group)
    except DAMAGE:
        return False


def look_at(group: pq.RowGroupMetaData, schema: pa.Schema) -> None:
    """Look at all that is looked at of a row group when its file is read."""
    spans([group], schema)
    all_null([group], SUBJECT)
    _row_nbytes(group)
    _may_swell(group)
    for column in _columns(group):
        column.data_page_offset, column.has_dictionary_page, column.dictionary_page_offset  # noqa: B018


def _after(file: pq.ParquetFile, group: int, size: int, done: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a group that follow those which are done."""
    for batch in file.iter_batches(size, row_groups=[group], use_threads=False):
        if done < batch.num_rows:
            yield batch.slice(done)
        done = max(0, done - batch.num_rows)


def _fitting_size(batch: pa.RecordBatch) -> int:
    """Return how many rows like these are about 2 MiB."""
    width: int = batch.nbytes // max(1, batch.num_rows)
    return max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, width)))


def _row_nbytes(group: pq.RowGroupMetaData) -> int:
    """Return about how many bytes a row takes: values of fixed width, the others as encoded."""
    total = 0
    for column in _columns(group):
        width = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BOOLEAN": 1}.get(
            column.physical_type
        )
        if width is None:
            total += max(column.total_uncompressed_size, 4 * column.num_values)
        else:
            total += width * column.num_values
    return int(max(1, total // max(1, group.num_rows)))


def _may_swell(group: pq.RowGroupMetaData) -> bool:
    """Return whether decoded values may be much larger than as encoded: each stands there once."""
    return any(
        column.physical_type == "BYTE_ARRAY"
        and column.total_uncompressed_size > _SMALL
        and not {"RLE_DICTIONARY", "PLAIN_DICTIONARY", "DELTA_BYTE_ARRAY"}.isdisjoint(
            column.encodings
        )
        for column in _columns(group)
    )


def _span(known: pq.Statistics | None, group: pq.RowGroupMetaData) -> Range | None:
    if known is not None and known.has_min_max:
        return min(0, known.min), max(0, known.max)
    return (0, 0) if known is not None and _all_null(known, group) else None


def _all_null(known: pq.Statistics, group: pq.RowGroupMetaData) -> bool:
    return bool(known.has_null_count and known.null_count == group.num_rows)


def _statistics(group: pq.RowGroupMetaData, names: Iterable[str]) -> dict[str, pq.Statistics]:
    """Return what a group states of these columns; not of one whose path two columns have."""
    wanted, found, seen = set(names), {}, Counter[str]()
    for column in _columns(group) if wanted else ():
        path = column.path_in_schema
        seen[path] += 1
        if path in wanted and column.statistics is not None:
            found[path] = column.statistics
    return {path: known for path, known in found.items() if seen[path] == 1}


def _columns(group: pq.RowGroupMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield what can be read of the columns of a group."""
    for index in range(group.num_columns):
        with suppress(*DAMAGE):
            column = group.column(index)
            column.path_in_schema  # noqa: B018
            yield column


def _counts_agree(metadata: pq.FileMetaData) -> bool:
    """Return whether the rows of the groups are those of the file."""
    counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    return min(counts, default=0) >= 0 and sum(counts) == metadata.num_rows
