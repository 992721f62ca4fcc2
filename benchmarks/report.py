"""The one form of all results: {machine, versions, rows, goals}."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value; `subject` is "ours" or a peer's name."""

    workload: str
    subject: str
    value: float
    unit: str


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

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {
            "machine": {
                "system": platform.platform(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
            "versions": {name: version(name) for name in self.packages},
            "rows": [asdict(row) for row in self.rows],
            "goals": [asdict(goal) for goal in self.goals],
        }

    def text(self) -> str:
        """Return the report for people."""
        lines = [f"{r.workload:24} {r.subject:24} {r.value:>12,.4g} {r.unit}" for r in self.rows]
        for goal in self.goals:
            verdict = "holds" if goal.holds else "FAILS"
            lines.append(f"goal {goal.name}: {goal.value:.4g}, {goal.goal}: {verdict}")
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")
