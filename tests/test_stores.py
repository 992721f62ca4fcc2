"""Stores: whole objects, exclusive creates, literal keys, and the gate in front."""

import multiprocessing

import pytest

from geodata.audit import AuditLog
from geodata.durable import TEMPORARY
from geodata.errors import ConfigError, ObjectNotFound, PolicyDenied, StoreError
from geodata.policy import Gate, HomePolicy
from geodata.stores import Access, open_store
from geodata.tags import METADATA, Tag

TAG = Tag(region="eu", data_category="PersonalData")


@pytest.fixture
def store(tmp_path):
    gate = Gate(HomePolicy(), AuditLog(tmp_path / "audit"))
    return open_store(tmp_path / "store", region="eu", access=Access(gate, "eu", "test"))


KEYS = ["a", "deep/er/key", "with space", "$*?[x]+~", "nbsp\u00a0", "ünï", "a%20b", ".hidden"]


@pytest.mark.parametrize("key", KEYS)
def test_keys_mean_themselves(store, key):
    store.write(f"data/{key}", key.encode(), TAG)
    assert store.read(f"data/{key}", TAG) == key.encode()
    assert [info.key for info in store.list("data/")] == [f"data/{key}"]
    assert store.stat(f"data/{key}").nbytes == len(key.encode())


@pytest.mark.parametrize("key", ["../up", "/root", "a/../../b", "", "a\0b"])
def test_a_key_cannot_leave_its_store(store, key):
    with pytest.raises(ConfigError, match="no key of a store"):
        store.write(key, b"", TAG)


def test_listing_is_sorted_by_prefix_and_shows_no_unfinished_object(store, tmp_path):
    for key in ("m/v2", "m/v1", "m/lists/x", "mm/v1"):
        store.write(key, b"1", TAG)
    (tmp_path / "store/m" / f".v3.1-a{TEMPORARY}").write_bytes(b"half")
    assert [info.key for info in store.list("m/v")] == ["m/v1", "m/v2"]
    assert [info.key for info in store.list("m/")] == ["m/v1", "m/v2", "m/lists/x"]
    assert list(store.list("nothing/")) == []


def test_missing_objects_are_named(store):
    with pytest.raises(ObjectNotFound, match="no such object"):
        store.read("data/none", TAG)
    store.delete("data/none")


def test_put_moves_a_finished_file(store, tmp_path):
    made = tmp_path / "made"
    made.write_bytes(b"bytes")
    store.put("data/x", made, TAG)
    assert not made.exists()
    assert store.local_path("data/x", TAG).read_bytes() == b"bytes"
    store.fetch("data/x", tmp_path / "copy", TAG)
    assert (tmp_path / "copy").read_bytes() == b"bytes"


def test_a_failed_write_leaves_the_old_bytes(store, monkeypatch):
    store.write("data/x", b"old", TAG)

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("geodata.durable.sync", full)
    with pytest.raises(StoreError, match="No space left"):
        store.write("data/x", b"new", TAG)
    monkeypatch.undo()
    assert store.read("data/x", TAG) == b"old"
    assert [info.key for info in store.list("data/")] == ["data/x"]


def test_what_has_no_tag_moves_nowhere(store, tmp_path):
    made = tmp_path / "made"
    made.write_bytes(b"bytes")
    store.write("data/x", b"bytes", TAG)
    for call in (
        lambda: store.write("data/y", b"", None),
        lambda: store.create("data/y", b"", None),
        lambda: store.put("data/y", made, None),
        lambda: store.read("data/x", None),
        lambda: store.fetch("data/x", tmp_path / "copy", None),
        lambda: store.local_path("data/x", None),
    ):
        with pytest.raises(PolicyDenied, match="untagged"):
            call()
    assert made.exists() and not (tmp_path / "copy").exists()
    assert [info.key for info in store.list("data/")] == ["data/x"]


def test_a_shard_cannot_be_passed_off_as_metadata(store):
    store.write("data/x.parquet", b"bytes", TAG)
    store.write("data/x.parquet.units.json", b"{}", METADATA)
    with pytest.raises(PolicyDenied, match="untagged"):
        store.read("data/x.parquet", METADATA)
    assert store.read("data/x.parquet.units.json", METADATA) == b"{}"
    with pytest.raises(ConfigError, match="no key of a store"):
        list(store.list("../"))


def test_a_move_between_filesystems_is_a_copy(store, tmp_path, monkeypatch):
    made = tmp_path / "made"
    made.write_bytes(b"bytes")

    def crossing(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("geodata.stores.local.publish", crossing)
    store.put("data/x", made, TAG)
    assert store.read("data/x", TAG) == b"bytes" and not made.exists()


def test_the_open_store_is_always_gated_and_schemes_are_known(store, tmp_path):
    assert type(store).__name__ == "GatedStore"
    with pytest.raises(ConfigError, match="no store for gopher://"):
        open_store("gopher://x", region="eu", access=store.access)


def create(folder, number, barrier, wins):
    gate = Gate(HomePolicy(), AuditLog(folder / "audit"))
    store = open_store(folder / "store", region="eu", access=Access(gate, "eu", "test"))
    barrier.wait(30)
    if store.create("metadata/v1.json", str(number).encode(), METADATA):
        with wins.get_lock():
            wins.value += 1


def test_one_of_many_creates_wins(store, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(6), context.Value("i", 0)
    racers = [context.Process(target=create, args=(tmp_path, n, barrier, wins)) for n in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert wins.value == 1
    assert store.read("metadata/v1.json", METADATA) in [b"%d" % n for n in range(6)]
    assert [info.key for info in store.list("metadata/")] == ["metadata/v1.json"]
