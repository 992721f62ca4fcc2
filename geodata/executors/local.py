"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from geodata.errors import StoreError

Task = TypeVar("Task")
Result = TypeVar("Result")


class LocalExecutor:
    """Spawned worker processes; a single task or a single worker runs in this process."""

    def __init__(self, workers: int | None = None):
        self.workers = (
            workers or len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else workers or os.cpu_count() or 1
        )

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result]]:
        """Yield (task number, result) as they finish; the first error ends the run."""
        workers = min(self.workers, len(tasks))
        if workers <= 1:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        yield from self._run_in_pool(function, tasks, workers)

    def _run_in_pool(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
    ) -> Iterator[tuple[int, Result]]:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker)
        waiting = iter(enumerate(tasks))
        running: dict[Future[Result], int] = {}
        try:
            while True:
                for number, task in waiting:
                    running[pool.submit(function, task)] = number
                    if len(running) >= 2 * workers:
                        break
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=running.__getitem__):
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise StoreError(
                "a worker process died",
                hint="Memory may be short (try --workers 1); run the same command again to go on. "
                'A script needs `if __name__ == "__main__":` around its calls',
            ) from error
        finally:
            processes = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            if running:
                for process in processes:
                    process.terminate()
            for process in processes:
                process.join(10)


def _begin_worker() -> None:
    """Leave interrupts to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
