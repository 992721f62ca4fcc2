"""The loader: the same global steps at any layout, exact resume, policy at the door."""

import functools
import gc
import json
import logging
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.errors import ConfigError, CorruptShard, OrderMismatch, PolicyDenied
from geodata.loader import build_loader
from geodata.manifest import Index, Version
from geodata.tags import Tag


def build(path, *overrides, **options):
    return build_loader(load_config(path, list(overrides)), **options)


def ids(batch):
    return [i for i in batch["sample"].tolist() if i >= 0]


def epoch_ids(loader):
    return [ids(batch) for batch in loader]


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


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lanes=st.sampled_from([1, 2, 3, 4, 6, 12]),
    split=st.sampled_from([None, "train", "heldout"]),
    data=st.data(),
)
def test_any_layout_any_stops_give_the_same_global_steps(posts_dataset, lanes, split, data):
    overrides = [f"loader.lanes={lanes}"]
    whole = build(posts_dataset, *overrides, split=split)
    expected = epoch_ids(whole) + epoch_ids(whole)
    worlds = [w for w in (1, 2, 3, 5, 7, lanes) if w <= lanes]
    states, step = None, 0
    while step < len(expected):
        world = data.draw(st.sampled_from(worlds))
        run = data.draw(st.integers(1, len(expected)))
        loaders = [
            build(posts_dataset, *overrides, split=split, dp_rank=r, dp_size=world)
            for r in range(world)
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
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(kept) > 3
    assert epoch_ids(build(posts_dataset, split="train", filters=tmp_path)) == first
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == kept


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


def copy_of(posts_dataset, tmp_path):
    shutil.copytree(posts_dataset.parent, tmp_path / "copy")
    return tmp_path / "copy" / "geodata.yaml"


def rewrite(path, change):
    """Commit a revision by hand, as erasure will: `change` maps a shard's table to another."""
    import hashlib

    from geodata import schema as schemas
    from geodata.catalog import Catalog, locate
    from geodata.formats import get_format
    from geodata.manifest import list_bytes
    from geodata.partition import ShardCutter

    config = load_config(path)
    catalog = Catalog.at(locate("posts", config), "test")
    index = catalog.index()
    shards = catalog.shards(index, "eu-central")
    victim = max(shards, key=lambda shard: shard.live)
    store = catalog.store(index, "eu-central")
    old = Path(store.url) / victim.main.path
    form = get_format(index.format)
    reader = form.open(old)
    cutter = ShardCutter(
        form,
        schemas.from_json(index.schema_),
        shard_bytes=1 << 30,
        tag=victim.tag,
        summary={},
        work=path.parent / "work",
        name="x",
    )
    for unit in range(len(reader.unit_slots)):
        cutter.write(change(reader.read_unit(unit)))
    reader.close()
    (sealed,) = cutter.close()
    made = sealed.deliver(store)
    from dataclasses import replace

    made = replace(made, shard_id=victim.shard_id)
    data = list_bytes([made if s.shard_id == victim.shard_id else s for s in shards])
    digest = hashlib.sha256(data).hexdigest()
    key = f"metadata/lists/region=eu-central/{digest}.jsonl"
    (Path(store.url) / key).write_bytes(data)
    record = json.loads(index.to_bytes())
    record["version"], record["parent"] = str(Version(1, 1)), index.version
    record["regions"]["eu-central"]["list"] = {"path": key, "sha256": digest, "bytes": len(data)}
    Index.from_bytes(json.dumps(record).encode(), "x")
    (Path(store.url) / Version(1, 1).key).write_text(json.dumps(record))
    old.unlink()
    return victim


def tombstone(batch, row):
    """Return the batch with one row erased: its slot stays, all its columns are null."""
    import pyarrow as pa

    gone = pa.RecordBatch.from_arrays(
        [pa.nulls(1, field.type) for field in batch.schema], schema=batch.schema
    )
    parts = [batch.slice(0, row), gone, batch.slice(row + 1)]
    return pa.concat_batches(parts)


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


def test_a_later_denial_gives_empty_slots_and_a_later_grant_waits(posts_dataset, monkeypatch):
    expected = epoch_ids(build(posts_dataset, region="us-east"))
    running = build(posts_dataset, region="us-east")
    steps = iter(running)
    for _ in range(3):
        next(steps)
    state, excluded = running.state_dict(), running.excluded
    steps.close()

    from geodata.policy import Decision, HomePolicy

    def strict(self, movement, rules=HomePolicy.decide):
        if movement.tag.region == "ap-northeast" and movement.target == "us-east":
            return Decision(False, "revoked")
        return rules(self, movement)

    monkeypatch.setattr(HomePolicy, "decide", strict)
    stricter = build(posts_dataset, region="us-east")
    assert stricter.excluded != excluded
    with pytest.raises(OrderMismatch, match="excluded shards"):
        stricter.load_state_dict(state)
    stricter.load_state_dict(state, excluded)
    rest = epoch_ids(stricter)
    assert len(rest) == len(expected) - 3
    for got, whole in zip(rest, expected[3:], strict=True):
        assert [i for i in whole if i in set(got)] == got
    assert sum(map(len, rest)) < sum(map(len, expected[3:]))
    fewer = epoch_ids(stricter)
    assert len(sum(fewer, [])) < len(sum(expected, []))

    late_state, late_excluded = stricter.state_dict(), stricter.excluded
    monkeypatch.undo()
    granted = build(posts_dataset, region="us-east")
    granted.load_state_dict(late_state, late_excluded)
    assert epoch_ids(granted) == sorted_epoch(granted, 2)


def sorted_epoch(loader, epoch):
    other = pickle.loads(pickle.dumps(loader.state_dict()))
    assert other["epoch"] == epoch
    loader.load_state_dict({**other, "slot": 0}, loader.excluded)
    return epoch_ids(loader)


def test_a_region_that_may_see_nothing_is_told_so(posts_dataset, tmp_path, monkeypatch):
    from geodata.policy import Decision, HomePolicy

    monkeypatch.setattr(
        HomePolicy,
        "decide",
        lambda self, movement: Decision(
            movement.tag is not None and movement.tag.kind == "metadata", "test"
        ),
    )
    with pytest.raises(ConfigError, match="may read no record of 'posts'"):
        build(posts_dataset)


def test_what_a_region_may_not_read_is_counted(posts_dataset, caplog):
    caplog.set_level(logging.INFO, "geodata.loader")
    loader = build(posts_dataset, region="us-east")
    told = [r.getMessage() for r in caplog.records]
    assert f"us-east may read {loader.records} records" in told
    assert any("us-east may not read" in text and "home-only" in text for text in told)


def test_every_shard_passes_the_gate_once_an_epoch(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    shutil.rmtree(path.parent / "audit")
    loader = build(path)
    epoch_ids(loader)
    epoch_ids(loader)
    reads = [
        e["subject"]
        for segment in (path.parent / "audit").iterdir()
        for e in read_segment(segment)
        if e.get("action") == "read" and "records" in e and e["allowed"]
    ]
    homes = {s["shard_id"] for s in loader.lineage()["shards"]}
    assert set(reads) == homes
    assert {reads.count(name) for name in homes} == {2}


def test_an_audit_that_cannot_be_written_stops_the_reading(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    shutil.rmtree(path.parent / "audit")
    (path.parent / "audit").write_text("a file in its place")
    with pytest.raises(Exception, match="audit log cannot be written"):
        epoch_ids(build(path))


def test_lineage_names_the_shards_and_the_strictest_tag(posts_dataset):
    lineage = build(posts_dataset).lineage()
    assert (lineage["dataset"], lineage["version"]) == ("posts", "v000001")
    tag = Tag.from_json(lineage["tag"])
    assert (tag.kind, tag.region, tag.data_category) == ("derived", "eu-central", "PersonalData")
    listed = {
        s.shard for s in geodata.list_files("posts", config=load_config(posts_dataset)).shards
    }
    assert {s["shard_id"] for s in lineage["shards"]} | set(lineage["excluded"]) == listed


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


def test_a_denied_shard_never_enters_the_cache(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    shutil.rmtree(path.parent / "cache", ignore_errors=True)
    loader = build(path, region="us-east")
    epoch_ids(loader)
    held = {p.name for p in (path.parent / "cache/us-east/objects").rglob("*") if p.is_file()}
    config = load_config(path)
    from geodata.catalog import Catalog, locate

    catalog = Catalog.at(locate("posts", config), "test")
    index = catalog.index()
    denied = [
        s for r in index.regions for s in catalog.shards(index, r) if s.shard_id in loader.excluded
    ]
    assert denied
    assert held.isdisjoint({s.main.sha256 for s in denied})


def test_the_gate_denies_reading_past_the_loader(posts_dataset):
    from geodata.catalog import Catalog, locate, make_access

    config = load_config(posts_dataset)
    place = locate("posts", config)
    catalog = Catalog(place.root, make_access(place.audit, "us-east", "test"))
    index = catalog.index()
    store = catalog.store(index, "eu-central")
    personal = next(s for s in catalog.shards(index, "eu-central") if s.tag.personal)
    for call in (
        lambda: store.read(personal.main.path, personal.tag),
        lambda: store.local_path(personal.main.path, personal.tag),
        lambda: store.fetch(personal.main.path, Path("x"), personal.tag),
        lambda: store.read(personal.main.path, None),
    ):
        with pytest.raises(PolicyDenied):
            call()


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


def test_a_budget_below_the_working_set_is_refused_with_the_minimum(posts_dataset):
    with pytest.raises(ConfigError, match=rf"memory_budget to at least {12 << 22}"):
        build(posts_dataset, "loader.memory_budget=1MiB")


def test_a_rank_whose_every_shard_is_denied_reads_nothing(posts_dataset, monkeypatch):
    from geodata.policy import Decision, HomePolicy

    before = build(posts_dataset)
    state, excluded = before.state_dict(), before.excluded

    def closed(self, movement, rules=HomePolicy.decide):
        if movement.tag.kind == "data" and movement.action != "verify":
            return Decision(movement.subject == free, "revoked")
        return rules(self, movement)

    free = before.lineage()["shards"][0]["shard_id"]
    monkeypatch.setattr(HomePolicy, "decide", closed)
    for rank in range(12):
        loader = build(posts_dataset, dp_rank=rank, dp_size=12)
        loader.load_state_dict(state, excluded)
        assert loader.denied_records > 0
        for batch in loader:
            assert len(batch["weight"]) == 1


def test_denials_are_in_the_audit(posts_dataset, tmp_path):
    path = copy_of(posts_dataset, tmp_path)
    shutil.rmtree(path.parent / "audit")
    loader = build(path, region="us-east")
    epoch_ids(loader)
    events = [e for s in (path.parent / "audit").iterdir() for e in read_segment(s)]
    denied = [e for e in events if e.get("allowed") is False]
    assert {e["subject"] for e in denied} == set(loader.excluded)
    assert sum(e["records"] for e in denied) == loader.denied_records > 0
    standing = next(e for e in events if e["event"] == "standing")
    assert (standing["here"], standing["region"]) == ("eu-central", "us-east")


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
