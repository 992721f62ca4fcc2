"""What jobs share: a folder that lets a killed job go on, progress, and the registry of jobs.

A job has a plan, made once and stored, and numbered tasks whose results are stored as they finish.
The plan fixes every boundary, so the outcome does not depend on workers, kills or reruns. A result
is bound to what decides it, so that it outlives a plan that leaves its task as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from geodata.durable import point, storing, write_bytes
from geodata.errors import StoreError
from geodata.executors import Executor

JOBS_DIR = ".jobs"
SCHEMA_VERSION = 1
"""Of the `--json` output of every command."""

_MOST_ATTEMPTS = 1000
"""To take a folder that others remove at the same time."""

NAME_CHARS = 24
"""Of a digest, in names of files of a job."""

Task = TypeVar("Task")
Shared = TypeVar("Shared")


class Progress(Protocol):
    """Told how a job advances."""

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a phase of `total` units."""

    def advance(self, count: int) -> None:
        """Count finished units."""

    def finish(self) -> None:
        """End the phase."""


class Silent:
    """Progress that is not shown."""

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a phase."""

    def advance(self, count: int) -> None:
        """Count finished units."""

    def finish(self) -> None:
        """End the phase."""


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _always(_result: dict[str, Any]) -> bool:
    return True


class JobFolder:
    """Plan and results of one job, at ROOT/.jobs/NAME; held by one process at a time."""

    def __init__(self, root: Path, name: str):
        self.path = root / JOBS_DIR / name
        self.work = self.path / f"work-{secrets.token_hex(4)}"
        self._lock = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the job while the body runs; StoreError if another process has it.

        The time of the file `lock` is from then on that at which it was taken.
        """
        with storing(self.path):
            self._take()
        try:
            yield
        finally:
            os.close(self._lock)

    def _take(self) -> None:
        for attempt in count(1):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            except (FileNotFoundError, FileExistsError):  # the folder went meanwhile
                if attempt == _MOST_ATTEMPTS:
                    raise
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise StoreError(
                    "the same job is running in another process",
                    file=str(self.path),
                    hint="Wait for it, or stop it",
                ) from error
            if os.fstat(descriptor).st_nlink:
                os.utime(descriptor)
                self._lock = descriptor
                return
            os.close(descriptor)

    def load(self, name: str) -> dict[str, Any] | None:
        """Return a stored JSON object; None if there is none, or it is damaged: it is made anew."""
        try:
            found = json.loads((self.path / f"{name}.json").read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def save(self, name: str, value: Mapping[str, Any]) -> None:
        """Store a JSON object."""
        write_bytes(self.path / f"{name}.json", json.dumps(value).encode())

    def forget(self, name: str) -> None:
        """Remove a stored JSON object, if there is one."""
        point(f"forget {name}")
        (self.path / f"{name}.json").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove plan, results and all else, keeping the hold: the job starts afresh."""
        for path in sorted(self.path.glob("*.json")):
            self.forget(path.stem)
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def clear_work(self) -> None:
        """Remove unfinished shards of earlier runs, whose workers may still be ending."""
        for path in self.path.glob("work-*"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the job, which is done, and what a killed removal left."""
        point("remove job")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(self.path.with_name(f".{self.path.name}-{secrets.token_hex(4)}"))
        point("removed job")
        for gone in self.path.parent.glob(f".{self.path.name}-*"):
            shutil.rmtree(gone, ignore_errors=True)

    def run(
        self,
        stage: str,
        basis: str | Sequence[str],
        executor: Executor,
        function: Callable[[Shared, Task], dict[str, Any]],
        tasks: Sequence[Task],
        shared: Shared,
        done: Callable[[dict[str, Any]], None],
        usable: Callable[[dict[str, Any]], bool] = _always,
    ) -> list[dict[str, Any]]:
        """Run the tasks whose results are not stored yet; return all results, in order.

        `basis` is the digest of what decides the results, or one for each task. A stored result
        counts where its basis is the same and `usable` agrees.
        """
        names = _names(stage, basis, len(tasks))
        results = [self.load(name) for name in names]
        results = [found if found is not None and usable(found) else None for found in results]
        missing = [number for number, result in enumerate(results) if result is None]
        for result in results:
            if result is not None:
                done(result)
        wanted = [tasks[number] for number in missing]
        with contextlib.closing(executor.run(function, wanted, shared)) as finished:
            for index, result in finished:
                self.save(names[missing[index]], result)
                results[missing[index]] = result
                done(result)
        return [result for result in results if result is not None]


def _names(stage: str, basis: str | Sequence[str], count: int) -> list[str]:
    """Return the names that the results of a stage are stored under."""
    if isinstance(basis, str):
        basis = [digest_of([basis, number]) for number in range(count)]
    return [f"{stage}-{digest[:NAME_CHARS]}" for digest in basis]
