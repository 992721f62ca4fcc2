"""The one form of all results: {machine, versions, rows, goals}."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value; `subject` is "ours" or a peer's name.

    The value of several `runs` is their median, and `low` and `high` are the least and the greatest
    of them. Without a value, `status` says why.
    """

    workload: str
    subject: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    runs: int = 1
    status: str = "ok"


@dataclass(frozen=True, slots=True)
class Goal:
    """A value against its goal."""

    name: str
    value: float
    goal: str
    holds: bool


@dataclass(slots=True)
class Report:
    """The results of one run on one machine."""

    packages: list[str]
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What one must know to read the rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {
            "machine": {
                "system": platform.platform(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
            "versions": {name: _version(name) for name in self.packages},
            "notes": self.notes,
            "rows": [asdict(row) for row in self.rows],
            "goals": [asdict(goal) for goal in self.goals],
        }

    def text(self) -> str:
        """Return the report for people."""
        rows = [f"{r.workload:24} {r.subject:24} {_value(r)}" for r in self.rows]
        return "\n".join([*rows, *self.verdicts()])

    def verdicts(self) -> list[str]:
        """Return a line for each goal."""
        return [
            f"goal {goal.name}: {goal.value:.4g}, {goal.goal}: {'holds' if goal.holds else 'FAILS'}"
            for goal in self.goals
        ]

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")


def _value(row: Row) -> str:
    return row.status if row.value is None else f"{row.value:>12,.4g} {row.unit}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
