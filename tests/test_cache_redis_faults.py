"""A Redis that dies, stalls, lies or refuses: time is lost, never a byte, and one line is said."""

import contextlib
import errno
import multiprocessing
import os
import re
import signal

import pytest
from redis_servers import (
    KINDS,
    Clock,
    blob,
    free_port,
    got,
    put,
    serving,
    tier,
    until,
    warnings,
)

from geodata.cache import NvmeCache, TieredCache, open_cache
from geodata.cache.connection import Connection
from geodata.cache.redis import INDEX, PACE, PART, PAUSE, PREFIX
from geodata.config import CacheSection
from geodata.errors import CorruptShard


@pytest.fixture(params=KINDS)
def server(request):
    with serving(request.param) as running:
        yield running


@pytest.fixture
def valkey():
    with serving("valkey") as running:
        yield running


def node(tmp_path, cache):
    """Return a node of its own in front of a tier."""
    return TieredCache(NvmeCache(tmp_path / f"node{len(list(tmp_path.iterdir()))}", 1 << 30), cache)


def writer(data, calls=None):
    def fill(path):
        if calls is not None:
            calls.append(1)
        path.write_bytes(data)

    return fill


def at_call(monkeypatch, command, count, action):
    """Do something just before the process's `count`-th call of a command."""
    real, seen = Connection.call, []

    def call(self, *words):
        seen.append(words[0])
        if words[0] == command and seen.count(command) == count:
            action()
        return real(self, *words)

    monkeypatch.setattr(Connection, "call", call)


@pytest.mark.parametrize("number", [0, 2])
def test_a_lost_part_is_a_miss_and_the_entry_goes(server, tmp_path, number, caplog):
    cache = tier(server)
    sha, data = put(cache, tmp_path, 3 * PART)
    server.call("DEL", f"{PREFIX}{sha}:{number}")
    assert got(cache, tmp_path, sha, len(data)) is None
    assert all(sha not in key for key in server.held())
    assert server.call("ZCARD", INDEX) == 0
    assert (cache.stats.misses, cache.stats.errors, warnings(caplog)) == (1, 0, [])


@pytest.mark.parametrize("change", ["bit", "short", "long", "swapped", "head"])
def test_wrong_bytes_are_dropped_and_the_store_is_asked(server, tmp_path, change, caplog):
    cache = tier(server)
    sha, data = put(cache, tmp_path, 2 * PART - 9)
    first, second = (f"{PREFIX}{sha}:{number}" for number in range(2))
    if change == "swapped":
        values = server.call("MGET", first, second)
        server.call("MSET", first, values[1], second, values[0])
    elif change == "head":
        server.call("SET", PREFIX + sha, "1 17")
    else:
        value = server.call("GET", second)
        wrong = {
            "bit": bytes([value[0] ^ 1]) + value[1:],
            "short": value[:-1],
            "long": value + b"x",
        }
        server.call("SET", second, wrong[change])
    calls = []
    path = node(tmp_path, cache).get(sha, len(data), writer(data, calls))
    assert (path.read_bytes() == data, len(calls)) == (True, 1)
    assert (cache.stats.misses, cache.stats.hits) == (1, 0)
    assert len(warnings(caplog)) == (0 if change == "head" else 1)
    assert got(cache, tmp_path, sha, len(data)) == data


def test_wrong_bytes_are_told_once(server, tmp_path, caplog):
    cache = tier(server)
    for seed in range(3):
        sha, _ = put(cache, tmp_path, 1000, seed)
        server.call("SET", f"{PREFIX}{sha}:0", b"x" * 1000)
        assert got(cache, tmp_path, sha, 1000) is None
        assert all(sha not in key for key in server.held())
    assert len(warnings(caplog)) == 1


def test_a_store_that_gives_wrong_bytes_feeds_no_redis(server, tmp_path):
    sha, _ = blob(1000)
    with pytest.raises(CorruptShard):
        node(tmp_path, tier(server)).get(sha, 1000, writer(b"x" * 1000))
    assert server.held() == []


def die_while_storing(url, folder, sha, data):
    real, parts = Connection.call, []

    def call(self, *words):
        if words[0] == "SET":
            parts.append(1)
        if len(parts) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *words)

    Connection.call = call
    (folder / "file").write_bytes(data)
    tier(url, ttl=5000).offer(sha, folder / "file")


def test_an_entry_that_a_killed_process_left_half_written_is_none(valkey, tmp_path):
    sha, data = blob(3 * PART)
    child = multiprocessing.get_context("fork").Process(
        target=die_while_storing, args=(valkey.url, tmp_path, sha, data)
    )
    child.start()
    child.join(30)
    assert child.exitcode == -signal.SIGKILL
    part = f"{PREFIX}{sha}:0"
    assert [key for key in valkey.held() if sha in key] == [part]
    assert 0 < valkey.call("TTL", part) <= 5 + 3 * PART / PACE + 61
    cache = tier(valkey, ttl=5000)
    assert got(cache, tmp_path, sha, len(data)) is None
    put(cache, tmp_path, len(data))
    assert got(cache, tmp_path, sha, len(data)) == data
    assert valkey.call("TTL", part) > 4000


def test_an_entry_evicted_while_it_is_written_leaves_nothing(valkey, tmp_path, monkeypatch):
    cache, other = tier(valkey, 2 * PART), tier(valkey, 2 * PART)
    sha, data = blob(PART + 100)
    (tmp_path / "file").write_bytes(data)
    at_call(monkeypatch, "SET", 2, lambda: put(other, tmp_path, PART + 200, 1))
    assert not cache.offer(sha, tmp_path / "file")
    assert all(sha not in key for key in valkey.held())
    assert (cache.stats.errors, cache.stats.bypassed) == (0, 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", ["before", "amid"])
def test_a_server_that_dies_or_stalls_costs_one_wait_and_no_byte(
    server, tmp_path, monkeypatch, caplog, number, moment
):
    sha, data = put(tier(server), tmp_path, 3 * PART)
    cache = tier(server, timeout=0.3)
    if moment == "before":
        server.signal(number)
    else:
        at_call(monkeypatch, "MGET", 3, lambda: server.signal(number))
    calls = []
    front = node(tmp_path, cache)
    path = front.get(sha, len(data), writer(data, calls))
    assert (path.read_bytes() == data, len(calls)) == (True, 1)
    other, other_data = blob(1000, 1)
    assert front.get(other, 1000, writer(other_data)).read_bytes() == other_data
    assert (cache.stats.errors, cache.stats.bypassed) == (1, 3)
    assert len(warnings(caplog)) == 1


def test_a_server_that_stalls_while_it_is_given_a_file_is_left_alone(
    server, tmp_path, monkeypatch, caplog
):
    cache = tier(server, timeout=0.3)
    sha, data = blob(3 * PART)
    at_call(monkeypatch, "SET", 2, lambda: server.signal(signal.SIGSTOP))
    assert node(tmp_path, cache).get(sha, len(data), writer(data)).read_bytes() == data
    assert (cache.stats.errors, cache.stats.bytes_filled) == (1, 0)
    assert len(warnings(caplog)) == 1
    server.signal(signal.SIGCONT)
    assert got(tier(server), tmp_path, sha, len(data)) is None


def test_a_pause_ends_and_each_outage_is_told_once(server, tmp_path, caplog):
    clock = Clock()
    cache = tier(server, clock=clock)
    sha, data = put(cache, tmp_path, 1000)
    for _outage in range(2):
        server.call("ACL", "SETUSER", "default", "-mget")
        for _try in range(3):
            assert got(cache, tmp_path, sha, 1000) is None
            assert got(cache, tmp_path, sha, 1000) is None
            clock.now += PAUSE
        server.call("ACL", "SETUSER", "default", "+mget")
        assert got(cache, tmp_path, sha, 1000) == data
    assert (cache.stats.errors, cache.stats.bypassed) == (6, 6)
    assert len(warnings(caplog)) == 2


def test_a_server_started_anew_is_found_again(tmp_path, caplog):
    clock = Clock()
    with serving("valkey") as first:
        port = first.port
        cache = tier(f"redis://127.0.0.1:{port}", clock=clock)
        sha, data = put(cache, tmp_path, 1000)
    assert got(cache, tmp_path, sha, 1000) is None
    clock.now += PAUSE
    with serving("valkey", options=[f"port {port}"]):
        put(cache, tmp_path, 1000)
        assert got(cache, tmp_path, sha, 1000) == data


def test_a_wrong_password_is_a_warning_that_does_not_show_it(tmp_path, caplog):
    (tmp_path / "secret").write_text("hush-hush")
    with serving("redis", password="right") as server:
        redis = {"url": server.url, "password_file": tmp_path / "secret"}
        section = CacheSection(nvme=tmp_path / "nvme", size="1MiB", redis=redis)
        cache = open_cache(section, tmp_path.joinpath)
        sha, data = blob(1000)
        assert cache.get(sha, 1000, writer(data)).read_bytes() == data
    (line,) = warnings(caplog)
    assert re.search(r"unix:///\S+: .*invalid (username-)?password", line, re.IGNORECASE)
    assert "hush" not in line


def test_a_full_server_still_serves_what_it_has(tmp_path, caplog):
    with serving("redis", options=["maxmemory 16mb", "maxmemory-policy noeviction"]) as server:
        cache = tier(server)
        sha, data = put(cache, tmp_path, PART)
        large, large_data = blob(3 * PART)
        path = node(tmp_path, cache).get(large, len(large_data), writer(large_data))
        assert path.read_bytes() == large_data
        assert got(cache, tmp_path, sha, PART) == data
        assert all(large not in key for key in server.held())
        (line,) = warnings(caplog)
        assert "maxmemory" in line


def test_a_server_that_is_only_to_be_read_still_serves(tmp_path, caplog):
    with serving("redis") as server:
        cache = tier(server)
        sha, data = put(cache, tmp_path, 1000)
        server.call("REPLICAOF", "127.0.0.1", "1")
        assert got(cache, tmp_path, sha, 1000) == data
        assert got(cache, tmp_path, sha, 1000) == data
        (tmp_path / "file").write_bytes(b"x")
        assert not cache.offer(blob(1)[0], tmp_path / "file")
        assert (cache.stats.hits, cache.stats.errors) == (2, 1)
        assert "read only" in warnings(caplog)[0]


def test_a_user_that_may_do_nothing_is_a_warning(tmp_path, caplog):
    with serving("redis") as server:
        server.call("ACL", "SETUSER", "default", "-@all", "+client")
        cache = tier(server)
        assert got(cache, tmp_path, blob(1)[0], 1) is None
        assert len(warnings(caplog)) == 1


def test_nobody_listens(tmp_path, caplog):
    url = f"redis://127.0.0.1:{free_port()}"
    section = CacheSection(nvme=tmp_path / "nvme", size="1MiB", redis=url)
    cache = open_cache(section, tmp_path.joinpath)
    sha, data = blob(1000)
    assert cache.get(sha, 1000, writer(data)).read_bytes() == data
    assert len(warnings(caplog)) == 1
    assert cache.statistics()["redis"]["errors"] == 1


def test_a_disk_that_fills_up_is_no_fault_of_redis(valkey, tmp_path, monkeypatch, caplog):
    cache = tier(valkey)
    sha, data = put(cache, tmp_path, 1000)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("geodata.cache.redis.os.open", full)
    front = TieredCache(NvmeCache(tmp_path / "nvme", 1 << 20), cache)
    monkeypatch.setattr(front._nvme, "_locked", lambda *_args: contextlib.nullcontext())
    assert front.get(sha, 1000, writer(data)) is None
    monkeypatch.undo()
    assert got(cache, tmp_path, sha, 1000) == data
    assert (cache.stats.errors, warnings(caplog)) == (0, [])


def test_a_file_that_is_gone_is_not_offered(valkey, tmp_path):
    cache = tier(valkey)
    assert not cache.offer(blob(1)[0], tmp_path / "gone")
    assert (cache.stats.errors, cache.stats.bypassed, valkey.held()) == (0, 1, [])


def test_a_damaged_file_of_the_folder_is_filled_from_redis(valkey, tmp_path):
    sha, data = blob(1000)
    front = node(tmp_path, tier(valkey))
    path = front.get(sha, 1000, writer(data))
    path.write_bytes(b"x" * 1000)
    assert front.drop_if_damaged(sha)
    until(lambda: not path.exists())
    assert front.get(sha, 1000, writer(b"")).read_bytes() == data
