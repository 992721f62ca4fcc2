"""`lineage.json`: which dataset version and which shards fed a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geodata.durable import write_bytes
from geodata.errors import FormatVersionError, ManifestError

FORMAT_VERSION = 1


def write_lineage(path: Path, record: Mapping[str, Any]) -> None:
    """Write a lineage file whole; `record` is what a loader's `lineage()` returns."""
    text = json.dumps({"format_version": FORMAT_VERSION, **record}, indent=1, sort_keys=True)
    write_bytes(path, text.encode() + b"\n")


def read_lineage(path: Path) -> dict[str, Any]:
    """Return the record of a lineage file."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        version = record.pop("format_version")
    except (ValueError, KeyError, AttributeError) as error:
        raise ManifestError("not a lineage file", file=str(path)) from error
    if version != FORMAT_VERSION:
        raise FormatVersionError("a newer lineage file", file=str(path))
    return record
