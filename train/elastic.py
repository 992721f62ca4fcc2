"""Stop on notice, and hand over to torchrun.

A signal only sets a flag; the ranks agree on it at the end of a step, save, and exit with the
code that says so. `launch` runs torchrun's agent beside the main thread, which keeps the signals
for itself: the agent would give its workers 30 seconds and hide their exit codes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from train import parallel
from train.remote import INTERRUPTED, STOPPED, GeodataError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RETRY = 4

_CODES = {signal.SIGTERM: STOPPED, signal.SIGHUP: STOPPED, signal.SIGINT: INTERRUPTED}


class Notice:
    """The exit code that a signal asks for, 0 while there is none."""

    def __init__(self) -> None:
        self.code = 0
        self.signal = 0

    def listen(self) -> None:
        """Take over SIGTERM, SIGINT and SIGHUP (unless it is ignored, as under nohup)."""
        for number in _CODES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        self.code = _CODES[signal.Signals(number)]


class LostPeer(GeodataError):
    """A collective failed: another process is gone, or too slow."""

    exit_code = RETRY


def announce() -> None:
    """Tell the launcher that this worker listens to signals now."""
    file = parallel.error_file()
    if file is not None:
        file.with_name("pid").write_text(str(os.getpid()))


def report_failure(error: Exception) -> None:
    """Leave the error where torchrun's agent looks for it."""
    trace = "" if isinstance(error, GeodataError) else traceback.format_exc()
    extra = {"py_callstack": trace or str(error), "timestamp": str(int(time.time()))}
    victim = isinstance(error, LostPeer)
    data = {"message": str(error), "trace": trace, "victim": victim, "extraInfo": extra}
    file = parallel.error_file()
    if file is not None:
        file.write_text(json.dumps({"message": data}))


@dataclass(slots=True)
class _Outcome:
    """How the workers ended; `failures` by rank, empty after success."""

    failures: dict[int, ProcessFailure]
    error: BaseException | None = None


def launch(arguments: list[str], processes: int) -> int:
    """Run `python -m train ARGUMENTS` in that many processes here; return their exit code.

    The one clear line of the rank that failed first is printed on stderr.
    """
    parallel.prepare_agent(processes)
    notice = Notice()
    notice.listen()
    with tempfile.TemporaryDirectory(prefix="geodata-train-") as folder:
        outcome = _Outcome({})
        agent = threading.Thread(target=_agent, args=(arguments, processes, folder, outcome))
        agent.start()
        _forward_signals(agent, Path(folder), notice)
    if outcome.error is not None:
        raise outcome.error
    return _exit_code(outcome.failures)


def _agent(arguments: list[str], processes: int, folder: str, outcome: _Outcome) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=Path(folder).name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "train", *arguments)
    except ChildFailedError as error:
        outcome.failures = error.failures
    except BaseException as error:
        outcome.error = error


def _forward_signals(agent: threading.Thread, folder: Path, notice: Notice) -> None:
    """Wait for the agent; pass a signal on to each worker once it listens."""
    told: set[int] = set()
    while agent.is_alive():
        agent.join(0.1)
        if notice.signal:
            for pid in {int(file.read_text() or 0) for file in folder.rglob("pid")} - told - {0}:
                told.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, notice.signal)


def _exit_code(failures: dict[int, ProcessFailure]) -> int:
    if not failures:
        return 0
    rank = min(failures, key=lambda r: (_is_victim(failures[r]), failures[r].timestamp, r))
    failure = failures[rank]
    if failure.exitcode in (STOPPED, INTERRUPTED):
        return failure.exitcode
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        print(f"rank {rank} was killed by {name}; the others stopped", file=sys.stderr)
        return RETRY
    data = _message(failure)
    text = data.get("trace") or f"error: {data.get('message', f'exit code {failure.exitcode}')}"
    print(text if rank == 0 else f"rank {rank}: {text}", file=sys.stderr)
    return failure.exitcode


def _is_victim(failure: ProcessFailure) -> bool:
    """Return whether a rank ended only because another one did."""
    return bool(_message(failure).get("victim")) or failure.exitcode == -signal.SIGTERM


def _message(failure: ProcessFailure) -> dict[str, Any]:
    return failure.message if isinstance(failure.message, dict) else {}
