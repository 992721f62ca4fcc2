"""What the user says of how a corpus is to be read, beyond what can be seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DETECT = "detect"
"""As an encoding: recognise each file's, and say with which confidence."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a corpus is read; part of the plan, so that a rerun reads it the same way.

    `encoding` is of text in files, and of names in zip archives, that are not UTF-8; `detect`
    recognises it. `header` says whether delimited text names its columns in the first row;
    `columns` names them where it does not; `delimiter` is one character (None: recognised), and
    without `quotes` a quote is a character like any other, as TSV has it. `table` is a file of the
    corpus whose rows name media files in the column `file_column`. `parts` is into how many parts a
    function of the user's is asked to cut itself.
    """

    encoding: str = "utf-8"
    header: bool = True
    delimiter: str | None = None
    quotes: bool = True
    columns: tuple[str, ...] = ()
    table: str | None = None
    file_column: str | None = None
    parts: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the defaults, as plain JSON."""
        given, usual = asdict(self), asdict(AS_FOUND)
        return {name: value for name, value in given.items() if value != usual[name]}


AS_FOUND = Reading()
"""Nothing said."""
