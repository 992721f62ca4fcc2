"""Policy at the loader's door: what a region may read, counted and written down."""

import logging
import pickle
import shutil
from pathlib import Path

import pytest
from loading import build, copy_of, epoch_ids

import geodata
from geodata.audit import read_segment
from geodata.config import load_config
from geodata.errors import ConfigError, OrderMismatch, PolicyDenied
from geodata.tags import Tag


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
