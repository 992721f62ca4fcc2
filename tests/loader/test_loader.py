"""The loader: the same global steps at any layout, and exact resume."""

import functools
import gc
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading import build, copy_of, epoch_ids, ids, rewrite, tombstone

import geodata
from geodata.config import load_config
from geodata.errors import ConfigError, OrderMismatch


def test_an_epoch_holds_each_permitted_record_once(posts_dataset):
    config = load_config(posts_dataset)
    rows = [
        (s.region, row)
        for s in geodata.list_files("posts", config=config).shards
        for row in pq.read_table(s.file).to_pylist()
    ]
    for region, other in (("eu-central", "us-east"), ("us-east", "eu-central")):
        loader = build(posts_dataset, region=region)
        seen = [
            likes
            for batch in loader
            for likes, w in zip(batch["likes"].tolist(), batch["weight"].tolist(), strict=True)
            if w
        ]
        assert loader.records == len(seen)
        may = [row["likes"] for home, row in rows if home == region]
        mine = set(seen)
        assert set(may) <= mine
        foreign = [row for home, row in rows if home == other]
        personal = [row["likes"] for row in foreign if row["__subject__"]]
        free = [
            row["likes"]
            for row in foreign
            if row["country"] and not row["__subject__"] and row["country"] != "BR"
        ]
        assert mine.isdisjoint(personal) and personal
        assert set(free) <= mine and free


@pytest.fixture(scope="module")
def both_datasets(posts_dataset, tmp_path_factory):
    """The dataset as it was committed, and after an erasure of two records."""
    erased = copy_of(posts_dataset, tmp_path_factory.mktemp("erased"))
    rewrite(erased, lambda batch: tombstone(tombstone(batch, 2), 5))
    return [posts_dataset, erased]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    erased=st.booleans(),
    lanes=st.sampled_from([1, 2, 3, 4, 6, 12]),
    batch=st.sampled_from([12, 24, 36]),
    split=st.sampled_from([None, "train", "heldout"]),
    data=st.data(),
)
def test_any_layout_any_stops_give_the_same_global_steps(
    both_datasets, erased, lanes, batch, split, data
):
    dataset = both_datasets[erased]
    overrides = [f"loader.lanes={lanes}", f"loader.global_batch={batch}"]
    whole = build(dataset, *overrides, split=split)
    expected = epoch_ids(whole) + epoch_ids(whole)
    worlds = [w for w in (1, 2, 3, 5, 7, lanes) if w <= lanes]
    states, step = None, 0
    while step < len(expected):
        world = data.draw(st.sampled_from(worlds))
        run = data.draw(st.integers(1 + len(expected) // 6, len(expected)))
        workers = data.draw(st.sampled_from([0, 2])) if world == 1 else 0
        layout = [*overrides, f"loader.workers={workers}"]
        loaders = [
            build(dataset, *layout, split=split, dp_rank=r, dp_size=world) for r in range(world)
        ]
        for loader in loaders:
            if states is not None:
                loader.load_state_dict(json.loads(json.dumps(states)))
        while run > 0 and step < len(expected):
            for batches in zip(*loaders, strict=True):
                assert [i for batch in batches for i in ids(batch)] == expected[step]
                assert len({len(batch["weight"]) for batch in batches}) == 1
                step, run = step + 1, run - 1
                states = loaders[0].state_dict()
                assert all(loader.state_dict() == states for loader in loaders)
                if run == 0 or step == len(expected):
                    break
        gc.collect()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_change_the_order(posts_dataset, method):
    alone = build(posts_dataset)
    several = build(posts_dataset, "loader.workers=2", f"loader.start_method={method}")
    for one, other in zip(alone, several, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]), name


def test_resume_at_the_very_end_of_an_epoch_begins_the_next(posts_dataset):
    first = build(posts_dataset)
    epochs = [epoch_ids(first) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(sum(epochs[0], [])) == sorted(sum(epochs[1], []))
    stopped = build(posts_dataset)
    for _batch in stopped:
        pass
    resumed = build(posts_dataset)
    resumed.load_state_dict(stopped.state_dict())
    assert epoch_ids(resumed) == epochs[1]
    assert epoch_ids(stopped) == epochs[1]


@pytest.mark.parametrize(
    ("override", "field"),
    [("loader.seed=8", "seed"), ("loader.lanes=6", "lanes"), ("loader.split.seed=1", "filter")],
)
def test_another_order_is_refused_naming_the_field(posts_dataset, override, field):
    state = build(posts_dataset, split="train").state_dict()
    with pytest.raises(OrderMismatch, match=rf"another order: {field} was"):
        build(posts_dataset, override, split="train").load_state_dict(state)


def test_more_ranks_than_lanes_are_refused_before_the_first_step(posts_dataset):
    with pytest.raises(ConfigError, match="6 lanes cannot serve 7 ranks"):
        build(posts_dataset, "loader.lanes=6", dp_rank=0, dp_size=7)


def test_the_splits_are_disjoint_and_complete(posts_dataset):
    parts = {}
    for split in ("train", "heldout", None):
        parts[split] = sorted(sum(epoch_ids(build(posts_dataset, split=split)), []))
    assert sorted(parts["train"] + parts["heldout"]) == parts[None]
    assert 0.03 < len(parts["heldout"]) / len(parts[None]) < 0.2


def test_a_condition_filters_rows_with_exact_length(posts_dataset):
    loader = build(posts_dataset, "loader.where={field: country, in: [DE]}")
    found = sum(epoch_ids(loader), [])
    config = load_config(posts_dataset)
    rows = [
        row
        for s in geodata.list_files("posts", config=config).shards
        for row in pq.read_table(s.file).to_pylist()
    ]
    assert len(found) == loader.records == sum(row["country"] == "DE" for row in rows) > 10


def test_filters_are_evaluated_once_and_kept(posts_dataset, tmp_path):
    first = epoch_ids(build(posts_dataset, split="train", filters=tmp_path))
    kept = {path: path.read_bytes() for path in tmp_path.glob("v000001/*")}
    assert len(kept) > 3
    assert epoch_ids(build(posts_dataset, split="train", filters=tmp_path)) == first
    assert {path: path.read_bytes() for path in tmp_path.glob("v000001/*")} == kept


def test_text_becomes_bytes_with_an_end_and_padding(posts_dataset):
    loader = build(posts_dataset)
    assert (loader.vocab_size, loader.eos_id) == (257, 256)
    config = load_config(posts_dataset)
    texts = {
        row["likes"]: row["text"]
        for s in geodata.list_files("posts", config=config).shards
        for row in pq.read_table(s.file).to_pylist()
    }
    cropped = 0
    for batch in loader:
        assert batch["tokens"].shape == batch["labels"].shape
        for row in np.flatnonzero(batch["weight"].numpy()):
            labels = batch["labels"][row]
            real = labels[labels != -100].tolist()
            raw = [*texts[int(batch["likes"][row])].encode(), 256]
            if len(raw) == 1:
                assert real == []  # an empty text has nothing to learn
            elif len(raw) <= 64:
                assert real == raw
            else:
                cropped += 1
                assert len(real) == 64
                assert any(raw[i : i + 64] == real for i in range(len(raw) - 63))
            assert (batch["tokens"][row][labels != -100] == labels[labels != -100]).all()
    assert cropped > 10


def test_crops_depend_on_the_sample_not_on_the_layout(posts_dataset):
    def texts(world):
        found = {}
        for rank in range(world):
            for batch in build(posts_dataset, dp_rank=rank, dp_size=world):
                for sample, labels in zip(batch["sample"].tolist(), batch["labels"], strict=True):
                    found[sample] = labels[labels != -100].tolist()
        return {key: value for key, value in found.items() if key >= 0}

    assert texts(1) == texts(3)


def test_a_reader_follows_an_erasure_and_the_slots_stay(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    expected = epoch_ids(build(path, "regions.eu-central.cache=null"))
    running = build(path, "regions.eu-central.cache=null")
    state = running.state_dict()
    victim = rewrite(path, lambda batch: tombstone(batch, 3))
    assert victim.live > 10
    for loader in (running, build(path, "regions.eu-central.cache=null")):
        loader.load_state_dict(state)
        after = epoch_ids(loader)
        assert len(after) == len(expected)
        missing = set(sum(expected, [])) - set(sum(after, []))
        assert len(missing) == 1
        assert [[i for i in step if i not in missing] for step in expected] == after
        assert loader.state_dict()["epoch"] == 0


def test_a_run_stays_with_its_version(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    expected = epoch_ids(build(path))
    running = build(path)
    steps = iter(running)
    for _ in range(4):
        next(steps)
    state = running.state_dict()
    steps.close()
    config = load_config(path)
    geodata.shard(str(path.parent / "data/raw"), config=config, shard_size=9_000, workers=1)
    newer = build(path)
    assert newer.lineage()["version"] == "v000002"
    newer.load_state_dict(state)
    assert newer.lineage()["version"] == "v000001"
    assert epoch_ids(newer) == expected[4:]
    with pytest.raises(OrderMismatch, match="version was v000001, is v000002"):
        build(path, "loader.version=v2").load_state_dict(state)


def test_a_filter_that_can_no_longer_be_evaluated_alike_is_refused(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    cache = "regions.eu-central.cache=null"
    state = build(path, cache, split="train").state_dict()
    kept = build(path, cache, split="train", filters=tmp_path / "filters").state_dict()
    rewrite(path, lambda batch: functools.reduce(tombstone, range(batch.num_rows), batch))
    build(path, cache, split="train", filters=tmp_path / "filters").load_state_dict(kept)
    fresh = build(path, cache, split="heldout")
    lost = build(path, cache, split="train")
    for loader in (fresh, lost):
        with pytest.raises(OrderMismatch, match="filter was"):
            loader.load_state_dict(state)


def test_a_filter_that_keeps_nothing_is_told(posts_dataset):
    with pytest.raises(ConfigError, match=r"no record .* is left"):
        list(build(posts_dataset, "loader.where={field: country, equals: XX}"))
