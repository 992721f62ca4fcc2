"""Files that each are a table, read by their parts, which are row groups or record batches.

The schemas of all files unite without loss, and columns that stand in the names of folders
(`year=2024/`) are columns. Parts follow one another in runs, each of which is a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

from geodata.sources.base import Piece, Reject
from geodata.sources.corpus import NOT_UTF8_NAME, Broken, Corpus
from geodata.sources.stored import Rows
from geodata.sources.tables.embedded import embedded_media, unpacked
from geodata.sources.tables.partitions import Partitions

Cut = tuple[int, int, int]
"""Where a part starts and stops, as `batches` takes it, and about how many bytes it has."""

Found: TypeAlias = "pa.RecordBatch | str | tuple[int, str]"
"""Rows; or, in the place of rows that cannot be read, why: before it how many, if that is known."""


class Table(Protocol):
    """A file that was opened."""

    @property
    def schema(self) -> pa.Schema:
        """Return its columns as they are stored."""

    def cuts(self) -> Sequence[Cut]:
        """Return its parts in order."""

    def batches(self, start: int, stop: int) -> Iterator[Found]:
        """Yield the rows of the parts from `start` to `stop`."""


Opening = Callable[[Path], AbstractContextManager[Table]]
"""Opens a file; raises Broken where it is no table."""


def opened_at(corpus: Corpus, index: int, opening: Opening) -> AbstractContextManager[Table]:
    """Open the file `index` of a corpus; raise Broken where that cannot be."""
    if not corpus.named_in_utf8(index):
        raise Broken(NOT_UTF8_NAME)
    return opening(corpus.path(index))


def runs_of(corpus: Corpus, index: int, opening: Opening, target_bytes: int) -> Iterator[Piece]:
    """Yield runs of a file's parts; without any, or without sense, it is one empty run."""
    first = last = nbytes = 0
    for start, stop, size in _cuts(corpus, index, opening):
        if nbytes and nbytes + size > target_bytes:
            yield Piece(index, 1, first, last, nbytes)
            first, last, nbytes = start, start, 0
        first = start if first == last else first
        last, nbytes = stop, nbytes + size
    yield Piece(index, 1, first, last, nbytes)


def _cuts(corpus: Corpus, index: int, opening: Opening) -> Sequence[Cut]:
    try:
        with opened_at(corpus, index, opening) as table:
            return table.cuts()
    except Broken:
        return ()


def rows_of(
    corpus: Corpus,
    piece: Piece,
    first_row: int,
    schema: pa.Schema,
    reject: Callable[[Reject], None],
    opening: Opening,
    folders: Partitions,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece that can be read and fit `schema`, with the values of `folders`."""
    name = corpus.shown(piece.file)
    try:
        opened = opened_at(corpus, piece.file, opening)
    except Broken as error:
        reject(Reject(name, None, str(error)))
        return
    values = folders.of(corpus.files.name(piece.file))
    rows = Rows(schema, name, f"{corpus.key(piece.file)}#", first_row, reject, values)
    with opened as table:
        media = embedded_media(table.schema)
        for found in table.batches(piece.start, piece.stop):
            if isinstance(found, str):
                reject(Reject(name, None, found))
            elif isinstance(found, tuple):
                rows.lose(*found)
            else:
                yield from rows.fit(unpacked(found, media))
