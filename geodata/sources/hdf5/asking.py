"""A foreign HDF5 file, seen from the process that asks another to read it.

Where that one dies, it is asked again for what was not told yet, by fewer records, until the one
that it dies of stands alone and is passed over as lost. What dies too often is lost from there on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata.sources.columns import Stated
from geodata.sources.corpus import Broken
from geodata.sources.guard import guard

_READING = "geodata.sources.hdf5.reading"
_MOST_DEATHS = 16
"""Of processes for one piece."""
_FEWER = 16

Lost = tuple[int, str]
"""How many records, and why."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a file says of the records of a piece, as a scan takes it."""

    rows: int
    layout: str
    columns: list[Stated]
    media: dict[str, set[str]]


class Asking:
    """The records from `start` to `stop` of the file at `path`: its rows, or links of a group.

    The path is absolute: what reads there may stand in another folder.
    """

    def __init__(self, path: Path, start: int, stop: int):
        self._path, self._start, self._stop = path, start, stop
        self._until = stop
        """Where what may be asked for ends: it moves back where too many processes died."""
        self._skip: dict[int, str] = {}
        """Records that a process died of, and how."""
        self._at: tuple[int, int] | None = None
        """What the answer was about when it ended: a record, and how many with it."""
        self._step = self._deaths = 0
        self._bare = False
        self._last = ""
        """How a process died that was fresh."""

    def cuts(self, target: int) -> tuple[list[tuple[int, int]], dict[str, int]]:
        """Return where the file may be cut, and what is ignored in it; Broken if it is nothing."""
        while True:
            try:
                (said,) = self._ask("cuts", target=target)
            except guard.Died as death:
                self._learn(death)
            else:
                return [(start, stop) for start, stop in said["cuts"]], said["ignored"]

    def scan(self, *, several: bool) -> Told:
        """Return what the records hold; Broken where the file is nothing."""
        while True:
            try:
                types, said = self._ask("scan", several=several, bare=self._bare)
            except guard.Died as death:
                self._learn(death)
                self._bare = bool(self._last)
            else:
                return _told(said, types.schema.types, self._stop - self._until)

    def read(self, key: str) -> Iterator[pa.RecordBatch | Lost]:
        """Yield the records; those of a group with keys that start with `key`.

        Raises Broken, before any other, where the file is nothing.
        """
        while self._start < self._until or not self._last:
            try:
                yield from self._batches(key)
                break
            except guard.Died as death:
                self._learn(death)
        if self._until < self._stop:
            yield self._stop - self._until, self._last

    def _batches(self, key: str) -> Iterator[pa.RecordBatch | Lost]:
        following = self._start
        for said in self._ask("read", key=key, step=self._step):
            if isinstance(said, pa.RecordBatch):
                self._start = following
                yield said
            elif "lost" in said:
                self._start = said["next"]
                yield said["lost"], said["why"] or self._skip[self._start - 1]
            else:
                following = said["next"]

    def _learn(self, death: guard.Died) -> None:
        """Let the next question avoid what a process died of; raise Broken if that is all.

        The first death may be due to what was read before: a fresh process is asked the same.
        """
        self._deaths += 1
        if self._deaths == 1 and not death.endless:
            return
        given_up = self._until < self._stop
        nothing_left = given_up and self._until == self._start
        if (self._at is None and not self._last) or nothing_left:
            raise Broken(f"the file is damaged: {death}")
        self._last = str(death)
        if self._at is None or given_up:
            self._until = self._start
        elif death.endless or self._deaths > _MOST_DEATHS:
            self._until = self._at[0]
        elif self._at[1] > 1:
            self._step = max(1, self._at[1] // _FEWER)
        else:
            self._skip[self._at[0]] = self._last

    def _ask(self, function: str, **more: Any) -> Iterator[Any]:
        """Yield what is told; raise Broken where the file is nothing."""
        place = {"path": str(self._path), "start": self._start, "stop": self._until}
        broken: list[str] = []
        self._at = None
        for said in guard.ask(_READING, function, {**place, "skip": [*self._skip], **more}):
            if isinstance(said, dict) and "broken" in said:
                broken = said["broken"]
            elif isinstance(said, dict) and "at" in said:
                self._at = said["at"], said["rows"]
            else:
                yield said
        if broken:
            raise Broken(*broken)


def _told(said: dict[str, Any], types: list[pa.DataType], beyond: int) -> Told:
    """Return what was told, the types apart; `beyond` are records that were not looked at."""
    columns, kinds = [], iter(types)
    for name, places, span in zip(said["names"], said["places"], said["spans"], strict=True):
        found = tuple((next(kinds), row) for row in places)
        columns.append(Stated(pa.field(name, found[0][0]), found, span and tuple(span)))
    media = {name: set(kinds) for name, kinds in said["media"].items()}
    return Told(said["rows"] + beyond, said["layout"], columns, media)
