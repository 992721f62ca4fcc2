"""What the footer of a Parquet file states, trusted no further than it makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geodata.schema import plain_type
from geodata.sources.corpus import unreadable
from geodata.sources.unite import bare

Range = tuple[int, int]
"""Smallest and largest integer of a column, or 0."""

DAMAGE = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises for a damaged file."""


class Broken(Exception):
    """A file that is not Parquet any more, or never was; the text says why."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file and look through its schema; raise Broken if it makes no sense."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise Broken(unreadable(error)) from error
    try:
        file = pq.ParquetFile(path, pre_buffer=False)
        for field in file.schema_arrow:
            bare(field.type)
            field.name  # noqa: B018
        if not _counts_agree(file.metadata):
            file.close()
            raise Broken("the file is not Parquet, or its footer is damaged")
    except DAMAGE as error:
        raise Broken("the file is not Parquet, or its footer is damaged") from error
    return file


def integer_range(path: Path, name: str) -> Range | None:
    """Return the range of a file's column, which is not nested; None where it is not stated.

    A column that is not of integers takes no part: (0, 0).
    """
    low = high = 0
    with suppress(Broken), open_parquet(path) as file:
        if not pa.types.is_integer(plain_type(file.schema_arrow.field(name).type, name)):
            return 0, 0
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            stated = _statistics(group, name)
            if stated is None or not (stated.has_min_max or _all_null(stated, group)):
                return None
            if stated.has_min_max:
                low, high = min(low, stated.min), max(high, stated.max)
        return low, high
    return None


def all_null(groups: Sequence[pq.RowGroupMetaData], name: str) -> bool:
    """Return whether every group states that the column holds nulls only."""
    found = [(_statistics(group, name), group) for group in groups]
    return all(stated is not None and _all_null(stated, group) for stated, group in found)


def _all_null(stated: pq.Statistics, group: pq.RowGroupMetaData) -> bool:
    return bool(stated.has_null_count and stated.null_count == group.num_rows)


def _statistics(group: pq.RowGroupMetaData, name: str) -> pq.Statistics | None:
    """Return what a group states of a column; None where two columns have its path."""
    found = []
    for index in range(group.num_columns):
        with suppress(*DAMAGE):
            column = group.column(index)
            if column.path_in_schema == name:
                found.append(column.statistics)
    return found[0] if len(found) == 1 else None


def _counts_agree(metadata: pq.FileMetaData) -> bool:
    """Return whether the rows of the groups are those of the file."""
    counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    return min(counts, default=0) >= 0 and sum(counts) == metadata.num_rows
