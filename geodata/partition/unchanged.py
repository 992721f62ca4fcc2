"""Whether the files of a source are still those that were listed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from geodata.errors import ConfigError
from geodata.sources.base import KINDS, Piece, Source, SourceFile

_OWN_FILES = frozenset(
    {"jsonl", "csv", "parquet", "text", "images", "webdataset", "hdf5", "tfrecord", "arrow"}
)


def reads_own_files(source: Source) -> bool:
    """Return whether a piece is read from the files that it names and from no other."""
    kind = f"{type(source).__module__}:{type(source).__qualname__}"
    return source.kind in _OWN_FILES and kind == KINDS[source.kind]


def files_of(piece: Piece) -> range:
    """Return the numbers of a piece's files in the listing, where `reads_own_files`."""
    return range(piece.file, piece.file + piece.files)


def check_unchanged(source: Source, numbers: Iterable[int]) -> None:
    """Raise ConfigError naming the first of some files that is not as it was listed."""
    for number in numbers:
        file = source.files[number]
        if not _is_as_listed(source.root, file) and _changed(source.root, file):
            raise ConfigError(
                "the source changed while it was read",
                file=os.fsencode(file.name).decode(errors="backslashreplace"),
                hint="Run it again with --restart to go on with it as it is now",
            )


def _is_as_listed(root: Path, file: SourceFile) -> bool:
    """Return whether a file that lies below the root is surely as it was listed."""
    try:
        status = Path(f"{root}/{file.name}").stat()
    except (OSError, ValueError):
        return False
    seen = (status.st_size, status.st_mtime_ns)
    return stat.S_ISREG(status.st_mode) and seen == (file.nbytes, file.mtime_ns)


def _changed(root: Path, file: SourceFile) -> bool:
    """Return whether a file differs from what was listed.

    A name that begins with a slash is that of a table outside, or of a member of an archive.
    """
    places = {root / file.name, Path(f"{root}/{file.name}")}
    return all(_differs(path, root, file) for path in places)


def _differs(path: Path, root: Path, file: SourceFile) -> bool:
    """Return whether what lies at a path is not `file`; 0 and 0 is one that was not there."""
    for place in (path, *path.parents):
        try:
            status = place.stat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            break
        whole = place in (path, root) and place.name == path.name and place.suffix != ".zip"
        seen = (status.st_size if whole else file.nbytes, status.st_mtime_ns)
        return seen != (file.nbytes, file.mtime_ns)
    return (file.nbytes, file.mtime_ns) != (0, 0)
