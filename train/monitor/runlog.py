"""The metrics of a run: one JSON object a line, each step exactly once.

A line of kind "train" is a step; one of kind "eval" is an evaluation of the model after `step`
steps. An evaluation runs after the checkpoint of its step, so that a resume repeats it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train import durable


class RunLog:
    """`metrics.jsonl` in a run's folder."""

    def __init__(self, path: Path):
        self._path = path

    def rewind(self, step: int) -> dict[str, Any]:
        """Drop what a resume after `step` steps will write again, and a torn last line.

        Returns the last step that is left, empty if there is none.
        """
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        kept = [line for line in lines if _belongs(line, step)]
        durable.write(self._path, b"".join(line + b"\n" for line in kept))
        self._file = self._path.open("a", encoding="utf-8")
        steps = (
            record for line in reversed(kept) if (record := json.loads(line))["kind"] == "train"
        )
        return next(steps, {})

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a line; NaN and infinity become null."""
        line = {"kind": kind, **finite(record)}
        durable.point(f"{kind} line")
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _belongs(line: bytes, step: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    reached: int = record["step"]
    return reached < step or (reached == step and record["kind"] == "train")


def finite(value: Any) -> Any:
    """Return plain JSON with null for NaN and infinity, at any depth of mappings."""
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
