"""Columns that stand in the names of folders: `country=DE/year=2024/part.parquet`.

They are there if the folders of every file name the same columns in the same order. A column is
int64 if each of its values is a plain integer, else a string; `__HIVE_DEFAULT_PARTITION__` is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from geodata.sources.columns import Stated
from geodata.sources.observed import number_type
from geodata.sources.spellings import text_kinds

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Partitions:
    """The columns in the names of the folders, and their types."""

    types: Mapping[str, pa.DataType]

    def of(self, name: str) -> dict[str, pa.Scalar]:
        """Return the values of the columns for the file of this name."""
        named = dict(_named(name)) if self.types else {}
        return {
            column: pa.scalar(int(text) if text and kind == pa.int64() else text, kind)
            for (column, text), kind in zip(named.items(), self.types.values(), strict=True)
        }

    def stated(self, name: str, present: Sequence[str]) -> Iterator[Stated]:
        """Yield what the folders of a file state, but for columns that are present in it."""
        for column, value in self.of(name).items():
            if column not in present:
                kind = value.type if value.is_valid else pa.null()
                number = value.as_py() if isinstance(value, pa.Int64Scalar) else 0
                span = (min(0, number or 0), max(0, number or 0))
                yield Stated(pa.field(column, value.type), ((kind, 0),), span)


NONE = Partitions({})


def partitions_of(names: Iterator[str]) -> Partitions:
    """Return the columns in the names of the files' folders; none unless all have the same."""
    columns: tuple[str, ...] | None = None
    kinds: dict[str, set[str]] = {}
    for name in names:
        named = _named(name)
        found = tuple(column for column, _ in named)
        if not found or len(set(found)) < len(found) or columns not in (None, found):
            return NONE
        columns = found
        for column, text in named:
            kinds.setdefault(column, set()).update(() if text is None else text_kinds(text))
    return Partitions({column: _type_of(found) for column, found in kinds.items()})


def _type_of(kinds: set[str]) -> pa.DataType:
    """Return int64 if all values are integers of that range, else string."""
    if kinds and not kinds & {"bool", "double", "string"} and number_type(kinds) == pa.int64():
        return pa.int64()
    return pa.string()


def _named(name: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns and values in the names of a file's folders."""
    folders = (folder.partition("=") for folder in name.split("/")[:-1])
    return tuple(
        (_decoded(column), None if text == _NULL else _decoded(text))
        for column, equals, text in folders
        if column and equals
    )


def _decoded(text: str) -> str:
    """Return the text with its percent-encoding taken away; as it stands where that is no UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        return text
