"""Raw corpora → record batches. `open_source` is the way in; `base` says what a source is."""

from geodata.sources.base import (
    KINDS,
    Piece,
    Reading,
    Reject,
    Scan,
    Source,
    SourceFile,
    first_rows,
    list_files,
    open_source,
    recognise,
)

__all__ = [
    "KINDS",
    "Piece",
    "Reading",
    "Reject",
    "Scan",
    "Source",
    "SourceFile",
    "first_rows",
    "list_files",
    "open_source",
    "recognise",
]
