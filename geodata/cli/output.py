"""How results are shown: sizes, tables, a progress bar."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import click


class Bar:
    """A progress bar on stderr, with rate and time left."""

    def __init__(self) -> None:
        self._bar: Any = None

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a phase of `total` units."""
        from tqdm import tqdm

        self._bar = tqdm(
            desc=what,
            total=total,
            unit=f" {unit}" if unit != "B" else "B",
            unit_scale=unit == "B",
            unit_divisor=1024,
            leave=False,
            dynamic_ncols=True,
            disable=None,
        )

    def advance(self, count: int) -> None:
        """Count finished units."""
        self._bar.update(count)

    def finish(self) -> None:
        """End the phase."""
        self._bar.close()


@contextmanager
def prints_aside() -> Iterator[None]:
    """Send to stderr what the user's code prints meanwhile, here and in processes started here."""
    try:
        kept = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    out = sys.stdout
    out.flush()
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        out.flush()  # by whoever holds it since before
        os.dup2(kept, 1)
        os.close(kept)


def size(nbytes: float) -> str:
    """Return bytes for people: 21 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 999.5 or unit == "TB":
            return (
                f"{nbytes:.0f} {unit}" if nbytes >= 9.95 or unit == "B" else f"{nbytes:.1f} {unit}"
            )
        nbytes /= 1000
    raise AssertionError


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 shard, 2 shards."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(version: str) -> str:
    """Return a version for people: v1 for v000001."""
    number, dot, revision = version.removeprefix("v").partition(".")
    return f"v{int(number)}{dot}{revision}"


def here(path: str) -> str:
    """Return a path as people would type it: relative, if it is below the working directory."""
    place, folder = Path(path), Path.cwd()
    return str(place.relative_to(folder)) if place.is_relative_to(folder) else path


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return aligned columns; numbers stand right, with thousands marked."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    right = [
        all(isinstance(row[i], int) or _is_size(row[i]) for row in rows) for i in range(len(head))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(head), *cells]
    )


def _is_size(cell: Any) -> bool:
    return isinstance(cell, str) and cell[:1].isdigit() and cell.endswith("B")


def emit(report: Any, as_json: bool, text: str) -> None:
    """Print a report: its JSON object, or the text for people."""
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(text)


_printed = ContextVar("_printed", default=False)


def print_json(value: Any) -> None:
    """Print the one JSON object of a command."""
    _printed.set(True)
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # in another encoding, or with a name that is no text
        text = json.dumps(value)
    click.echo(text)


def has_printed_json() -> bool:
    """Return whether this process has printed a JSON object, or was about to."""
    return _printed.get()
