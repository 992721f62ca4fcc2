"""Files of a corpus found by their names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from geodata.sources.filelist import FileList
from geodata.sources.listing import Listing


def index_of(files: FileList, name: str) -> int | None:
    """Return the place of the file with exactly this name."""
    at = _place(files, os.fsencode(name))
    return at if at < len(files) and files.name(at) == name else None


def with_stem(files: FileList, stem: str) -> list[int]:
    """Return the places of the files that have this name and a suffix."""
    start, found = f"{stem}.", []
    at = _place(files, os.fsencode(start))
    while at < len(files) and (name := files.name(at)).startswith(start):
        if not {".", "/"} & set(name[len(start) :]):
            found.append(at)
        at += 1
    return found


def stem_of(name: str) -> str:
    """Return a file's name without its suffix, its folders kept."""
    folder, slash, base = name.rpartition("/")
    stem, dot, _ = base.rpartition(".")
    return folder + slash + (stem if dot and stem else base)


def folder_of(name: str) -> str:
    """Return the folder of a file as its name begins: with a slash at its end, or empty."""
    folder, slash, _ = name.rpartition("/")
    return folder + slash


def narrowed(listing: Listing, places: Iterable[int]) -> Listing:
    """Return the listing of the files at these places, of which nothing is ignored."""
    kept = set(places)
    entries = [entry for i, entry in enumerate(listing.files.entries()) if i in kept]
    return replace(listing, files=FileList(entries), ignored={})


def _place(files: FileList, name: bytes) -> int:
    return files.place_of(name, range(len(files)))
