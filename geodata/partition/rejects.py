"""What becomes of records that are rejected: the run ends, or they are counted and set aside.

Reasons are counted without the numbers in them, so that thousands of positions are one reason; the
quarantine, which is written record by record, keeps each as it was.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from geodata.durable import publish, storing, temporary_beside
from geodata.errors import TooManyBadRecords
from geodata.sources.base import Reject

OnError = Literal["fail", "skip", "quarantine"]

MOST_REASONS = 1000
"""Most reasons that a task tells apart."""

MOST_RAW = 64 << 20
"""Bytes of the longest record that is set aside with its bytes; a longer one lies in its file."""

SHOWN_REASONS = 20
OTHER = "other reasons"

_NUMBER = re.compile(r"\b\d+\b")


class Reasons:
    """How many records were rejected for which reason; bounded, whatever the reasons are."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._exact: dict[str, str | None] = {}

    @property
    def total(self) -> int:
        """Return how many records were rejected."""
        return self._counts.total()

    def add(self, reason: str, count: int = 1) -> None:
        """Count a reason."""
        kind = _NUMBER.sub("N", reason)
        if kind not in self._counts and len(self._counts) >= MOST_REASONS:
            kind = reason = OTHER
        self._counts[kind] += count
        if self._exact.setdefault(kind, reason) != reason:
            self._exact[kind] = None

    def update(self, counts: Mapping[str, int]) -> None:
        """Count what `to_json` returned."""
        for reason, count in counts.items():
            self.add(reason, count)

    def to_json(self) -> dict[str, int]:
        """Return the counts; a reason keeps its numbers where all of its kind have the same."""
        return {self._exact[kind] or kind: count for kind, count in self._ordered()}

    def most_common(self) -> dict[str, int]:
        """Return the counts of the 20 most common reasons, and of all others as one."""
        found = self.to_json()
        rest = found.pop(OTHER, 0)
        shown = dict(list(found.items())[:SHOWN_REASONS])
        rest += sum(found.values()) - sum(shown.values())
        return {**shown, OTHER: rest} if rest else shown

    def _ordered(self) -> list[tuple[str, int]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))


def check_bound(reasons: Reasons, bound: int | None) -> None:
    """Raise TooManyBadRecords if more than `bound` records were rejected."""
    if bound is not None and reasons.total > bound:
        reason, count = next(iter(reasons.most_common().items()))
        raise TooManyBadRecords(
            f"more than {bound} records were rejected; most often: {reason} ({count})",
            hint="Raise --max-errors or mend the source",
        )


def reasons_of(counts: Iterable[Mapping[str, int]]) -> Reasons:
    """Return the reasons of several tasks as one."""
    whole = Reasons()
    for part in counts:
        whole.update(part)
    return whole


class Rejects:
    """Takes the rejected records of one task; a context in which its quarantine is written.

    With "fail" the first one ends the run, else the first beyond `bound`. The quarantine at `path`
    is there only if a record was set aside and the body ended well.
    """

    def __init__(self, on_error: OnError, bound: int | None, path: Path):
        self.reasons = Reasons()
        self._on_error, self._bound, self._path = on_error, bound, path
        self._temporary: Path | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None or self._temporary is None:
            return
        with storing(self._path):
            try:
                self._file.close()
                if kind is None:
                    publish(self._temporary, self._path)
            finally:
                self._temporary.unlink(missing_ok=True)

    def __call__(self, bad: Reject) -> None:
        """Take a record."""
        if self._on_error == "fail":
            raise TooManyBadRecords(
                bad.reason,
                file=bad.file,
                row=bad.row,
                hint="Mend it, or use --on-error skip or quarantine",
            )
        self.reasons.add(bad.reason)
        if self._on_error == "quarantine":
            self._set_aside(bad)
        check_bound(self.reasons, self._bound)

    def _set_aside(self, bad: Reject) -> None:
        """Write a record with its reason and its original bytes (base64), as one line."""
        raw = bad.raw if len(bad.raw) <= MOST_RAW else b""
        line = {
            "format_version": 1,
            "file": bad.file,
            "row": bad.row,
            "reason": bad.reason,
            "raw": base64.b64encode(raw).decode(),
        }
        with storing(self._path):
            if self._file is None:
                self._temporary = temporary_beside(self._path)
                self._file = self._temporary.open("wb")
            self._file.write(json.dumps(line).encode("utf-8", "backslashreplace") + b"\n")
