"""The way in: a path or a function's name → its source, ready to be read."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

from geodata.errors import ConfigError
from geodata.sources.base import Source
from geodata.sources.kinds import BESIDE, KINDS, SUFFIXES, ZIPPED, kind_of, unclear
from geodata.sources.listing import Listing, list_files
from geodata.sources.options import ARCHIVED, AS_FOUND, TABLED, Reading

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def location(source: str | Path, opened: Source) -> str:
    """Return where a source lies, for plans and reports; what is not UTF-8 in it is escaped."""
    path = Path(source)
    path = path.resolve() if ".." in path.parts else path.absolute()
    escaped = os.fsencode(path).decode(errors="backslashreplace")
    return str(source) if opened.kind == "function" else escaped


def open_source(
    source: str | Path,
    *,
    kind: str | None = None,
    source_id: str | None = None,
    reading: Reading = AS_FOUND,
) -> Source:
    """Return the corpus at a path, loading the packages of its kind now.

    Without `kind` it is recognised; text by choice takes files of every suffix, and a single file
    is what `kind` says. `module:function` where no such file lies is a function of the user's.
    Raises ConfigError where there is nothing of that kind, or `reading` is not for it.
    """
    path = Path(source)
    if kind == "function" or (kind is None and _names_function(str(source))):
        from geodata.sources.function.source import FunctionSource

        reading.check("function")
        return FunctionSource(str(source), source_id, reading)
    listing = list_files(path, reading.encoding)
    chosen = kind or kind_of(listing)
    if chosen not in KINDS:
        raise ConfigError(f"no kind of source '{chosen}'", hint=f"Known: {', '.join(KINDS)}")
    if chosen not in ZIPPED:
        listing = _outside_archives(listing, chosen)
    traits = [ARCHIVED] if listing.archives else []
    if chosen in ("images", "audio"):
        from geodata.sources.media.files import table_kind
        from geodata.sources.media.table import table_of

        table = table_of(listing, reading)
        if table is not None:
            from geodata.sources.media.table import MediaTable

            reading.check(chosen, *traits, TABLED, table_kind(table))
            return MediaTable(listing, _checked_id(path, source_id), reading, chosen, table)
    reading.check(chosen, *traits)
    if not listing.single and kind != "text":
        suffixes = SUFFIXES["parquet" if chosen == "petastorm" else chosen]
        if not listing.only(suffixes).files:
            raise unclear(f"the folder holds no {chosen}", listing)
        listing = listing.only(suffixes | BESIDE.get(chosen, frozenset()))
    module, _, attribute = KINDS[chosen].partition(":")
    make = getattr(import_module(module), attribute)
    made: Source = make(listing, _checked_id(path, source_id), reading)
    return made


def _outside_archives(listing: Listing, kind: str) -> Listing:
    outside = listing.without_archives()
    if not outside.files:
        raise ConfigError(
            f"{kind} is not read inside zip archives",
            file=str(listing.root),
            hint="Unpack it first",
        )
    return outside


def _names_function(source: str) -> bool:
    """Return whether a source that is no path has the form module:function."""
    return bool(_FUNCTION.fullmatch(source)) and not Path(source).exists()


def _checked_id(path: Path, source_id: str | None) -> str:
    """Return the chosen id, or the name of the file or folder at `path`."""
    chosen = path.absolute().name if source_id is None else source_id
    if chosen in ("", ".", "..") or "/" in chosen or not _is_utf8(chosen):
        raise ConfigError(
            "the source needs an id: a name without slashes, in UTF-8",
            file=str(path),
            hint="Choose one with --source-id",
        )
    return chosen


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
