"""What a trainer may use beside the loader: the config, the errors, lineage, and the gate.

A checkpoint is derived data: it carries the strictest tag of what fed it, and writing it is a
movement that passes the gate like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geodata.catalog import make_access
from geodata.config import GeodataConfig, load_config, validate
from geodata.errors import INTERRUPTED, STOPPED, ConfigError, GeodataError, MissingExtra
from geodata.lineage import read_lineage, write_lineage
from geodata.policy import Movement
from geodata.tags import Tag

PURPOSE = "ModelTraining"


def admit_checkpoint(config: GeodataConfig, lineage: Mapping[str, Any], run_dir: Path) -> None:
    """Pass the gate for writing checkpoints of what `lineage` names into `run_dir`.

    `run_dir` lies where the training region is. Raises PolicyDenied or AuditError.
    """
    region = str(lineage["region"])
    access = make_access(config.resolve(config.audit.dir), region, PURPOSE)
    tag = Tag.from_json(lineage["tag"])
    about = f"checkpoints of {run_dir.name}"
    access.gate.check(Movement("write", tag, region, region, PURPOSE, about))


__all__ = [
    "INTERRUPTED",
    "STOPPED",
    "ConfigError",
    "GeodataConfig",
    "GeodataError",
    "MissingExtra",
    "admit_checkpoint",
    "load_config",
    "read_lineage",
    "validate",
    "write_lineage",
]
