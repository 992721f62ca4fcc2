"""The loader's worker processes: they outlive signals, but neither their parent nor its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Generator
from functools import partial
from typing import Any
from weakref import WeakSet

_running: WeakSet[Generator[Any, None, None]] = WeakSet()


def ended_at_exit(iteration: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Return an iteration that is closed when the interpreter exits, if it is still open then.

    Python would otherwise end its workers by a signal that they leave to their parent, and wait.
    """
    _running.add(iteration)
    return iteration


@atexit.register
def _end_all() -> None:
    for iteration in list(_running):
        with contextlib.suppress(ValueError):  # it runs in another thread
            iteration.close()


def worker_start(method: str) -> partial[None]:
    """Return what a worker does first."""
    return partial(_start, 0 if method == "forkserver" else os.getpid())


def _start(parent: int, _worker: int) -> None:
    """Leave signals to the parent: one sent to the whole group must not break its last step.

    A worker whose parent died while it started ends here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if parent and os.getppid() != parent:
        os._exit(1)
