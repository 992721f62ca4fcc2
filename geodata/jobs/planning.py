"""Plans a conversion: the schema and the tasks, and for each task what decides its result.

A task's result outlives its plan: after a file was mended, what does not touch it is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import ConfigError, SchemaError
from geodata.executors import Executor
from geodata.jobs.base import NAME_CHARS, JobFolder, Progress, digest_of
from geodata.jobs.listed import Listed
from geodata.jobs.scans import piece_name, scan_pieces
from geodata.jobs.target import Target
from geodata.partition.rejects import OnError
from geodata.partition.staging import StagingTask
from geodata.prepare import AS_IS, Preparing, prepared_schema, steps_of
from geodata.sources.base import Countable, Piece, Scan, Source, first_rows

PIECE_BYTES = 8 << 20
SAMPLED_ONE_IN = 16
"""Pieces: the first, and so on."""
ALGORITHM = "convert-1"
MOST_ENCODINGS = 1000
"""Files of which a plan tells the encoding that was recognised."""


@dataclass(frozen=True, slots=True)
class Options:
    """What decides the result of a conversion beside its source."""

    format: str
    on_error: OnError
    shard_size: int
    preparing: Preparing = AS_IS
    provenance: str | None = None
    dedupe: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the options as plain JSON; those not used are left out."""
        given = {**self.of_a_task(), "on_error": self.on_error}
        return {**given, "dedupe": True} if self.dedupe else given

    def of_a_task(self) -> dict[str, Any]:
        """Return those that decide what a record without fault becomes."""
        given: dict[str, Any] = {
            "format": self.format,
            "shard_size": self.shard_size,
            "algorithm": ALGORITHM,
        }
        if self.preparing != AS_IS:
            given["preparing"] = self.preparing.to_json()
            given["steps"] = [step.identity() for step in steps_of(self.preparing)]
        if self.provenance is not None:
            given["provenance"] = self.provenance
        return given


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes the plan of one conversion.

    `identity` names the source and how it is read, as plain JSON; `listed` are its files.
    """

    source: Source
    options: Options
    identity: dict[str, Any]
    listed: Listed
    target: Target | None = None

    @property
    def samples(self) -> bool:
        """Return whether a sample may tell the schema: what does not fit is found when written."""
        alone = self.target is None and not self.options.dedupe
        return alone and isinstance(self.source, Countable)

    def plan(
        self, folder: JobFolder, executor: Executor, progress: Progress, *, sampled: bool
    ) -> dict[str, Any]:
        """Visit the source, but for pieces that were, and return the plan as plain JSON.

        If it is only `sampled`, most of its pieces are counted, and the plan holds if all records
        fit the schema of the others: that of all could not be another then.
        """
        pieces = self.source.pieces(PIECE_BYTES)
        basis = digest_of(self.identity)
        names = [piece_name(piece, self._files_of(piece), basis) for piece in pieces]
        counted = {n for n in range(len(pieces)) if sampled and n % SAMPLED_ONE_IN}
        scans = scan_pieces(self.source, pieces, names, folder, executor, progress, counted)
        seen = _labels(scans)
        read = self._read_schema(scans)
        stored = prepared_schema(read, steps_of(self.options.preparing))
        labels = {column: sorted(found, key=str.encode) for column, found in seen.items()}
        if self.target is not None:
            stored, labels = self.target.widened(stored), self.target.grown(seen)
        plan = {
            "pieces": [asdict(piece) for piece in pieces],
            "first_rows": first_rows(scans),
            "rows": sum(scan.rows for scan in scans),
            "read": schemas.to_json(read),
            "schema": schemas.to_json(stored),
            "labels": labels,
            "encodings": _encodings(scans),
            "ignored": _ignored(scans),
            "sampled": sampled,
        }
        return {**plan, "basis": self._basis(plan, seen)}

    def tasks(self, plan: dict[str, Any]) -> list[StagingTask]:
        """Return the tasks of a plan, each named by the digest of what decides its result."""
        pieces = [Piece(**piece) for piece in plan["pieces"]]
        groups = _groups(pieces, self.options.shard_size)
        made = []
        for number, group in enumerate(groups):
            parts = tuple((pieces[i], plan["first_rows"][i]) for i in group)
            name = self._name(parts, plan["basis"])
            made.append(StagingTask(number, name, parts))
        return made

    def _name(self, parts: Sequence[tuple[Piece, int]], basis: str) -> str:
        known = [
            [self._files_of(piece), piece.start, piece.stop, first_row]
            for piece, first_row in parts
        ]
        return digest_of([basis, known])[:NAME_CHARS]

    def _basis(self, plan: dict[str, Any], seen: dict[str, set[str]]) -> str:
        """Return the digest of what decides the results of all tasks."""
        labels = {
            column: [
                (name, place) for place, name in enumerate(plan["labels"][column]) if name in names
            ]
            for column, names in seen.items()
        }
        given = {"labels": labels, "read": plan["read"], "schema": plan["schema"]}
        return digest_of({**self.identity, **self.options.of_a_task(), **given})

    def _files_of(self, piece: Piece) -> list[Any]:
        """Return the files that a piece is read from: name, size and time of each."""
        if self.source.reads_own_files:
            return [self.listed.part(piece.numbers)]
        return [piece.file, piece.files, self.listed.digest]

    def _read_schema(self, scans: Sequence[Scan]) -> pa.Schema:
        """Return the schema of what the source yields."""
        columns = self.source.merge(scans, first_wins=self.options.on_error != "fail")
        read = schemas.dataset_schema(self._with_origin(columns))
        return read if self.target is None else self.target.aimed(read)

    def _with_origin(self, columns: pa.Schema) -> pa.Schema:
        name = self.options.provenance
        if name is None:
            return columns
        if not name or schemas.is_reserved(name):
            raise ConfigError(
                f"'{name}' is no name for a column",
                hint="Names in double underscores are reserved: --provenance NAME",
            )
        if name in columns.names:
            raise SchemaError(
                "the source has a column of this name",
                column=name,
                hint="Choose another for the origin: --provenance NAME",
            )
        return columns.append(schemas.origin_field(name))


def _labels(scans: Sequence[Scan]) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for scan in scans:
        for column, seen in scan.labels.items():
            names.setdefault(column, set()).update(seen)
    return names


def _encodings(scans: Sequence[Scan]) -> dict[str, Any]:
    """Return how many files are in each encoding recognised, and which, the least sure first."""
    found = {name: seen for scan in scans for name, seen in scan.encodings.items()}
    if not found:
        return {}
    least_sure = sorted(found, key=lambda name: (found[name][1], name))[:MOST_ENCODINGS]
    return {
        "counts": dict(Counter(encoding for encoding, _ in found.values()).most_common()),
        "files": {name: list(found[name]) for name in least_sure},
    }


def _ignored(scans: Sequence[Scan]) -> Counter[str]:
    """Return how much within the files is of no concern, by what it is."""
    found: Counter[str] = Counter()
    for scan in scans:
        found.update(scan.ignored)
    return found


def _groups(pieces: Sequence[Piece], target: int) -> list[list[int]]:
    """Return runs of consecutive pieces of about `target` bytes, each one task."""
    groups: list[list[int]] = []
    room = 0
    for number, piece in enumerate(pieces):
        if not groups or piece.nbytes > room:
            groups.append([])
            room = target
        groups[-1].append(number)
        room -= piece.nbytes
    return groups
