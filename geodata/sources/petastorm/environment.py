"""The virtual environment that Petastorm lives in.

It lies in the user's folder for caches (~/.cache, unless the caller knows another) under the digest
of its requirements, so that a release with others makes a new one. One made elsewhere is linked
from there. It counts once its record, written last, says that it was tried.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from geodata.durable import write_bytes
from geodata.errors import ConfigError, StoreError

FORMAT_VERSION = 1
RECORD = "geodata-petastorm.json"
SETUP = "geodata petastorm setup"
VERSIONS = ((3, 11), (3, 12))
"""Of Python, for which all the requirements have wheels."""

_HERE = files("geodata.sources.petastorm")
_VENV_SECONDS = 300
_PIP_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is ready: its folder, and the versions in it."""

    folder: Path
    python: str
    packages: dict[str, str]

    @property
    def interpreter(self) -> Path:
        """Return the environment's interpreter."""
        return self.folder / "bin" / "python"


def requirements() -> list[str]:
    """Return the pinned requirements, one a line."""
    lines = (_HERE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def digest() -> str:
    """Return the digest of the requirements."""
    return hashlib.sha256("\n".join(requirements()).encode()).hexdigest()


def default_folder(cache: Path | None = None) -> Path:
    """Return where the environment lies, or the link to it, in the user's folder for caches."""
    return (cache or Path.home() / ".cache") / "geodata" / f"petastorm-{digest()[:12]}"


def ready(folder: Path) -> Environment | None:
    """Return the environment in a folder, if it is ready."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", file=str(folder / RECORD)) from error
    if record.get("format_version") != FORMAT_VERSION or record.get("requirements") != digest():
        return None
    found = Environment(folder, record["python"], record["packages"])
    return found if found.interpreter.exists() else None


def needed(cache: Path | None = None) -> Environment:
    """Return the environment in the user's folder for caches; ConfigError if there is none yet."""
    folder = default_folder(cache)
    found = ready(folder)
    if found is None:
        raise ConfigError(
            "what reads and writes Petastorm datasets is not set up",
            file=str(folder),
            hint=f"Run: {SETUP}",
        )
    return found


def make(folder: Path, python: str | None) -> Environment:
    """Make the environment in a folder that does not exist, is empty, or holds an older one.

    `python` is the interpreter to make it with; None looks for one that will do. It is made beside
    the folder, tried, and renamed. Raises ConfigError, StoreError.
    """
    _check_free(folder)
    maker = _suitable(python)
    beside = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([maker, "-m", "venv", str(beside)], _VENV_SECONDS, "the environment cannot be made")
        made = str(beside / "bin" / "python")
        given = beside / "requirements.txt"
        given.write_text("\n".join(requirements()) + "\n", encoding="utf-8")
        pip = [made, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        wheels = ["--no-deps", "--only-binary=:all:", "--no-compile", "-r", str(given)]
        _run([*pip, *wheels], _PIP_SECONDS, "pip cannot install the requirements")
        tried = _tried(made)
        record = {"format_version": FORMAT_VERSION, "requirements": digest(), **tried}
        write_bytes(beside / RECORD, json.dumps(record).encode())
        if ready(folder) is None:  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", file=str(folder)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Environment(folder, tried["python"], tried["packages"])


def link(folder: Path, place: Path) -> None:
    """Let the place where readers look point to an environment that lies elsewhere."""
    if place.resolve() == folder.resolve():
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            shutil.rmtree(place)
        place.symlink_to(folder.resolve(), target_is_directory=True)
    except OSError as error:
        raise StoreError(f"cannot be linked: {error.strerror}", file=str(place)) from error


def _check_free(folder: Path) -> None:
    """Raise ConfigError if the folder holds anything but an environment of ours."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).exists():
        raise ConfigError("the folder holds something else", file=str(folder), hint="Give another")
    if folder.exists() and not folder.is_dir():
        raise ConfigError("this is no folder", file=str(folder))


def _suitable(python: str | None) -> str:
    """Return an interpreter of a version that will do."""
    if python is None and sys.version_info[:2] in VERSIONS:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in reversed(VERSIONS)]
    known = [python] if python is not None else list(filter(None, map(shutil.which, names)))
    wanted = " or ".join(f"{major}.{minor}" for major, minor in VERSIONS)
    for candidate in known:
        if _version(candidate) in VERSIONS:
            return candidate
    found = f"{known[0]} is not" if known else "there is no"
    raise ConfigError(
        f"{found} Python {wanted}",
        hint=f"Petastorm's old pyarrow has wheels for these only. Run: {SETUP} --python PATH",
    )


def _version(python: str) -> tuple[int, ...] | None:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        said = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(map(int, said.stdout.split()))


def _run(command: Sequence[str], seconds: float, failed: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"{failed}: it took more than {seconds} seconds") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = next((line for line in lines[::-1] if line.startswith("ERROR")), "")
        said = said or (lines[-1] if lines else f"exit code {done.returncode}")
        raise StoreError(f"{failed}: {said}", hint=f"Try again with the network up: {SETUP}")


def _tried(python: str) -> dict[str, Any]:
    """Return the versions that a worker of this interpreter says it has."""
    from geodata.sources.petastorm.client import Worker

    with Worker(Path(python)) as worker:
        return worker.hello()
