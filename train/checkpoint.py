"""Checkpoints that are whole or not there, and the state of the random generators.

    RUN_DIR/checkpoints/step-00000100/
        model.pt  optimizer.pt  scheduler.pt  rng.pt (keyed by rank)  loader.json
        model.json  lineage.json  config.yaml  loss_scale.json (in fp16)
        state.json      step, epoch, world size, and the SHA-256 of every other file

A save writes a hidden folder, syncs it, renames it, and only then prunes older ones. What a killed
save left is removed at the next start. A checkpoint whose digests do not match is set aside as
`bad-step-…` and the one before it is taken. Nothing but plain types and tensors is stored.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from train import durable
from train.remote import GeodataError

FORMAT_VERSION = 1


class CheckpointError(GeodataError):
    """A checkpoint cannot be written; the earlier ones are intact."""

    exit_code = 4


class NewerCheckpoint(GeodataError):
    """A checkpoint was written by a newer release."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    epoch: int
    world_size: int

    def has(self, name: str) -> bool:
        """Return whether it holds a file of that name."""
        return (self.path / name).exists()

    def load(self, name: str) -> Any:
        """Return the content of one file: .pt tensors on the CPU, .json, or text."""
        file = self.path / name
        if name.endswith(".pt"):
            return torch.load(file, map_location="cpu", weights_only=True)
        text = file.read_text(encoding="utf-8")
        return json.loads(text) if name.endswith(".json") else text


class Checkpoints:
    """The checkpoints of one run; used by its first rank alone, except for loading."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self._keep = keep

    def clean(self) -> None:
        """Make the folder, and remove what killed saves left in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover)

    def latest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint that verifies; set aside and tell of newer ones.

        A prune that a kill cut short is made up for.
        """
        for path in reversed(self._steps()):
            try:
                found = _verified(path)
            except (OSError, ValueError, KeyError) as error:
                aside = path.with_name(f"bad-{path.name}")
                _remove(aside)
                durable.rename(path, aside)
                warn(f"{path.name} is damaged ({error}); set aside as {aside.name}")
            else:
                self._prune()
                return found
        return None

    def at(self, name: str) -> Checkpoint:
        """Return the checkpoint of that folder name, which the first rank has verified."""
        return _described(self.folder / name)[0]

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, existing or not."""
        return self.folder / f"step-{step:08}"

    def save(self, parts: Mapping[str, Any], *, step: int, epoch: int, world_size: int) -> None:
        """Commit a checkpoint of `parts` (file name → content), then prune older ones."""
        target = self.path(step)
        temporary = self.folder / f".{target.name}.tmp"
        try:
            _remove(temporary)
            temporary.mkdir()
            files = {name: _write(temporary / name, part) for name, part in parts.items()}
            state = {"step": step, "epoch": epoch, "world_size": world_size, "files": files}
            _write(temporary / "state.json", {"format_version": FORMAT_VERSION, **state})
            durable.sync(temporary)
            durable.rename(temporary, target)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                shutil.rmtree(temporary)
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written: {_cause(error)}",
                hint="Older checkpoints are intact; make room and run the same command again",
            ) from error
        self._prune()

    def _prune(self) -> None:
        for path in self._steps()[: -self._keep]:
            _remove(path)

    def _steps(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if path.is_dir())


def _remove(path: Path) -> None:
    """Remove a folder so that a kill leaves it whole or hidden."""
    if path.exists():
        hidden = path.with_name(f".{path.name.lstrip('.')}.old")
        durable.point(f"prune {path.name}")
        path.replace(hidden)
        durable.point(f"pruned {path.name}")
        shutil.rmtree(hidden)


class _Hashed(io.RawIOBase):
    """A binary file that digests what is written to it."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _write(path: Path, part: Any) -> dict[str, Any]:
    """Write and sync one file by its suffix; return its digest and size."""
    durable.point(f"write {path.name}")
    with path.open("wb") as file:
        hashed = _Hashed(file)
        if path.suffix == ".pt":
            torch.save(part, cast(IO[bytes], hashed))
        else:
            text = part if isinstance(part, str) else json.dumps(part, indent=2) + "\n"
            hashed.write(text.encode())
        durable.point(f"wrote {path.name}")
    durable.sync(path)
    return {"sha256": hashed.digest.hexdigest(), "bytes": path.stat().st_size}


def _cause(error: BaseException) -> str:
    """Return the text of the OSError at the root of `error`, or its own."""
    while not isinstance(error, OSError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return getattr(error, "strerror", None) or str(error)


def _described(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    version = state["format_version"]
    if version > FORMAT_VERSION:
        raise NewerCheckpoint(
            f"{path.name} has format {version}; this release reads up to {FORMAT_VERSION}",
            hint="Upgrade geodata-train",
        )
    found = Checkpoint(path, state["step"], state["epoch"], state["world_size"])
    return found, state["files"]


def _verified(path: Path) -> Checkpoint:
    found, files = _described(path)
    for name, expected in files.items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                raise ValueError(f"{name} has another digest")
    return found


def seed_rng(seed: int, step: int, rank: int) -> None:
    """Seed this rank's generators for a start at `step`."""
    text = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    number = int.from_bytes(text[:8], "little") >> 1
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of torch's, Python's and NumPy's generators in plain types."""
    twister = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": twister | {"state": twister["state"] | {"key": twister["state"]["key"].tolist()}},
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators to a saved state."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
