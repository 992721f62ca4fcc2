"""A tree of text files, one record a file: its bytes exactly where they are UTF-8.

Text in another encoding, said or recognised, becomes UTF-8, and its byte order mark goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from geodata.schema import media_field
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.encodings.declared import PLAIN
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, DETECT, Reading


class TextTree(Corpus):
    """Text files below a folder, or one of them."""

    kind = "text"
    glances = True
    checks_as_it_reads = True

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        self.glances = self.encoding != DETECT

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files."""
        return self.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Count the files, and note their encodings if these are to be recognised."""
        found: dict[str, tuple[str, float]] = {}

        def note(name: str, content: memoryview) -> tuple[()]:
            coding = self.text_coding(name, bytes(content))
            if coding.confidence is not None:
                found[name] = coding.name, coding.confidence
            return ()

        if self.encoding == DETECT:
            for _ in self.whole_records(piece, note, lambda _: None):
                pass
        return Scan(piece.files, piece.files, file=piece.file, encodings=found)

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
        """Yield the files that decode; line ends, and the byte order mark of UTF-8, stay."""
        plain = self.encoding == PLAIN.name
        for found in self.whole_records(piece, self._checked if plain else self._decoded, reject):
            about = () if plain else ("text",)
            yield found.batch("text", about, schema, self.origin_of(found.keys))

    def _checked(self, _name: str, content: memoryview) -> tuple[()]:
        """Raise Unfit if a text is not UTF-8."""
        try:
            str(content, PLAIN.name)
        except UnicodeError as error:
            raise Unfit(PLAIN.fault(error, 0)) from error
        return ()

    def _decoded(self, name: str, content: memoryview) -> tuple[bytes]:
        """Return a text in UTF-8; raise Unfit if it is none."""
        data, coding = bytes(content), PLAIN
        try:
            coding = self.text_coding(name, data)
            mark = coding.mark if coding != PLAIN or self.encoding == "utf-8-sig" else b""
            text = coding.text(data.removeprefix(mark))
            return (text.encode(),)
        except UnicodeError as error:
            start = len(coding.mark) if coding != PLAIN and data.startswith(coding.mark) else 0
            raise Unfit(coding.fault(error, start)) from error
