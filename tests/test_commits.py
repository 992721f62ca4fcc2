"""Two processes commit at once, and one is killed between any two steps: nothing is lost."""

import multiprocessing
import shutil
import signal
from dataclasses import replace

import pytest

import geodata
from geodata import durable
from geodata.catalog import Catalog, Change, make_access
from geodata.catalog.damage import find_damage
from geodata.errors import CommitConflict, StoreError
from geodata.jobs.gc import gc
from geodata.jobs.repair import repair
from geodata.tags import STAGING


@pytest.fixture
def made(workspace):
    """A staging dataset of one version."""
    geodata.convert(workspace / "posts.jsonl", workspace / "made", workers=1)
    return workspace / "made"


def open_at(root):
    return Catalog(str(root), make_access(root / "audit", STAGING, "test"))


def change_of(root, name):
    """Return a change that adds a shard of a name: the files of one that is there."""
    catalog = open_at(root)
    first = catalog.shards(catalog.index(), STAGING)[0]
    return Change("test", name, {STAGING: [replace(first, shard_id=name)]})


def amend(root, base, change, *, kill=0, barrier=None):
    if barrier is not None:
        barrier.wait(60)
    if kill:
        durable.kill_at(kill)
    open_at(root).amend(base, change)


def names(root):
    catalog = open_at(root)
    return sorted(shard.shard_id for shard in catalog.shards(catalog.index(), STAGING))


def test_a_writer_killed_at_any_step_beside_another_loses_nothing(made, tmp_path):
    context = multiprocessing.get_context("fork")
    for step in range(1, 100):
        root = shutil.copytree(made, tmp_path / f"at-{step}")
        base, ours, theirs = (
            open_at(root).index(),
            change_of(root, "ours"),
            change_of(root, "other"),
        )
        barrier = context.Barrier(2)
        victim, other = (
            context.Process(target=amend, args=(root, base, change), kwargs=options)
            for change, options in (
                (ours, {"kill": step, "barrier": barrier}),
                (theirs, {"barrier": barrier}),
            )
        )
        for process in (victim, other):
            process.start()
        for process in (victim, other):
            process.join(60)
        assert other.exitcode == 0
        amend(root, base, ours)  # again, whether it had landed or not
        catalog = open_at(root)
        assert [v.number for v in catalog.versions()] == [1, 2, 3]
        indexes = [catalog.exactly(version) for version in catalog.versions()]
        assert [index.parent for index in indexes] == [None, "v000001", "v000002"]
        assert {index.plan_digest for index in indexes[1:]} == {"ours", "other"}
        assert {"ours", "other"} < set(names(root)) and len(names(root)) == len(set(names(root)))
        assert list(find_damage(catalog, catalog.versions())) == []
        assert repair(str(root), workers=1).lost == []
        gc(str(root), grace=0)
        assert not list(root.rglob("*.tmp"))
        assert list(find_damage(catalog, catalog.versions())) == []
        if victim.exitcode == 0:
            break
        assert victim.exitcode == -signal.SIGKILL
    assert 15 < step < 99


def test_both_killed_and_both_again_make_two_versions(made, tmp_path):
    context = multiprocessing.get_context("fork")
    for step in range(3, 20, 4):
        root = shutil.copytree(made, tmp_path / f"at-{step}")
        base, barrier = open_at(root).index(), context.Barrier(2)
        changes = [change_of(root, "one"), change_of(root, "two")]
        victims = [
            context.Process(
                target=amend, args=(root, base, change), kwargs={"kill": step, "barrier": barrier}
            )
            for change in changes
        ]
        for process in victims:
            process.start()
        for process in victims:
            process.join(60)
            assert process.exitcode in (-signal.SIGKILL, 0)  # 0: it had less steps to go
        for change in changes:
            amend(root, base, change)
        assert [v.number for v in open_at(root).versions()] == [1, 2, 3]
        assert {"one", "two"} < set(names(root))


def test_a_writer_that_finds_its_change_below_another_s_does_not_make_it_twice(made):
    base = open_at(made).index()
    amend(made, base, change_of(made, "ours"))
    amend(made, base, change_of(made, "other"))
    landed = open_at(made).amend(base, change_of(made, "ours"))
    assert (landed.version, landed.plan_digest) == ("v000002", "ours")
    assert len(open_at(made).versions()) == 3


def test_a_copy_that_finds_no_room_leaves_the_version_committed(made, monkeypatch, caplog):
    base, change = open_at(made).index(), change_of(made, "ours")
    replacing = durable.replacing

    def full(path):
        if path.name.startswith("v000002-"):
            raise StoreError("cannot write: No space left on device", file=str(path))
        return replacing(path)

    monkeypatch.setattr(durable, "replacing", full)
    assert open_at(made).amend(base, change).version == "v000002"
    monkeypatch.undo()
    assert "v000002 is committed, but not all copies are kept" in caplog.text
    assert list(find_damage(open_at(made), open_at(made).versions())) == []
    (renewed,) = repair(str(made), workers=1).repaired
    assert "copies/v000002-" in renewed["file"]


def test_a_conflict_in_the_same_shard_is_told(made):
    base = open_at(made).index()
    victim = open_at(made).shards(base, STAGING)[0]
    open_at(made).amend(base, Change("test", "gone", {}, [victim]))
    with pytest.raises(CommitConflict, match="no longer in v000002 as it was"):
        open_at(made).amend(base, Change("test", "changed", {}, [victim]))
