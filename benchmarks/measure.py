"""Runs one measurement in a process of its own: fresh memory, a time limit, its peak of memory.

The processes are forked from a server that has imported torch and pyarrow and done nothing else.
Memory is what each process of a measurement has beyond that, in sum: anonymous and shared pages,
not those of mapped files, which are the page cache. What a worker shares with its parent counts in
both.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from geodata.errors import MissingExtra

PRELOADED = ["torch", "torch.utils.data", "pyarrow.compute", "pyarrow.parquet", "pandas"]
"""pyarrow itself imports pandas, where that is installed, in the midst of its work."""
LOOK_SECONDS = 0.02
END_SECONDS = 15
"""How long a process may take to end after its result."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
"""Environment of every measurement: nothing is fetched."""

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a measurement gave: values by name, `memory` in bytes too, or why there are none."""

    status: str = "ok"
    values: dict[str, float] = field(default_factory=dict)


def run(task: Callable[..., Values], *args: Any, limit: float, scratch: Path) -> Outcome:
    """Call `task(*args)` in a new process; end it with all its children after `limit` seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    child: Any = context.Process(target=_child, args=(sender, scratch, task, args))
    child.start()
    sender.close()
    try:
        outcome, whole = _watch(child, receiver, limit, scratch)
        if whole:
            child.join(END_SECONDS)
            _wait_for_group(child.pid)
        return outcome
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join()
        receiver.close()


def _wait_for_group(pid: int) -> None:
    """Let the children of a process that has ended clean up after it."""
    deadline = time.monotonic() + END_SECONDS
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(LOOK_SECONDS)


def _watch(child: Any, receiver: Connection, limit: float, scratch: Path) -> tuple[Outcome, bool]:
    """Return what a process gave, and whether it has come to its end by itself."""
    deadline, looks = time.monotonic() + limit, [[0]]
    while not receiver.poll(LOOK_SECONDS):
        looks.append(memory_of(child.pid))
        if time.monotonic() > deadline:
            return Outcome(f"failed: not done after {limit:g} s"), False
    try:
        status, values, before = receiver.recv()
    except EOFError:
        child.join()
        return Outcome(f"failed: ended with {child.exitcode}{_last_line(scratch)}"), False
    if status == "ok" and before:
        values["memory"] = max(sum(max(n - before, 0) for n in look) for look in looks)
    return Outcome(status, values), True


def _child(sender: Connection, scratch: Path, task: Callable[..., Values], args: Any) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]
    os.environ.update(OFFLINE, TMPDIR=str(scratch), HF_HOME=str(scratch / "hf"))
    tempfile.tempdir = str(scratch)
    log = os.open(_log(scratch), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    before = sum(memory_of(os.getpid()))
    try:
        sender.send(("ok", dict(task(*args)), before))
    except MissingExtra as error:
        sender.send((f"not installed: {error.message}", {}, before))
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        told = lines[-1] if lines[0].startswith("Caught ") else lines[0]
        sender.send((f"failed: {type(error).__name__}: {told}", {}, before))
        raise


def _log(scratch: Path) -> Path:
    return scratch / "last.log"


def _last_line(scratch: Path) -> str:
    lines = _log(scratch).read_text(errors="replace").split("\n")
    told = [line.strip() for line in lines if line.strip()]
    return f" ({told[-1]})" if told else ""


def memory_of(pid: int | None) -> list[int]:
    """Return the bytes of anonymous and shared memory of a process and of its descendants.

    Empty where there is no /proc.
    """
    found, left = [], [pid]
    while left:
        process = Path(f"/proc/{left.pop()}")
        with suppress(OSError, ValueError):
            lines = (process / "status").read_text().splitlines()
            sizes = [int(x.split()[1]) for x in lines if x.startswith(("RssAnon:", "RssShmem:"))]
            found.append(sum(sizes) << 10)
            for task in (process / "task").iterdir():
                left += [int(child) for child in (task / "children").read_text().split()]
    return found
