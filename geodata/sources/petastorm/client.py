"""The process that reads Petastorm, seen from ours.

Requests go to its standard input as JSON, one a line; answers come from its standard output as
frames: a letter, the length, and JSON (`J`) or an Arrow stream of one batch (`A`). An answer is a
run of frames that ends with `{"end": …}`. Each wait has a bound; a process that ends, or says
nothing for too long, is an error that names what it was reading.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import signal
import struct
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from geodata.errors import StoreError

PATIENCE = 300.0
"""Seconds without a byte after which the process counts as lost."""

_FRAME = struct.Struct(">cQ")
_READ_BYTES = 1 << 20
_ENDING = 10.0

Place = dict[str, str | int]
"""The file and the row group that a request is about, as fields of an error."""


class Refused(Exception):
    """What the process says it cannot do; the text says why."""


class Worker:
    """One process that reads Petastorm datasets."""

    def __init__(self, interpreter: Path):
        self._pid = os.getpid()
        quiet = not logging.getLogger("geodata").isEnabledFor(logging.DEBUG)
        try:
            self._process = subprocess.Popen(
                _command(interpreter, "worker.py"),
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
        *_, last = self.ask({"do": "hello"}, {})
        said: dict[str, Any] = last
        return said

    def ask(self, request: dict[str, Any], place: Place) -> Iterator[Any]:
        """Yield the frames of an answer, the last one's `end` as its value.

        Raises Refused, or StoreError naming `place` if the process is lost; then, and when the
        caller goes before the end, it is ended.
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
        except _Lost as error:
            raise StoreError(
                f"the process that reads Petastorm {error}",
                hint="Memory may be short; run the same command again to go on",
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
            raise _Lost(self._end()) from error

    def _frame(self) -> Any:
        """Return the next frame: JSON, or a record batch."""
        kind, length = _FRAME.unpack(self._exactly(_FRAME.size))
        data = self._exactly(length)
        if kind == b"A":
            with pa.ipc.open_stream(data) as stream:
                return stream.read_next_batch()
        return json.loads(data)

    def _exactly(self, length: int) -> bytes:
        assert self._process.stdout is not None
        descriptor, parts, left = self._process.stdout.fileno(), [], length
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        while left:
            if not waiting.poll(PATIENCE * 1000):
                raise _Lost(f"said nothing for {PATIENCE:.0f} seconds")
            part = os.read(descriptor, min(left, _READ_BYTES))
            if not part:
                raise _Lost(self._end())
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _end(self) -> str:
        """Return how the process ended."""
        try:
            code = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def write_metadata(interpreter: Path, request: dict[str, Any]) -> None:
    """Let Petastorm write the `_common_metadata` that a request describes, as `unischema` says."""
    command, place = _command(interpreter, "unischema.py"), {"file": request["folder"]}
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


def _command(interpreter: Path, script: str) -> list[str]:
    """Return how a script of ours is run: apart from the user's own packages and variables."""
    path = str(files("geodata.sources.petastorm") / script)
    return [str(interpreter), "-I", "-B", "-W", "ignore", path]


class _Lost(Exception):
    """The process is gone, or silent."""


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
