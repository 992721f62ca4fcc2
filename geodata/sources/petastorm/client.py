"""The process that reads Petastorm, seen from ours.

Requests go to its standard input as JSON, one a line; answers come from its standard output as
`frames`. An answer is a run of frames that ends with `{"end": …}`. Each wait has a bound; a process
that says nothing for too long is an error that names what it was reading.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any

from geodata.errors import StoreError
from geodata.sources.guard.frames import Ended, Silent, receive

PATIENCE = 300.0
"""Seconds without a byte after which the process counts as lost."""

MEMORY = 8 << 30
"""Most bytes of address space: the longest record stands there some times at once."""

_ENDING = 10.0

Place = dict[str, str | int]
"""The file and the row group that a request is about, as fields of an error."""


class Refused(Exception):
    """What the process says it cannot do; the text says why."""


class Died(Exception):
    """The process ended; the text says how."""

    def as_error(self, place: Place) -> StoreError:
        """Return the error of what is not tried again."""
        hint = "Memory may be short; run the same command again to go on"
        return StoreError(str(self), hint=hint, **place)


class Worker:
    """One process that reads Petastorm datasets."""

    def __init__(self, interpreter: Path):
        self._pid = os.getpid()
        quiet = not logging.getLogger("geodata").isEnabledFor(logging.DEBUG)
        try:
            self._process = subprocess.Popen(
                _command(interpreter, "worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if quiet else None,
                bufsize=0,
            )
        except OSError as error:
            raise StoreError(
                f"the interpreter that reads Petastorm does not start: {error.strerror}",
                file=str(interpreter),
            ) from error
        with suppress(AttributeError, OSError):  # of Linux alone
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def ours(self) -> bool:
        """Return whether the process is ours, not that of a process we were forked from."""
        return self._pid == os.getpid()

    @property
    def usable(self) -> bool:
        """Return whether the process is ours and runs."""
        return self.ours and self._process.poll() is None

    def hello(self) -> dict[str, Any]:
        """Return the versions in the environment."""
        try:
            *_, last = self.ask({"do": "hello"}, {})
        except Died as death:
            raise death.as_error({}) from None
        said: dict[str, Any] = last
        return said

    def ask(self, request: dict[str, Any], place: Place) -> Iterator[Any]:
        """Yield the frames of an answer, the last one's `end` as its value.

        Raises Refused; Died where the process ends; StoreError naming `place` where it is silent:
        it is ended then, and when the caller goes before the end.
        """
        ended = False
        try:
            self._send(request)
            while not ended:
                frame = self._frame()
                if isinstance(frame, dict) and "error" in frame:
                    ended = True
                    raise Refused(frame["error"])
                ended = isinstance(frame, dict) and "end" in frame
                yield frame["end"] if ended else frame
        except Silent:
            raise StoreError(
                f"the process that reads Petastorm said nothing for {PATIENCE:.0f} seconds",
                hint="Run the same command again to go on",
                **place,
            ) from None
        finally:
            if not ended:
                self._process.kill()
                self.close()

    def close(self) -> None:
        """End the process: it goes when its input ends."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_ENDING)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise Died(self._end()) from error

    def _frame(self) -> Any:
        """Return the next frame: JSON, or a record batch."""
        assert self._process.stdout is not None
        try:
            return receive(self._process.stdout.fileno(), PATIENCE)
        except Ended:
            raise Died(self._end()) from None

    def _end(self) -> str:
        """Return how the process ended."""
        try:
            code = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            how = "closed its output"
        else:
            by = f"was ended by {signal.Signals(-code).name}" if code < 0 else ""
            how = by or f"ended with exit code {code}"
        return f"the process that reads Petastorm {how}"


def write_metadata(interpreter: Path, request: dict[str, Any]) -> None:
    """Let Petastorm write the `_common_metadata` that a request describes, as `unischema` says."""
    command, place = _command(interpreter, "unischema"), {"file": request["folder"]}
    failed = "Petastorm cannot describe the dataset"
    try:
        text = json.dumps(request)
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{failed}: {type(error).__name__}", **place) from error
    if done.returncode:
        *_, last = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()]
        raise StoreError(f"{failed}: {last}", **place)


def _command(interpreter: Path, module: str) -> list[str]:
    """Return how a module of `inside` is run: apart from the user's own packages and variables."""
    code = f"import sys; sys.path.append(sys.argv[1]); from inside.{module} import main; main()"
    place = str(files("geodata.sources.petastorm"))
    return [str(interpreter), "-I", "-B", "-W", "ignore", "-c", code, place]


_worker: Worker | None = None
"""This process's, kept from one piece to the next."""


def worker_here(interpreter: Path) -> Worker:
    """Return the worker of this process, starting one if there is none."""
    global _worker  # noqa: PLW0603
    if _worker is None or not _worker.usable:
        end_worker()
        _worker = Worker(interpreter)
    return _worker


@atexit.register
def end_worker() -> None:
    """End the worker of this process, if there is one."""
    global _worker  # noqa: PLW0603
    if _worker is not None and _worker.ours:
        _worker.close()
    _worker = None
