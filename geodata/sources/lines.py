"""The lines of a part of a file, as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from geodata.sources.corpus import MAX_RECORD

_BLOCK = 1 << 20


def lines_of(path: Path, start: int, stop: int) -> Iterator[bytes | None]:
    """Yield the lines in bytes [start, stop), each with its end; None for one of 2 GiB or more.

    Raises OSError, at any point.
    """
    with path.open("rb") as file:
        file.seek(start)
        left = stop - start
        while line := file.readline(min(MAX_RECORD, left)):
            left -= len(line)
            if len(line) < MAX_RECORD or line.endswith(b"\n"):
                yield line
                continue
            left -= _skip(file, left)
            yield None


def cuts(path: Path, start: int, stop: int, target: int) -> list[int]:
    """Return offsets from `start` to `stop`, after line ends, about `target` bytes apart."""
    found = [start]
    with path.open("rb") as file:
        while found[-1] + target < stop:
            goal = found[-1] + target
            file.seek(goal - 1)
            cut = goal - 1 + _skip(file, stop - goal + 1)
            if cut >= stop:
                break
            found.append(cut)
    return [*found, stop]


def _skip(file: BinaryIO, most: int) -> int:
    """Go to the next line, at most `most` bytes on; return how far it was."""
    gone = 0
    while chunk := file.readline(min(_BLOCK, most - gone)):
        gone += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return gone
