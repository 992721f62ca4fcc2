"""Petastorm's environment: made once, looked at."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from geodata.jobs.base import SCHEMA_VERSION
from geodata.sources.petastorm import environment


@dataclass(slots=True)
class EnvironmentReport:
    """The environment that Petastorm datasets are read in: where it lies, and what is in it."""

    folder: str
    ready: bool
    python: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    made: bool = False
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def status(*, cache: Path | None = None) -> EnvironmentReport:
    """Say whether there is an environment in the user's folder for caches (None: ~/.cache)."""
    place = environment.default_folder(cache)
    found = environment.ready(place)
    return EnvironmentReport(str(place), ready=False) if found is None else _report(found)


def setup(
    folder: str | Path | None = None, python: str | None = None, *, cache: Path | None = None
) -> EnvironmentReport:
    """Make the environment, unless it is there already.

    It lies in the user's folder for caches (None: ~/.cache), where every reader looks; one in a
    `folder` of the user's is linked from there. Raises ConfigError, StoreError.
    """
    began = time.monotonic()
    usual = environment.default_folder(cache)
    place = usual if folder is None else Path(folder).absolute()
    found = environment.ready(place)
    made = found is None
    if found is None:
        found = environment.make(place, python)
    environment.link(place, usual)
    report = _report(found)
    report.made, report.seconds = made, round(time.monotonic() - began, 3)
    return report


def _report(found: environment.Environment) -> EnvironmentReport:
    return EnvironmentReport(str(found.folder), True, found.python, found.packages)
