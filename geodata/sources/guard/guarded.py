"""The process that does what may go wrong: reads foreign bytes by libraries that trust them.

It loads a module and forks a child, which runs one of the module's functions for each request: a
line of JSON with a pipe for the answer. A child that dies is followed by another, and so is one
that met what was damaged, which may have spoilt more than it showed. A child that takes too much
memory or processor time is ended, and `shut_files` keeps it from files that it is not to open.

Run with the module's name and the paths to import it from; `guard` is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from geodata.sources.guard.frames import send

Say = Callable[[Any], None]
"""Sends a part of an answer: plain JSON, or a record batch."""

_READ_BYTES = 1 << 16
_FAULT = 3
"""Exit code of a child whose answer did not come to its end."""

_SPOILT = frozenset({"broken", "lost"})
"""Parts of an answer, one of which a child gives that met what was damaged."""


def serve(asked: socket.socket, functions: ModuleType) -> None:
    """Let one child after another answer, until the socket is closed; say how one died."""
    while asked.recv(1, socket.MSG_PEEK):
        child = os.fork()
        if child == 0:
            os._exit(_answers(asked, functions))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code:
            asked.sendall(json.dumps({"code": code}).encode() + b"\n")


def shut_files() -> None:
    """Let this process open no file, whatever name it comes by, until the next request."""
    free = os.dup(0)
    os.close(free)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))


def _answers(asked: socket.socket, functions: ModuleType) -> int:
    """Answer requests for as long as nothing goes wrong; return the exit code."""
    _limit()
    begun, files = _pages(), resource.getrlimit(resource.RLIMIT_NOFILE)
    _, memory = resource.getrlimit(resource.RLIMIT_AS)
    code = None
    while code is None and (received := _received(asked)):
        request, pipe = received
        if begun is not None:
            most = begun * resource.getpagesize() + request["memory"]
            most = most if memory == resource.RLIM_INFINITY else min(most, memory)
            resource.setrlimit(resource.RLIMIT_AS, (most, memory))
        code = _answer(functions, request, pipe)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    return code or 0


def _received(asked: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Return the next request and the pipe that came with it; None at the end."""
    data, pipes, _, _ = socket.recv_fds(asked, _READ_BYTES, 1)
    while data and not data.endswith(b"\n"):
        more = asked.recv(_READ_BYTES)
        data = data + more if more else b""
    return (json.loads(data), pipes[0]) if data and pipes else None


def _answer(functions: ModuleType, request: dict[str, Any], pipe: int) -> int | None:
    """Run the function that a request names; return the exit code where there is to be no other."""
    seconds, spoilt = request["seconds"], False
    try:
        with os.fdopen(pipe, "wb") as out:

            def say(what: Any) -> None:
                nonlocal spoilt
                signal.setitimer(signal.ITIMER_PROF, seconds)
                send(out, what)
                spoilt = spoilt or (isinstance(what, dict) and not _SPOILT.isdisjoint(what))

            signal.setitimer(signal.ITIMER_PROF, seconds)
            getattr(functions, request["do"])(request, say)
            say({"end": True})
    except Exception:
        return _FAULT
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return 0 if spoilt else None


def _limit() -> None:
    """Leave no core, and be the first to go if memory ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:  # noqa: PTH123
        file.write(b"1000")


def _pages() -> int | None:
    """Return how many pages of address space there are; None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[0])
    except OSError:
        return None


def main(module: str) -> None:
    """Serve the socket that is standard input."""
    functions = import_module(module)
    with socket.socket(fileno=os.dup(0)) as asked:
        serve(asked, functions)
    sys.exit(0)
