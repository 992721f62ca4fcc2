"""Processes of this machine.

Workers are forked from a server that has loaded what tasks need and has no threads, so that they
start at once and inherit no handles.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Any, TypeVar

from geodata.errors import StoreError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")


LOADED = [
    "geodata.executors.orphans",
    "geodata.partition.routing",
    "geodata.partition.staging",
    "pyarrow.compute",
    "pyarrow.json",
    "pyarrow.parquet",
]
"""Modules that are slow to load and of which most tasks need some."""


class LocalExecutor:
    """Worker processes; a single task or a single worker runs in this process."""

    def __init__(self, workers: int | None = None):
        self.workers = workers or _cores()
        if self.workers > 1:
            _start_server()

    def run(
        self, function: Callable[[Shared, Task], Result], tasks: Sequence[Task], shared: Shared
    ) -> Generator[tuple[int, Result], None, None]:
        """Yield (task number, result) as they finish; the first error ends the run."""
        workers = min(self.workers, len(tasks))
        if workers <= 1:
            for number, task in enumerate(tasks):
                yield number, function(shared, task)
            return
        context = multiprocessing.get_context("forkserver")
        pool = ProcessPoolExecutor(workers, context, _begin_worker, (function, shared))
        yield from _run(pool, tasks, workers)


def _start_server() -> None:
    """Start the process that workers are forked from; it loads its modules meanwhile."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(LOADED)
    resource_tracker.ensure_running()  # its own start would let interrupts through again
    with _held(signal.SIGINT):  # workers never see it
        forkserver.ensure_running()


def _cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _run(
    pool: ProcessPoolExecutor, tasks: Sequence[Task], workers: int
) -> Iterator[tuple[int, Any]]:
    """Keep the workers busy, and end them all when one fails or the caller goes."""
    waiting = iter(enumerate(tasks))
    running: dict[Future[Any], int] = {}
    try:
        while True:
            for number, task in waiting:
                with _held(signal.SIGINT, signal.SIGTERM):  # until the pool knows its worker
                    running[pool.submit(_call, task)] = number
                if len(running) >= 2 * workers:
                    break
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                yield running.pop(future), future.result()
    except (BrokenProcessPool, BrokenPipeError) as error:
        raise StoreError(
            "a worker process died",
            hint="Memory may be short (try --workers 1); run the same command again to go on. "
            'A script must be a file, with `if __name__ == "__main__":` around its calls',
        ) from error
    finally:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        if running:
            for process in processes:
                process.terminate()
        for process in processes:
            process.join(10)


@contextlib.contextmanager
def _held(*signals: signal.Signals) -> Iterator[None]:
    """Hold back signals; a process started in the body inherits that and keeps it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_work: tuple[Any, Any] | None = None
"""In a worker: the function, and what its tasks share."""


def _call(task: Any) -> Any:
    assert _work is not None
    function, shared = _work
    return function(shared, task)


def _begin_worker(function: Any, shared: Any) -> None:
    """Keep what all tasks share, and end with the parent."""
    global _work  # noqa: PLW0603
    _work = function, shared
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
