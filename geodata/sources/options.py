"""What the user says of how a corpus is to be read, beyond what can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from geodata.errors import ConfigError

DETECT = "detect"
"""As an encoding: recognise each file's, and say with which confidence."""

ARCHIVED = "zip archives"
TABLED = "media with a table"
"""What a corpus can be beside its kind."""

USED_BY: dict[str, tuple[str, ...]] = {
    "encoding": ("jsonl", "csv", "text", "audio", "webdataset", ARCHIVED),
    "header": ("csv",),
    "delimiter": ("csv",),
    "quotes": ("csv",),
    "columns": ("csv",),
    "table": ("images", "audio"),
    "file_column": (TABLED,),
    "parts": ("function",),
}
"""The kinds of corpora that use each field of `Reading` which decides a result."""

_NEGATED = {"header": "--no-header", "quotes": "--no-quotes"}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a corpus is read; part of the plan, so that a rerun reads it the same way.

    `encoding` is of text in files, and of names in zip archives, that are not UTF-8; `detect`
    recognises it. `header` says whether delimited text names its columns in the first row;
    `columns` names them where it does not; `delimiter` is one character (None: recognised), and
    without `quotes` a quote is a character like any other, as TSV has it. `table` is a file of the
    corpus whose rows name media files in the column `file_column`. `parts` is into how many parts a
    function of the user's is asked to cut itself. `cache` is the user's folder for caches (None:
    ~/.cache), in which the environment for Petastorm lies; it decides nothing.
    """

    encoding: str = "utf-8"
    header: bool = True
    delimiter: str | None = None
    quotes: bool = True
    columns: tuple[str, ...] = ()
    table: str | None = None
    file_column: str | None = None
    parts: int = 1
    cache: Path | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the result and differs from the defaults, as plain JSON."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return {name: value for name, value in given.items() if value != getattr(AS_FOUND, name)}

    def options(self) -> list[str]:
        """Return the options of the command line that say so."""
        return [_option(name) for name in self.to_json()]

    def check(self, kind: str, *more: str) -> None:
        """Raise ConfigError for an option that is not for a corpus of this kind.

        `more` is what the corpus is beside it: ARCHIVED, TABLED, the kind of its table.
        """
        for name in self.to_json():
            if not {kind, *more} & {*USED_BY[name]}:
                raise ConfigError.not_for(_option(name), kind, USED_BY[name])


def _option(name: str) -> str:
    return _NEGATED.get(name) or f"--{name.replace('_', '-')}"


AS_FOUND = Reading()
"""Nothing said."""
