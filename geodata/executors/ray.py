"""Tasks over the machines of a Ray cluster.

The machines see the source and the destination under the same paths (NFS, say), and have this
package installed. Workers and nodes may go and come: a task that was lost, or that failed where a
retry may help, is given out again after a growing pause. Tasks are whole or not done, so neither a
repeat nor a straggler of an earlier attempt changes the result.
"""

from __future__ import annotations

import heapq
import logging
import random
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from geodata.errors import GeodataError, MissingExtra, StoreError, TransferError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

ATTEMPTS = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
CONNECT_SECONDS = 10
LOST_SECONDS = 300
"""How long a cluster may be without any node that works."""
LOOK_SECONDS = 5.0
"""How often the cluster is asked how many processors it has now."""

log = logging.getLogger(__name__)


class RayExecutor:
    """A cluster that runs already, or one of this machine's own with so many workers."""

    def __init__(self, workers: int | None = None, address: str | None = None):
        self._ray = _started(workers, address)
        self._most = workers
        self.workers = self._width()

    def run(
        self, function: Callable[[Shared, Task], Result], tasks: Sequence[Task], shared: Shared
    ) -> Generator[tuple[int, Result], None, None]:
        """Yield (task number, result) as they finish; the first error that no retry mends ends it.

        Raises StoreError where a task was lost too often.
        """
        ray = self._ray
        remote = ray.remote(_call).options(num_cpus=1, max_retries=0)
        given = (ray.put(function), ray.put(shared))
        queue = _Queue(len(tasks))
        running: dict[Any, int] = {}
        lost_since: float | None = None
        try:
            while queue or running:
                for number in queue.due(2 * self._width() - len(running)):
                    running[remote.remote(*given, tasks[number])] = number
                if not running:
                    time.sleep(queue.pause())
                    continue
                done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
                lost_since = None if done else self._lost_since(lost_since)
                for ref in done:
                    number = running.pop(ref)
                    try:
                        result = ray.get(ref)
                    except (ray.exceptions.RayError, GeodataError) as error:
                        queue.again(number, _judged(ray, error))
                        continue
                    yield number, result
        finally:
            for ref in running:
                ray.cancel(ref, force=True)

    def _lost_since(self, before: float | None) -> float | None:
        """Return since when no node has a processor; StoreError if that has been for too long."""
        try:
            if self._ray.cluster_resources().get("CPU"):
                return None
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            log.warning("the cluster does not answer: %s", error)
        since = time.monotonic() if before is None else before
        if time.monotonic() - since > LOST_SECONDS:
            raise StoreError(
                f"the Ray cluster has had no processor for {LOST_SECONDS} seconds",
                hint="Let a node join it, and run the same command again to go on",
            )
        return since

    def _width(self) -> int:
        """Return how many tasks the cluster can run at once now."""
        processors = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        return min(processors, self._most or processors)


@dataclass(slots=True)
class _Queue:
    """Numbers of tasks that wait, each until its time has come."""

    count: int
    _next: int = 0
    _waiting: list[tuple[float, int]] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self._next < self.count or bool(self._waiting)

    def due(self, most: int) -> list[int]:
        """Take at most so many tasks whose time has come, those that failed before first."""
        taken: list[int] = []
        while len(taken) < most and self._waiting and self._waiting[0][0] <= time.monotonic():
            taken.append(heapq.heappop(self._waiting)[1])
        fresh = range(self._next, min(self._next + max(most - len(taken), 0), self.count))
        self._next += len(fresh)
        return [*taken, *fresh]

    def pause(self) -> float:
        """Return seconds until the next task's time comes."""
        return max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else 0.0

    def again(self, number: int, error: GeodataError) -> None:
        """Put a task back for later; raise the error if it has failed too often."""
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        if attempt >= ATTEMPTS:
            raise error
        pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
        log.warning("task %d is given out again in %.1f s: %s", number, pause, error.message)
        heapq.heappush(self._waiting, (time.monotonic() + pause, number))


def _judged(ray: Any, error: Exception) -> GeodataError:
    """Return the error of a task that may be tried again; raise one that a retry cannot mend."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    if isinstance(cause, GeodataError):
        retryable = cause.retryable if isinstance(cause, TransferError) else _may_pass(cause)
        if retryable:
            return cause
        raise cause from None
    if isinstance(error, ray.exceptions.RayTaskError):
        raise cause from None
    return StoreError(
        f"a worker or its node was lost {ATTEMPTS} times: {type(error).__name__}",
        hint="Memory may be short there; run the same command again to go on",
    )


def _may_pass(error: GeodataError) -> bool:
    return isinstance(error, StoreError) and error.exit_code == StoreError.exit_code


def _started(workers: int | None, address: str | None) -> Any:
    """Return the package, joined to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra.of("ray", "ray") from error
    if ray.is_initialized():
        return ray
    _check_answers(address)
    own = {} if address else {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            **own,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise _no_cluster(address, str(error).partition("\n")[0]) from error
    return ray


def _check_answers(address: str | None) -> None:
    """Raise StoreError at once where nothing listens: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str | None, why: str) -> StoreError:
    return StoreError(
        f"no Ray cluster at {address or 'this machine'}: {why}",
        hint="ray status tells whether one runs; --ray-address HOST:PORT, or auto",
    )


def _call(function: Any, shared: Any, task: Any) -> Any:
    return function(shared, task)
