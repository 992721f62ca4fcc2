"""What was measured, by row and subject: medians, ranges, ratios to the peers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.peers import OURS
from benchmarks.report import Goal, Row

TIE = 1.2
"""Values whose ratio is below this cannot be told apart on a machine that others use too."""


@dataclass(slots=True)
class Results:
    """Values and faults of each (row, subject); a row is a workload and what was measured."""

    units: dict[str, str] = field(default_factory=dict)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    faults: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, row: str, subject: str, unit: str, value: float) -> None:
        """Note a value."""
        self.units.setdefault(row, unit)
        self.values.setdefault((row, subject), []).append(value)

    def fault(self, row: str, subject: str, unit: str, status: str) -> None:
        """Note why there is no value; it stands even if another run gave one."""
        self.units.setdefault(row, unit)
        self.faults.setdefault((row, subject), status)

    def value(self, row: str, subject: str) -> float | None:
        """Return a median; None where there is a fault, or nothing was measured."""
        found = self.values.get((row, subject))
        return median(found) if found and (row, subject) not in self.faults else None

    def rows(self, subjects: Iterable[str]) -> list[Row]:
        """Return a row for each (row, subject) that has values or a fault."""
        return [
            self._row(row, subject)
            for row in self.units
            for subject in subjects
            if (row, subject) in self.values or (row, subject) in self.faults
        ]

    def _row(self, row: str, subject: str) -> Row:
        unit, runs = self.units[row], self.values.get((row, subject), [])
        value = self.value(row, subject)
        if value is None:
            return Row(row, subject, None, unit, runs=len(runs), status=self.faults[row, subject])
        return Row(row, subject, value, unit, min(runs), max(runs), len(runs))

    def best(self, row: str, subjects: Iterable[str]) -> tuple[str, float] | None:
        """Return the subject with the greatest value of a row."""
        found = [(subject, self.value(row, subject)) for subject in subjects]
        known = [(subject, value) for subject, value in found if value]
        return max(known, key=lambda pair: pair[1], default=None)

    def rated(self) -> list[str]:
        """Return the rows whose values are compared: rates."""
        return [row for row, unit in self.units.items() if unit == "samples/s"]

    def beside(self, row: str, subjects: Iterable[str]) -> list[Row]:
        """Return our values of a row and what the peers have that compares to it, least first."""
        ours, peers = split(subjects)
        pairs = [(row, name) for name in ours] + [(_their_row(row), name) for name in peers]
        known = [self._row(*pair) for pair in pairs if self.value(*pair)]
        return sorted(known, key=lambda found: found.value or 0)

    def ratios(self, subjects: Iterable[str]) -> list[Row]:
        """Return the best of our formats over each peer, for each row that is compared."""
        ours, peers = split(subjects)
        rows = []
        for row in self.rated():
            best = self.best(row, ours)
            for peer in peers:
                theirs = self.value(_their_row(row), peer)
                if best and theirs:
                    name = f"{best[0]} / {peer}"
                    rows.append(Row(f"{row} ratio", name, best[1] / theirs, "ratio"))
        return rows

    def goals(self, subjects: Iterable[str]) -> list[Goal]:
        """Return how the best of ours does beside the best peer."""
        ours, peers = split(subjects)
        goals = []
        for row in self.rated():
            best, theirs = self.best(row, ours), self.best(_their_row(row), peers)
            if best and theirs:
                name, ratio = f"{row}, {best[0]} / {theirs[0]}", best[1] / theirs[1]
                goals.append(Goal(name, ratio, f"at least {1 / TIE:.2f}, a tie", ratio >= 1 / TIE))
        return goals


def _their_row(row: str) -> str:
    """Return the row in which peers have what compares to ours: they do not shard."""
    return row.replace("convert + shard", "convert")


def split(subjects: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return our formats, and the peers."""
    known = list(subjects)
    ours = [name for name in known if name.startswith(OURS)]
    return ours, [name for name in known if not name.startswith(OURS)]
