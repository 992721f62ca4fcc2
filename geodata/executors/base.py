"""What runs tasks, and the registry of executors.

A task is a picklable function of a shared value, sent once per worker, and of its own argument.
Results come as they are finished, each
with its number, so that a job can store them and show progress; a job never depends on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Protocol, TypeVar

from geodata.errors import ConfigError

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs a function over tasks."""

    workers: int

    def run(
        self, function: Callable[[Shared, Task], Result], tasks: Sequence[Task], shared: Shared
    ) -> Generator[tuple[int, Result], None, None]:
        """Yield (task number, result) as they finish; the first error ends the run."""


def in_order(
    executor: Executor,
    function: Callable[[Shared, Task], Result],
    tasks: Sequence[Task],
    shared: Shared,
    done: Callable[[Task, Result], None],
) -> list[Result]:
    """Return the results of all tasks in their order; `done` is told of each as it is finished."""
    found: dict[int, Result] = {}
    with closing(executor.run(function, tasks, shared)) as finished:
        for number, result in finished:
            found[number] = result
            done(tasks[number], result)
    return [found[number] for number in range(len(tasks))]


EXECUTORS = {
    "local": "geodata.executors.local:LocalExecutor",
    "ray": "geodata.executors.ray:RayExecutor",
}


def get_executor(name: str, workers: int | None = None, address: str | None = None) -> Executor:
    """Return the executor of that name with so many workers (None: what it finds).

    `address` is that of a cluster that runs already; only an executor that joins one takes it.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"no executor '{name}'", hint=f"Known: {', '.join(EXECUTORS)}")
    if name == "local" and address is not None:
        raise ConfigError("--ray-address goes with --executor ray")
    module, _, attribute = EXECUTORS[name].partition(":")
    make = getattr(import_module(module), attribute)
    made: Executor = make(workers) if name == "local" else make(workers, address)
    return made
