"""Loading through a folder and a Redis: the same batches, fewer fetches, no harm from faults."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from loading import build, epoch_ids, ids
from redis_servers import serving, shown_processes, until, warnings

from geodata.cache.embedded import stop_all
from geodata.cache.redis import PREFIX
from geodata.config import load_config
from geodata.stores.local import LocalStore

CACHE = "regions.eu-central.cache"


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The folder for temporary files, empty at the end."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    stop_all()
    until(lambda: list(folder.iterdir()) == [])
    folder.rmdir()


@pytest.fixture(params=["redis", "valkey"])
def server(request):
    with serving(request.param) as running:
        yield running


@pytest.fixture
def fetched(monkeypatch):
    """The keys that the store was asked for."""
    real, keys = LocalStore.fetch, []

    def fetch(self, key, path):
        keys.append(key)
        real(self, key, path)

    monkeypatch.setattr(LocalStore, "fetch", fetch)
    return keys


def node(posts_dataset, folder, redis):
    """Return the loader of a node with a folder of its own."""
    return build(posts_dataset, f"{CACHE}.nvme={folder}", f"{CACHE}.redis={redis}")


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def test_an_epoch_through_redis_is_the_same_and_fills_the_next_node(
    posts_dataset, tmp_path, server, fetched
):
    expected = list(build(posts_dataset, f"{CACHE}=null"))
    first = node(posts_dataset, tmp_path / "a", server.url)
    assert_same(list(first), expected)
    shards = {shard["sha256"] for shard in first.lineage()["shards"]}
    assert len(fetched) == len(shards)
    fetched.clear()
    second = node(posts_dataset, tmp_path / "b", server.url)
    assert_same(list(second), expected)
    assert fetched == []
    assert second.cache_stats["redis"]["hits"] == len(shards)
    assert second.cache_stats["nvme"]["misses"] == len(shards)
    assert {key.split(":")[2] for key in server.held()} - {"index", "sizes"} == shards
    assert json.loads(json.dumps(second.cache_stats)) == second.cache_stats


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_redis_that_fails_amid_an_epoch_changes_nothing(
    posts_dataset, tmp_path, server, fetched, caplog, number
):
    expected = list(build(posts_dataset, f"{CACHE}=null"))
    list(node(posts_dataset, tmp_path / "a", server.url))
    fetched.clear()
    loader = node(posts_dataset, tmp_path / "b", f"{{url: {server.url}, timeout: 1.0}}")
    steps = iter(loader)
    batches = [next(steps)]
    server.signal(number)
    batches += steps
    assert_same(batches, expected)
    assert loader.cache_stats["redis"]["errors"] == 1
    assert 0 < len(fetched) < loader.cache_stats["nvme"]["misses"]
    assert len(warnings(caplog)) == 1


def test_bytes_that_someone_changed_do_not_reach_a_batch(posts_dataset, tmp_path, server, fetched):
    expected = list(build(posts_dataset, f"{CACHE}=null"))
    first = node(posts_dataset, tmp_path / "a", server.url)
    list(first)
    for key in server.held():
        if key.startswith(PREFIX) and key.endswith(":0"):
            value = server.call("GET", key)
            server.call("SET", key, value[:-9] + b"tampered!")
    fetched.clear()
    assert_same(list(node(posts_dataset, tmp_path / "b", server.url)), expected)
    assert len(fetched) == len(first.lineage()["shards"])


RUN = """
import json, os, sys
from pathlib import Path
from geodata.config import load_config
from geodata.loader import build_loader

if __name__ == "__main__":
    path, out, *overrides = sys.argv[1:]
    loader = build_loader(load_config(Path(path), overrides))
    first = [batch["sample"].tolist() for batch in loader]
    steps = iter(loader)
    second = [next(steps)["sample"].tolist() for _worker in range(2)]
    record = json.loads((Path(loader._cache._nvme.folder) / "embedded.json").read_text())
    Path(out).write_text(json.dumps([first, second, record["socket"]]))
    if "die" in os.environ:
        os.kill(os.getpid(), 9)
    steps.close()
"""


@pytest.mark.parametrize(
    ("method", "end"), [("fork", "clean"), ("spawn", "clean"), ("fork", "killed")]
)
def test_workers_share_the_embedded_server_and_nothing_is_left(
    posts_dataset, tmp_path, temporary, method, end
):
    (tmp_path / "run.py").write_text(RUN)
    overrides = [f"{CACHE}.nvme={tmp_path / 'nvme'}", f"{CACHE}.redis=embedded"]
    overrides += ["loader.workers=2", f"loader.start_method={method}"]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    if end == "killed":
        environment["die"] = "yes"
    out = tmp_path / "out.json"
    told = tmp_path / "stderr"
    with told.open("w") as stderr:
        done = subprocess.run(
            [sys.executable, tmp_path / "run.py", posts_dataset, out, *overrides],
            env=environment,
            stderr=stderr,
            timeout=120,
            check=False,
        )
    assert done.returncode == (0 if end == "clean" else -signal.SIGKILL), told.read_text()
    assert "Redis" not in told.read_text()
    first, second, path = json.loads(out.read_text())
    plain = build(posts_dataset, f"{CACHE}=null")
    assert first == [batch["sample"].tolist() for batch in plain]
    assert second == [batch["sample"].tolist() for batch in plain][:2]
    assert path.startswith(str(temporary))
    until(lambda: list(temporary.iterdir()) == [])
    assert path.encode() not in shown_processes()


def test_the_embedded_server_serves_two_loaders_of_one_process(
    posts_dataset, tmp_path, temporary, fetched, caplog
):
    expected = epoch_ids(build(posts_dataset, f"{CACHE}=null"))
    one = node(posts_dataset, tmp_path / "nvme", "embedded")
    two = node(posts_dataset, tmp_path / "nvme", "embedded")
    assert [ids(batch) for batch in one] == expected
    count = len(fetched)
    for entry in (tmp_path / "nvme/objects").rglob("*"):
        entry.unlink() if entry.is_file() else None
    assert [ids(batch) for batch in two] == expected
    assert len(fetched) == count
    assert (two.cache_stats["redis"]["errors"], warnings(caplog)) == (0, [])
    assert load_config(posts_dataset).regions["eu-central"].cache.redis is None
