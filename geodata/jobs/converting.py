"""How a raw corpus is converted: the options of `convert` and `append`, each written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from geodata.errors import ConfigError
from geodata.executors import Executor, get_executor
from geodata.jobs.base import Progress, Silent
from geodata.partition.rejects import OnError
from geodata.prepare import AS_IS, Preparing
from geodata.prepare.base import TABLED
from geodata.sources.base import Source
from geodata.sources.media.table import MediaTable
from geodata.sources.opening import open_source
from geodata.sources.options import AS_FOUND, Reading

MAX_SHARD_BYTES = 1 << 30

Given = ParamSpec("Given")
Options = TypeVar("Options")
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converting:
    """How a raw corpus is converted, whatever becomes of it.

    `kind` says what the source is (None: recognised), `source_id` starts every key (None: the
    source's name); `reading` and `preparing` say how it is read, and what is done to its records.
    `provenance` names a column that keeps where each record stood. With `on_error="fail"` the first
    bad record ends the job; else at most `max_errors` are set aside (None: any number). `dedupe`
    leaves out records equal to one before. `shard_size` is in bytes (None: the usual one of the
    destination). `restart` accepts a source that changed since a run was stopped. `workers` are
    processes (None: the cores), or with the `executor` "ray" processors of the cluster at
    `ray_address`. Raises ConfigError for shards over 1 GiB, and for an option that goes with
    another that is not given.
    """

    kind: str | None = None
    source_id: str | None = None
    reading: Reading = AS_FOUND
    preparing: Preparing = AS_IS
    provenance: str | None = None
    on_error: OnError = "fail"
    max_errors: int | None = None
    dedupe: bool = False
    shard_size: int | None = None
    restart: bool = False
    workers: int | None = None
    executor: str = "local"
    ray_address: str | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.max_errors is not None and self.on_error == "fail":
            raise ConfigError(
                "--max-errors is not for --on-error fail, which ends at the first",
                hint="Add --on-error skip, or quarantine",
            )
        if not 0 < self.shard_bytes(MAX_SHARD_BYTES) <= MAX_SHARD_BYTES:
            raise ConfigError(
                f"shards of {self.shard_size} bytes", hint="--shard-size is at most 1GiB"
            )

    def shard_bytes(self, usual: int) -> int:
        """Return about how many bytes a shard has, where it usually has so many."""
        return usual if self.shard_size is None else self.shard_size

    @property
    def runner(self) -> Executor:
        """Return what runs the tasks."""
        return get_executor(self.executor, self.workers, self.ray_address)

    @property
    def shown(self) -> Progress:
        """Return what is told of the progress."""
        return self.progress or Silent()

    def opened(self, source: str | Path) -> Source:
        """Return the corpus; ConfigError for an option that is not for one of its kind."""
        check_named(source, "SOURCE")
        opened = open_source(source, kind=self.kind, source_id=self.source_id, reading=self.reading)
        self.preparing.check(opened.kind, *([TABLED] if isinstance(opened, MediaTable) else []))
        return opened

    def shared(self) -> dict[str, Any]:
        """Return the options that every conversion has, as keywords."""
        return {each.name: getattr(self, each.name) for each in fields(Converting)}


def check_named(path: str | Path, what: str) -> None:
    """Raise ConfigError for an empty path, which would mean the current folder."""
    if path == "":
        raise ConfigError(f"{what} is empty", hint="Name it; `.` is the current folder")


def keywords(
    make: Callable[Given, Options],
) -> Callable[
    [Callable[[str | Path, str | Path, Options], Report]],
    Callable[Concatenate[str | Path, str | Path, Given], Report],
]:
    """Let a job, which takes its options as one object, be called with them as keywords."""
    build: Callable[..., Options] = make

    def decorate(
        job: Callable[[str | Path, str | Path, Options], Report],
    ) -> Callable[Concatenate[str | Path, str | Path, Given], Report]:
        source, dest, _ = inspect.signature(job).parameters.values()
        signature = inspect.Signature([source, dest, *inspect.signature(make).parameters.values()])

        @wraps(job)
        def call(*places: Any, **options: Any) -> Report:
            given = signature.bind(*places, **options).arguments
            ends = given.pop(source.name), given.pop(dest.name)
            return job(*ends, build(**given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate
