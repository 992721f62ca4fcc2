"""Append-only, hash-chained log of every decision about data: who, what, from where to where.

One JSON Lines segment per process, `HOST-PID-N.jsonl`. Each line carries the hash of the line
before it, so an edited or reordered line is found, and a dropped one unless it is the last. A line
is written before the action it witnesses; if it cannot be written, the action does not happen.
Events name datasets, shards and counts; never a key, a subject or content.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geodata.errors import AuditError, FormatVersionError

FORMAT_VERSION = 1
_START = "0" * 64


class AuditLog:
    """The log of one process in a folder; safe with many processes, each has its own segment."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()
        self._pid = 0
        self._head = _START
        self._count = 0
        self._descriptor = -1

    def append(self, event: Mapping[str, Any], *, sync: bool = False) -> None:
        """Write one event; `sync` waits for the disk. AuditError if it cannot be written.

        After a failed write a new segment begins, since the last line may be torn.
        """
        if self._pid != os.getpid():  # a fork may have copied the lock while it was held
            self._lock = threading.Lock()
        with self._lock:
            self._append(event, sync)

    def _append(self, event: Mapping[str, Any], sync: bool) -> None:
        try:
            if self._pid != os.getpid():
                self._start()
            now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
            line = {"seq": self._count, "time": now, **event, "prev": self._head}
            text = _canonical(line)
            head = hashlib.sha256(text.encode()).hexdigest()
            data = (text[:-1] + f',"hash":"{head}"}}\n').encode()
            if os.write(self._descriptor, data) != len(data):
                raise OSError("short write")
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            self._pid = 0
            raise AuditError(
                f"the audit log cannot be written: {error.strerror or error}",
                file=str(self.folder),
                hint="Nothing moves without it",
            ) from error
        self._head, self._count = head, self._count + 1

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        host = "".join(c if c.isalnum() else "-" for c in socket.gethostname()) or "host"
        for number in itertools.count():
            path = self.folder / f"{host}-{os.getpid()}-{number}.jsonl"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._descriptor = os.open(path, flags, 0o600)
                break
            except FileExistsError:
                continue
        self._pid, self._head, self._count = os.getpid(), _START, 0
        self._append(
            {"event": "segment", "format_version": FORMAT_VERSION, "name": path.name}, False
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return audit_log, (self.folder,)


@functools.cache
def audit_log(folder: Path) -> AuditLog:
    """Return this process's log in a folder: one segment, however many ask."""
    return AuditLog(folder)


def _canonical(line: Mapping[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"))


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a segment; AuditError at the first line that breaks the chain.

    A last line without its newline, as a killed process leaves it, ends the segment.
    """
    head = _START
    with path.open("rb") as file:
        for number, raw in enumerate(file):
            if not raw.endswith(b"\n"):
                return
            try:
                line = json.loads(raw)
                claimed = line.pop("hash")
            except (ValueError, KeyError, AttributeError) as error:
                raise AuditError("not an audit line", file=path.name, row=number) from error
            computed = hashlib.sha256(_canonical(line).encode()).hexdigest()
            if line.get("prev") != head or line.get("seq") != number or computed != claimed:
                raise AuditError("the chain is broken", file=path.name, row=number)
            if number == 0 and line.get("format_version") != FORMAT_VERSION:
                raise FormatVersionError("a newer audit segment", file=path.name)
            head = claimed
            yield line
