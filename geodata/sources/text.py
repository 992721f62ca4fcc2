"""A tree of text files, one record a file: its bytes exactly, which must be UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from geodata.schema import media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Unfit, assemble
from geodata.sources.corpus import Corpus


class TextTree(Corpus):
    """Text files below a folder, or one of them."""

    kind = "text"
    glances = True

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files."""
        return self.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Count the files; their type is known."""
        return Scan(piece.files, piece.files, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:  # noqa: ARG002
        """Return the one column `text`."""
        return pa.schema([media_field("text", "text")])

    def read(
        self,
        piece: Piece,
        first_row: int,  # noqa: ARG002
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the files that are UTF-8; a byte order mark and line ends stay as they are."""
        for keys, texts in self.whole_records(piece, _text, reject):
            columns = {"text": pa.array(texts, pa.binary()).cast(schema.field("text").type)}
            yield assemble(schema, keys, columns)


def _text(_: str, data: bytes) -> bytes:
    """Return the bytes of a text; raise Unfit if they are none."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"invalid UTF-8 at byte {error.start}") from error
    return data
