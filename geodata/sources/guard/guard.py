"""Reading that may end its process, done in another one: what dies there is only an answer.

`guarded` is the other side. Each process that reads keeps one such process for each module of
functions, started when it is first needed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from geodata.errors import StoreError
from geodata.sources.guard.frames import Ended, Garbled, Silent, receive

PATIENCE = 300.0
"""Seconds without a byte after which the process counts as lost."""

CPU_SECONDS = 30.0
"""Most processor time between two parts of an answer; what takes more comes to no end."""

MEMORY = 4 << 30
"""Most bytes that an answer may take: some records of the longest kind at once."""

_STARTING = 60.0
_ENDING = 10.0
_PIPE_BYTES = 1 << 20
_CODE = "import sys; sys.path[:] = sys.argv[2:]; from geodata.sources.guard.guarded import main; "


class Died(Exception):
    """The process died of what it did; the text says how. `endless`: it came to no end."""

    def __init__(self, reason: str, *, endless: bool = False):
        super().__init__(reason)
        self.endless = endless


class Guard:
    """A process that runs the functions of a module in a child, and makes another if that dies."""

    def __init__(self, module: str):
        ours, theirs = socket.socketpair()
        self._asked, self._pid = ours, os.getpid()
        self.busy = False
        quiet = not logging.getLogger("geodata").isEnabledFor(logging.DEBUG)
        command = [sys.executable, "-W", "ignore", "-c", f"{_CODE}main(sys.argv[1])", module]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, *sys.path],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL if quiet else None,
                    env={**os.environ, **one_thread},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise StoreError(f"no process can be started: {error.strerror}") from error

    @property
    def usable(self) -> bool:
        """Return whether the process is ours, not that of a process we were forked from, and up."""
        return self._pid == os.getpid() and self._process.poll() is None

    def ask(self, function: str, request: dict[str, Any]) -> Iterator[Any]:
        """Yield the parts of the answer of a function to a request, plain JSON.

        Raises Died where the function's process does, StoreError where nothing answers. A caller
        that goes before the end ends the process.
        """
        asked = {**request, "do": function, "seconds": CPU_SECONDS, "memory": MEMORY}
        pipe, theirs = os.pipe()
        sound, self.busy = False, True
        try:
            self._send(asked, theirs)
            while not _is_end(said := receive(pipe, PATIENCE)):
                yield said
            sound = True
        except Garbled:
            raise Died("what reads it has gone astray") from None
        except Ended:
            code, sound = self._code(), True
            raise _death(code) from None
        except Silent:
            raise StoreError(
                f"the process that reads the file said nothing for {PATIENCE:.0f} seconds",
                hint="Is its disk there? Run the same command again to go on",
            ) from None
        finally:
            os.close(pipe)
            if not sound:
                self.close()
            self.busy = False

    def close(self) -> None:
        """End the process, and what it does."""
        self._asked.close()
        if self._pid == os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_ENDING)

    def forget(self) -> None:
        """Let go of a process that is not ours."""
        self._asked.close()

    def _send(self, asked: dict[str, Any], pipe: int) -> None:
        try:
            while select.select([self._asked], [], [], 0)[0] and self._asked.recv(1 << 10):
                pass  # how a child ended that had nothing to do
            with contextlib.suppress(AttributeError, OSError):
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            line = json.dumps(asked).encode() + b"\n"
            sent = socket.send_fds(self._asked, [line], [pipe])
            self._asked.sendall(line[sent:])
        except OSError as error:
            raise _gone() from error
        finally:
            os.close(pipe)

    def _code(self) -> int:
        """Return how the child ended that answered."""
        said = b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([self._asked], [], [], _STARTING)
            more = b""
            with contextlib.suppress(ConnectionError):
                more = self._asked.recv(1 << 10) if ready else b""
            if not more:
                raise _gone()
            said += more
        return int(json.loads(said)["code"])


def _is_end(said: Any) -> bool:
    return isinstance(said, dict) and "end" in said


def _gone() -> StoreError:
    return StoreError(
        "the process that reads files is gone",
        hint="Memory may be short; run the same command again to go on",
    )


def _death(code: int) -> Died:
    if code == -signal.SIGPROF:
        return Died("reading it comes to no end", endless=True)
    if code < 0:
        return Died(f"what reads it is ended by {signal.Signals(-code).name}")
    return Died("reading it fails in a way that is not known")


_guards: dict[str, list[Guard]] = {}
"""This process's, by module; more than one where answers are taken side by side."""


def ask(module: str, function: str, request: dict[str, Any]) -> Iterator[Any]:
    """Yield the parts of an answer of a function of a module, as `Guard.ask` does."""
    yield from _idle(module).ask(function, request)


def _idle(module: str) -> Guard:
    known = _guards.setdefault(module, [])
    for guard in [guard for guard in known if not guard.usable]:
        guard.close()
        known.remove(guard)
    idle = next((guard for guard in known if not guard.busy), None)
    if idle is None:
        idle = Guard(module)
        known.append(idle)
    return idle


@atexit.register
def end_guards() -> None:
    """End the processes that this one started."""
    for guard in _taken():
        guard.close()


def _forget_guards() -> None:
    for guard in _taken():
        guard.forget()


def _taken() -> list[Guard]:
    taken = [guard for guards in _guards.values() for guard in guards]
    _guards.clear()
    return taken


os.register_at_fork(after_in_child=_forget_guards)
