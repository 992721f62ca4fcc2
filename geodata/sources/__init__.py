"""Raw corpora → record batches. `open_source` is the way in; `base` says what a source is, and
`kinds` which there are.
"""

from geodata.sources.base import Piece, Reject, Scan, Source, first_rows
from geodata.sources.filelist import SourceFile
from geodata.sources.kinds import KINDS, recognise
from geodata.sources.listing import list_files
from geodata.sources.opening import open_source
from geodata.sources.options import Reading

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
