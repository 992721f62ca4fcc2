"""Where a dataset lies, and what a config says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from geodata.audit import audit_log
from geodata.config import GeodataConfig
from geodata.errors import ConfigError
from geodata.manifest import METADATA_DIR, Version
from geodata.policy import Gate, HomePolicy
from geodata.stores import Access


def make_access(audit: Path, here: str, purpose: str) -> Access:
    """Return the access of a process in region `here` whose decisions are logged in `audit`."""
    return Access(Gate(HomePolicy(), audit_log(audit)), here, purpose)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dataset lies, which version is meant, and the config that speaks of it, if any."""

    root: str
    version: Version | None
    config: GeodataConfig | None

    @property
    def audit(self) -> Path:
        """Return the folder of the audit log: the config's, else one beside the dataset."""
        if self.config is not None:
            return self.config.resolve(self.config.audit.dir)
        return Path(self.root) / "audit"

    @property
    def roots(self) -> dict[str, str]:
        """Return where the config says that regions hold this dataset's bytes."""
        return {} if self.config is None else region_roots(self.config, self.root)

    def here(self) -> str:
        """Return the region the process stands in; it is configured, never guessed."""
        if self.config is None or self.config.here is None:
            raise ConfigError(
                "which region this machine stands in is not known",
                hint="Set here: in geodata.yaml, or GEODATA_REGION",
            )
        return self.config.here


def region_roots(config: GeodataConfig, root: str) -> dict[str, str]:
    """Return the roots of regions that have their own, for the dataset whose index lies at `root`.

    A region's root holds a folder for each dataset. A dataset elsewhere than at `dataset.root` is
    none that the config speaks of: it lies whole at its root.
    """
    dataset = config.dataset
    if dataset is None or config.resolve(dataset.root).resolve() != Path(root).resolve():
        return {}
    roots = {
        name: config.resolve(region.root) / dataset.name
        for name, region in config.regions.items()
        if region.root is not None
    }
    _check_apart({"dataset.root": Path(root), **{f"regions.{n}.root": r for n, r in roots.items()}})
    return {name: str(path) for name, path in roots.items()}


def _check_apart(roots: Mapping[str, Path]) -> None:
    """Raise ConfigError if a dataset's folder at one root is that at another, or lies inside it."""
    for (one, first), (other, second) in combinations(roots.items(), 2):
        pair = first.resolve(), second.resolve()
        if pair[0].is_relative_to(pair[1]) or pair[1].is_relative_to(pair[0]):
            raise ConfigError(
                f"{one} and {other} keep this dataset in one folder",
                hint="Give each region a root of its own",
            )


def locate(reference: str, config: GeodataConfig | None) -> Place:
    """Return the place that NAME[@VERSION] (with a config) or PATH[@VERSION] means."""
    name, _, version = reference.rpartition("@")
    if not name or not re.fullmatch(r"latest|v?\d+(\.r\d+)?", version):
        name, version = reference, ""
    pinned = Version.parse(version) if version and version != "latest" else None
    if config is not None and config.dataset is not None and config.dataset.name == name:
        return Place(str(config.resolve(config.dataset.root)), pinned, config)
    if (Path(name) / METADATA_DIR).is_dir():
        return Place(str(Path(name).absolute()), pinned, config)
    known = f" (the config names '{config.dataset.name}')" if config and config.dataset else ""
    raise ConfigError(f"no dataset '{name}'{known}", hint="Give its folder, or its name")
