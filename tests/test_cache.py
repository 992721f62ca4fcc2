"""The NVMe cache: single flight, bounded, and indifferent to kills."""

import errno
import hashlib
import multiprocessing
import os
import signal

import pytest

from geodata.cache import NvmeCache
from geodata.errors import ConfigError, CorruptShard

DATA = b"a shard's bytes " * 1000
SHA = hashlib.sha256(DATA).hexdigest()


def blob(number, nbytes=1000):
    data = number.to_bytes(4, "big") * (nbytes // 4)
    return hashlib.sha256(data).hexdigest(), data


def writer(data, calls=None):
    def fill(path):
        if calls is not None:
            calls.append(1)
        path.write_bytes(data)

    return fill


def used(cache):
    return sum(status.st_size for _path, status in cache.entries())


def test_a_miss_fills_and_a_hit_does_not(tmp_path):
    cache, calls = NvmeCache(tmp_path, 1 << 20), []
    for _ in range(3):
        assert cache.get(SHA, len(DATA), writer(DATA, calls)).read_bytes() == DATA
    assert len(calls) == 1
    assert (cache.stats.hits, cache.stats.misses, cache.stats.bytes_filled) == (2, 1, len(DATA))


def test_a_wrong_digest_never_enters(tmp_path):
    cache = NvmeCache(tmp_path, 1 << 20)
    with pytest.raises(CorruptShard, match="another digest"):
        cache.get(SHA, len(DATA), writer(b"x" * len(DATA)))
    assert used(cache) == 0
    assert cache.get(SHA, len(DATA), writer(DATA)).read_bytes() == DATA


def test_the_bound_holds_and_the_least_recently_used_go(tmp_path):
    cache = NvmeCache(tmp_path, 3000)
    blobs = [blob(n) for n in range(4)]
    for sha, data in blobs[:3]:
        path = cache.get(sha, 1000, writer(data))
        os.utime(path, ns=(0, int(data[3]) + 1))
    cache.get(blobs[0][0], 1000, writer(b""))  # a use: entry 1 is now the oldest
    cache.get(blobs[3][0], 1000, writer(blobs[3][1]))
    assert used(cache) == 3000
    held = [cache._path(sha).exists() for sha, _ in blobs]
    assert held == [True, False, True, True]


def test_a_bound_below_one_shard_is_refused_with_the_minimum(tmp_path):
    with pytest.raises(ConfigError, match=r"cache\.size to at least 1000"):
        NvmeCache(tmp_path, 999).get(blob(0)[0], 1000, writer(b""))


def test_a_full_disk_is_a_bypass_and_leaves_nothing(tmp_path):
    cache = NvmeCache(tmp_path, 1 << 20)

    def full(path):
        path.write_bytes(DATA[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    assert cache.get(SHA, len(DATA), full) is None
    assert (cache.stats.bypassed, used(cache)) == (1, 0)


def test_an_entry_cut_short_by_a_crash_of_the_machine_is_filled_again(tmp_path):
    cache = NvmeCache(tmp_path, 1 << 20)
    path = cache.get(SHA, len(DATA), writer(DATA))
    os.truncate(path, 10)
    assert cache.get(SHA, len(DATA), writer(DATA)).read_bytes() == DATA


def race(folder, barrier, counted):
    cache = NvmeCache(folder, 1 << 20)

    def fill(path):
        with counted.get_lock():
            counted.value += 1
        path.write_bytes(DATA)

    barrier.wait(30)
    assert cache.get(SHA, len(DATA), fill).read_bytes() == DATA


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_eight_racers_make_one_fetch(tmp_path, method):
    context = multiprocessing.get_context(method)
    barrier, counted = context.Barrier(8), context.Value("i", 0)
    racers = [context.Process(target=race, args=(tmp_path, barrier, counted)) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * 8
    assert counted.value == 1


def test_a_filler_that_never_ends_is_passed_by(tmp_path):
    held = NvmeCache(tmp_path, 1 << 20)
    with held._locked(f"{int(SHA[:8], 16) % 256:03}"):
        cache = NvmeCache(tmp_path, 1 << 20, patience=0)
        assert cache.get(SHA, len(DATA), writer(DATA)) is None
    assert cache.get(SHA, len(DATA), writer(DATA)).read_bytes() == DATA


def die_while_filling(folder):
    def fill(path):
        path.write_bytes(DATA[:100])
        os.kill(os.getpid(), signal.SIGKILL)

    NvmeCache(folder, 20_000).get(SHA, len(DATA), fill)


def test_a_killed_filler_blocks_nobody_and_its_room_is_freed(tmp_path):
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=die_while_filling, args=(tmp_path,))
    victim.start()
    victim.join(30)
    assert victim.exitcode == -signal.SIGKILL
    cache = NvmeCache(tmp_path, 20_000)
    assert len(list((tmp_path / "filling").iterdir())) == 1
    sha, data = blob(7, 16_000)
    assert cache.get(sha, 16_000, writer(data)).read_bytes() == data
    assert list((tmp_path / "filling").iterdir()) == []
    assert cache.get(SHA, len(DATA), writer(DATA)).read_bytes() == DATA


def test_the_room_of_an_entry_is_held_while_it_is_filled_from_a_store(tmp_path):
    from geodata.stores.local import LocalStore

    store = LocalStore(str(tmp_path / "store"))
    sha, data = blob(1, 8_000)
    store.write("x", data)
    cache = NvmeCache(tmp_path / "cache", 10_000)
    sizes = []

    def fill(path):
        sizes.append(path.stat().st_size)
        store.fetch("x", path)
        sizes.append(path.stat().st_size)
        other_sha, other = blob(2, 8_000)
        assert NvmeCache(tmp_path / "cache", 10_000).get(other_sha, 8_000, writer(other)) is None

    assert cache.get(sha, 8_000, fill).read_bytes() == data
    assert sizes == [8_000, 8_000]


def test_a_disk_that_fills_up_under_a_store_is_a_bypass(tmp_path, monkeypatch):
    from geodata.stores import local

    store = local.LocalStore(str(tmp_path / "store"))
    sha, data = blob(1)
    store.write("x", data)

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local.shutil, "copyfileobj", full)
    cache = NvmeCache(tmp_path / "cache", 10_000)
    assert cache.get(sha, 1000, lambda path: store.fetch("x", path)) is None
    assert (cache.stats.bypassed, used(cache)) == (1, 0)
