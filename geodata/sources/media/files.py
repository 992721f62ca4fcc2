"""The table beside media files, and the files that its rows name."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geodata.errors import ConfigError
from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.filelist import FileList
from geodata.sources.kinds import SUFFIXES, TABLES, ZIPPED
from geodata.sources.listing import Listing, list_files, suffix_of
from geodata.sources.lookup import folder_of, index_of, narrowed, with_stem

_FILE_NAME = "file_name"
"""The column that a table found by itself has."""
_KINDS = ("csv", "jsonl", "parquet")
_HEAD_BYTES = 1 << 16
_DEEPER = tuple(f"/{name}" for name in TABLES)
_MAY_BE_DEEPER = re.compile("|".join(map(re.escape, _DEEPER)).encode())
_SHOWN = 4
"""Tables that an error names."""


class MediaFiles:
    """The media files of a corpus, found by what the rows of a table give."""

    def __init__(self, files: FileList, folder: str):
        """Take the files and the table's folder, with a slash at its end, or empty."""
        self._files = files
        homes = {folder_of(name) for name in files.names()}
        self._folders = [folder, *(homes - {folder} if len(homes) == 1 else ())]

    def find(self, given: str | None) -> int:
        """Return the place of the file that a row gives; raise Unfit where there is not one."""
        if not given:
            raise Unfit("the row names no file")
        if given.startswith("/") or ".." in given.split("/"):
            raise Unfit("the row names a file outside of the corpus")
        path = posixpath.normpath(given)
        for folder in self._folders:
            index = index_of(self._files, folder + path)
            if index is not None:
                return index
        for folder in self._folders:
            found = with_stem(self._files, folder + path)
            if len(found) > 1:
                raise Unfit("the row names a file without its suffix, and there are several")
            if found:
                return found[0]
        raise Unfit("the row names a file that is not in the corpus")


def chosen_table(listing: Listing, table: str) -> str:
    """Return the table that the user chose: its name in the listing, or its path outside.

    Raises ConfigError where it is not there.
    """
    if listing.single:
        raise ConfigError("a table needs a folder of media files", file=str(listing.root))
    if index_of(listing.files, table) is not None:
        return table
    path = Path(table)
    if not path.is_file():
        hint = "Give its path in the source, or where it lies outside"
        raise ConfigError(f"no table '{table}'", file=str(listing.root), hint=hint)
    inside = os.path.relpath(path.absolute(), listing.root.absolute())
    return str(path.absolute()) if index_of(listing.files, inside) is None else inside


def found_table(listing: Listing) -> str | None:
    """Return the table that says by its name, and by a column, that it names media files.

    Raises ConfigError where there are several, or one lies deeper: it would say nothing of the
    media in other folders.
    """
    if listing.single:
        return None
    found = [name for name in TABLES if _names_files(listing, name)]
    if not found and listing.files.may_name(_MAY_BE_DEEPER):
        deeper = (name for name in listing.files.names() if name.endswith(_DEEPER))
        found = [name for name in deeper if _names_files(listing, name)]
    if len(found) > 1 or any("/" in name for name in found):
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        what = "several tables" if len(found) > 1 else "a table in a folder"
        hint = "Choose one with --table, or convert each folder by itself"
        raise ConfigError(f"{what}: {shown}", file=str(listing.root), hint=hint)
    return found[0] if found else None


def table_kind(table: str) -> str:
    """Return the kind of the table's source; ConfigError for none that can be read."""
    suffix = suffix_of(os.fsencode(table))
    for kind in _KINDS:
        if suffix in SUFFIXES[kind]:
            return kind
    raise ConfigError("the table is neither CSV, TSV, line JSON nor Parquet", file=table)


def media_and_table(
    listing: Listing, suffixes: Collection[str], table: str
) -> tuple[Listing, Listing]:
    """Return the listings of the media files, and of the table alone.

    Raises ConfigError for a table that cannot be read where it lies.
    """
    index = index_of(listing.files, table)
    media = listing.only(suffixes)
    if index is None:
        return media, replace(list_files(Path(table)), root=Path(table).parent, single=False)
    if listing.files.member(index) is not None and table_kind(table) not in ZIPPED:
        raise ConfigError(
            "a Parquet table is not read inside zip archives", file=table, hint="Unpack it first"
        )
    ignored = Counter(media.ignored)
    ignored[suffix_of(os.fsencode(table))] -= 1
    return replace(media, ignored=dict(+ignored)), narrowed(listing, {index})


def _names_files(listing: Listing, name: str) -> bool:
    """Return whether a file of this name is there and has the column `file_name`."""
    index = index_of(listing.files, name)
    if index is None:
        return False
    try:
        if name.endswith(".parquet"):
            return _FILE_NAME in pq.read_schema(listing.root / name).names
        head = Corpus(listing, "").head(index, _HEAD_BYTES)
    except (pa.ArrowException, OSError):
        return False
    return _FILE_NAME.encode() in head.partition(b"\n")[0]
