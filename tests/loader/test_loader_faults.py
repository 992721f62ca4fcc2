"""Damage, full disks, hasty caches and odd columns: one clear error, or time only."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from loading import build, copy_of, epoch_ids

import geodata
from geodata.config import load_config
from geodata.errors import ConfigError, CorruptShard, OrderMismatch
from geodata.loader import build_loader


def test_a_missing_shard_is_one_clear_error(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    config = load_config(path)
    gone = geodata.list_files("posts", config=config).shards[2]
    Path(gone.file).unlink()
    with pytest.raises(Exception, match=f"missing.*{gone.shard}"):
        epoch_ids(build(path, "regions.eu-central.cache=null", f"here={gone.region}"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_shard_is_one_clear_error(posts_dataset, tmp_path, workers):
    path = copy_of(posts_dataset, tmp_path)
    listing = geodata.list_files("posts", config=load_config(path))
    victim = next(s for s in listing.shards if s.region == "eu-central")
    data = Path(victim.file).read_bytes()
    Path(victim.file).write_bytes(data[:-100])
    shutil.rmtree(path.parent / "cache", ignore_errors=True)
    for cache in ([], ["regions.eu-central.cache=null"]):
        with pytest.raises(CorruptShard, match=r"another digest|bytes, not") as caught:
            epoch_ids(build(path, f"loader.workers={workers}", *cache))
        assert caught.value.fields["shard"] == victim.shard
        assert "\n" not in str(caught.value)


def test_the_cache_serves_and_stays_bounded(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    shutil.rmtree(path.parent / "cache", ignore_errors=True)
    loader = build(path)
    first = epoch_ids(loader)
    held = [p for p in (path.parent / "cache/eu-central/objects").rglob("*") if p.is_file()]
    assert {p.name for p in held} == {s["sha256"] for s in loader.lineage()["shards"]}
    with pytest.raises(ConfigError, match=r"cannot hold a shard.*cache\.size to at least"):
        epoch_ids(build(path, "regions.eu-central.cache.size=100"))
    assert epoch_ids(build(path)) == first


def test_a_budget_below_the_working_set_is_refused_with_the_minimum(posts_dataset):
    with pytest.raises(ConfigError, match=rf"memory_budget to at least {12 << 22}"):
        build(posts_dataset, "loader.memory_budget=1MiB")


def test_a_column_cannot_take_the_place_of_a_part_of_the_batch(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"text": f"t{n}", "labels": n, "weight": n, "n": n}) for n in range(9)]
    Path("x.jsonl").write_text("\n".join(rows))
    Path("geodata.yaml").write_text(
        "dataset: {name: x, root: d/x}\nhere: eu\nregions: {eu: {jurisdiction: DE}}\n"
        "tagging: {region: {constant: eu}}\nloader: {global_batch: 4}\n"
    )
    geodata.convert("x.jsonl", "d/raw", workers=1)
    geodata.shard("d/raw", config=load_config(Path("geodata.yaml")), workers=1)
    loader = build_loader("geodata.yaml")
    assert "labels, weight" in caplog.text
    for batch in loader:
        assert batch["labels"].shape == batch["tokens"].shape
        assert set(batch) == {"tokens", "labels", "weight", "sample", "n"}
    with pytest.raises(ConfigError, match="'labels' has the name of a part"):
        build_loader(load_config(Path("geodata.yaml"), ["loader.columns=[text, labels]"]))


def test_unsigned_numbers_and_absent_labels(tmp_path, monkeypatch):
    import pyarrow as pa

    monkeypatch.chdir(tmp_path)
    numbers = {
        f"u{bits}": pa.array([1, None, 3], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)
    }
    flags = pa.array([True, None, False])
    pq.write_table(pa.table({**numbers, "flag": flags}), "x.parquet")
    Path("geodata.yaml").write_text(
        "dataset: {name: x, root: d/x}\nhere: eu\nregions: {eu: {jurisdiction: DE}}\n"
        "tagging: {region: {constant: eu}}\nloader: {global_batch: 4}\n"
    )
    geodata.convert("x.parquet", "d/raw", workers=1)
    geodata.shard("d/raw", config=load_config(Path("geodata.yaml")), workers=1)
    (batch,) = build_loader("geodata.yaml")
    for name in numbers:
        assert sorted(int(n) for n in batch[name].tolist()) == [0, 0, 1, 3]
    assert batch["flag"].sum() == 1


class Hasty:
    """A cache whose entries are evicted before anyone can open them."""

    def __init__(self, cache):
        self._cache = cache

    def __getattr__(self, name):
        return getattr(self._cache, name)

    def get(self, sha256, nbytes, fill):
        path = self._cache.get(sha256, nbytes, fill)
        path.unlink()
        return path


def test_eviction_before_the_open_costs_time_only(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    expected = epoch_ids(build(path))
    loader = build(path)
    loader._stream._cache = Hasty(loader._cache)
    assert epoch_ids(loader) == expected


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_a_damaged_cache_entry_is_fetched_anew(posts_dataset, tmp_path, form):
    path = copy_of(posts_dataset, tmp_path)
    config = load_config(path)
    raw = str(path.parent / "data/raw")
    geodata.shard(raw, config=config, format=form, workers=1, shard_size=5_000)
    expected = epoch_ids(build(path))
    entries = [p for p in (path.parent / "cache/eu-central/objects").rglob("*") if p.is_file()]
    for entry in entries:
        entry.write_bytes(b"\0" * entry.stat().st_size)
    assert epoch_ids(build(path)) == expected


def test_a_cache_that_may_only_be_read_is_passed_by(posts_dataset, tmp_path, monkeypatch):
    path = copy_of(posts_dataset, tmp_path)
    expected = epoch_ids(build(path))
    shutil.rmtree(path.parent / "cache")
    loader = build(path)
    import os

    real = os.open

    def refuse(name, *args, **kwargs):
        if "locks" in str(name):
            raise PermissionError(13, "Permission denied")
        return real(name, *args, **kwargs)

    monkeypatch.setattr("geodata.cache.nvme.os.open", refuse)
    assert epoch_ids(loader) == expected


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("loader.columns=[country, likes]", "'country' is string, which is no tensor"),
        ("loader.columns=[lykes]", "no column 'lykes'"),
        ("loader.text={column: likes}", "'likes' is int64, not text"),
        ("loader.image={column: text}", "'text' is string, not an image"),
    ],
)
def test_columns_that_cannot_be_served_are_refused(posts_dataset, override, told):
    with pytest.raises(ConfigError, match=told):
        build(posts_dataset, override)


def test_a_second_iteration_ends_the_first(posts_dataset):
    loader = build(posts_dataset)
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="newer iteration"):
        next(first)
    with pytest.raises(OrderMismatch, match="no mapping"):
        loader.load_state_dict(None)
    with pytest.raises(OrderMismatch, match="damaged"):
        loader.load_state_dict({**loader.state_dict(), "slot": 1.5})


@pytest.mark.parametrize("form", ["webdataset", "tfrecord"])
def test_a_damaged_index_is_refused_where_it_lies(workspace, form):
    geodata.convert(workspace / "posts.jsonl", workspace / "raw", format=form, workers=1)
    config = load_config(workspace / "geodata.yaml", ["regions.eu-central.cache=null"])
    geodata.shard(str(workspace / "raw"), config=config, workers=1)
    assert len(list(build_loader(config))) > 10
    for index in (workspace / "data/posts").rglob("*.index"):
        data = bytearray(index.read_bytes())
        data[len(data) // 2] ^= 1
        index.write_bytes(data)
    with pytest.raises(CorruptShard, match=r"does not match its digest.*\.index"):
        list(build_loader(config))


def test_a_cache_that_cannot_be_written_is_none(posts_dataset, monkeypatch, caplog):
    from geodata.cache import tiers
    from geodata.errors import StoreError

    def read_only(*_arguments):
        raise StoreError("cannot write: Read-only file system", file="cache")

    expected = epoch_ids(build(posts_dataset))
    monkeypatch.setattr(tiers, "NvmeCache", read_only)
    assert epoch_ids(build(posts_dataset)) == expected
    assert "no cache: cannot write: Read-only file system" in caplog.text


def test_a_cache_in_a_files_place_is_a_mistake(posts_dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache\.nvme is no folder"):
        build(posts_dataset, f"regions.eu-central.cache.nvme={tmp_path / 'file'}")
