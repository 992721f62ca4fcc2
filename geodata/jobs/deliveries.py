"""What unfinished jobs have delivered into a dataset that no version names yet.

A job's folder tells by its results. One that lies in another root (that of `shard` is in the
staging dataset) is announced in each root that it delivers to: `.jobs/NAME/elsewhere.json`.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from geodata.errors import ManifestError, StoreError
from geodata.jobs.base import JOBS_DIR, JobFolder, digest_of

ELSEWHERE = "elsewhere"

_SHARD_FILE = re.compile(r"\bdata/region=[^\"\\]+")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A job's folder; it is alive if it runs, or may go on. `files` are those it has delivered.

    `began` is when it was taken by the process that runs it, None if none does: what it delivers is
    made since, and may not be among `files` yet. `elsewhere` is where it keeps what it has done, if
    that is another folder.
    """

    folder: JobFolder
    alive: bool
    began: float | None
    files: frozenset[str]
    nbytes: int
    elsewhere: JobFolder | None


def announce(folder: JobFolder, roots: Iterable[str]) -> None:
    """Say in the roots that a job delivers to where its folder lies."""
    for notice in _notices(folder, roots):
        notice.save(ELSEWHERE, {"folder": str(folder.path)})


def withdraw(folder: JobFolder, roots: Iterable[str]) -> None:
    """Remove what `announce` wrote: the job is done."""
    for notice in _notices(folder, roots):
        notice.remove()


def _notices(folder: JobFolder, roots: Iterable[str]) -> Iterator[JobFolder]:
    name = f"{folder.path.name}-{digest_of(str(folder.path))[:12]}"
    return (JobFolder(Path(root), name) for root in sorted(set(roots)))


def unfinished(root: Path, before: float) -> Iterator[Unfinished]:
    """Yield the jobs in a root; alive are those that are held, or were touched since `before`."""
    for path in sorted(_folders(root / JOBS_DIR)):
        folder = JobFolder(root, path.name)
        elsewhere = _elsewhere(folder)
        places = [folder] if elsewhere is None else [folder, elsewhere]
        held = [began for place in places if (began := _held_since(place)) is not None]
        yield Unfinished(
            folder=folder,
            alive=bool(held) or any(_touched(place) >= before for place in places),
            began=min(held, default=None),
            files=frozenset(name for place in places for name in _shard_files(place)),
            nbytes=sum(status.st_size for status in _inside(path)),
            elsewhere=elsewhere,
        )


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _elsewhere(folder: JobFolder) -> JobFolder | None:
    """Return the folder that a job is announced to have, if it is there.

    Raises ManifestError where that is damaged: what the job has delivered is not known.
    """
    told = folder.load(ELSEWHERE)
    if told is None and (folder.path / f"{ELSEWHERE}.json").exists():
        raise ManifestError(
            "where a job keeps what it has done is damaged",
            file=str(folder.path / f"{ELSEWHERE}.json"),
            hint="Run that job once more, or remove the folder if there is none",
        )
    path = Path(told["folder"]) if told is not None else None
    if path is None or not path.is_dir():
        return None
    return JobFolder(path.parent.parent, path.name)


def _inside(path: Path) -> Iterator[os.stat_result]:
    """Yield what is known of each file below a folder, which may go meanwhile."""
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(folder, name).stat()


def _touched(folder: JobFolder) -> float:
    touched = [status.st_mtime for status in _inside(folder.path)]
    with suppress(FileNotFoundError):
        touched = touched or [folder.path.stat().st_mtime]
    return max(touched, default=0.0)


def _held_since(folder: JobFolder) -> float | None:
    """Return when the process that holds a job took it; None if none holds it."""
    with _reading(folder):
        try:
            descriptor = os.open(folder.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
    return None


def _shard_files(folder: JobFolder) -> Iterator[str]:
    """Yield the files of shards that a job's results name."""
    with _reading(folder):
        for name in os.listdir(folder.path) if folder.path.is_dir() else ():  # noqa: PTH208
            if name.endswith(".json"):
                with suppress(FileNotFoundError):
                    yield from _SHARD_FILE.findall(
                        (folder.path / name).read_text("utf-8", "replace")
                    )


@contextmanager
def _reading(folder: JobFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot be looked into: {error.strerror}"
        raise StoreError(text, file=str(folder.path)) from error
