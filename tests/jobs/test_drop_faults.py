"""A drop that meets damage, another writer, or a kill."""

import pytest
from drop_cases import run
from editing_cases import (
    at_once,
    leftovers,
    make_dataset,
    raw,
    records,
    rows,
    shards,
    version,
)
from pipeline import convert
from posts import make_posts

import geodata
from geodata.catalog import Catalog
from geodata.errors import CommitConflict, ConfigError, CorruptShard
from geodata.partition import rewriting


def test_damage_is_not_written_anew_under_a_fresh_digest(workspace):
    make_dataset(workspace, count=60)
    (name, (_region, one)), *_others = shards(workspace, "data/raw").items()
    key = rows(workspace, "data/raw")[name][0]["__key__"]
    path = workspace / "data/raw" / one.main.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShard):
        run(workspace, raw(workspace), keys=[key])
    assert [v.name for v in (workspace / "data/raw/metadata").glob("v*")] == ["v000001.json"]


def two_shards(root):
    """Return a key of each of two shards of the staging dataset."""
    return [part[0]["__key__"] for part in rows(root, "data/raw").values()][:2]


def test_two_drops_of_different_shards_at_once_both_land(workspace):
    make_dataset(workspace)
    was, keys = records(workspace, "data/raw"), two_shards(workspace)
    codes = at_once(*(lambda key=key: run(workspace, raw(workspace), keys=[key]) for key in keys))
    assert codes == [0, 0]
    assert records(workspace, "data/raw") == {k: v for k, v in was.items() if k not in keys}
    assert [str(v) for v in version(workspace, "data/raw")[0].versions()] == [
        "v000001",
        "v000002",
        "v000003",
    ]
    assert geodata.verify(raw(workspace), workers=1).ok


def test_a_commit_between_index_and_lists_is_not_lost(workspace, monkeypatch):
    make_dataset(workspace)
    was, keys = records(workspace, "data/raw"), two_shards(workspace)
    changed, done = Catalog._changed, []

    def meanwhile(self, latest, change):
        made = changed(self, latest, change)
        if not done:
            done.append(True)
            run(workspace, raw(workspace), keys=[keys[0]])
        return made

    monkeypatch.setattr(Catalog, "_changed", meanwhile)
    assert run(workspace, raw(workspace), keys=[keys[1]]).version == "v000003"
    assert records(workspace, "data/raw") == {k: v for k, v in was.items() if k not in keys}


def test_a_drop_from_a_shard_that_another_writer_took_is_told(workspace, monkeypatch):
    make_dataset(workspace)
    first, second = [row["__key__"] for row in next(iter(rows(workspace, "data/raw").values()))][:2]
    writing, done = rewriting._delivered, []

    def meanwhile(*arguments):
        if not done:
            done.append(True)
            run(workspace, raw(workspace), keys=[first])
        return writing(*arguments)

    monkeypatch.setattr(rewriting, "_delivered", meanwhile)
    with pytest.raises(CommitConflict, match="no longer in v000002.*Run the same command again"):
        run(workspace, raw(workspace), keys=[second])
    assert run(workspace, raw(workspace), keys=[second]).version == "v000003"
    assert not {first, second} & records(workspace, "data/raw").keys()
    assert not leftovers(workspace)


def test_a_kill_after_the_commit_is_no_second_drop(workspace, monkeypatch):
    make_dataset(workspace)
    from geodata.jobs.editing import Edit

    keys = two_shards(workspace)
    with monkeypatch.context() as patched:
        patched.setattr(Edit, "forget", lambda self: None)
        run(workspace, raw(workspace), keys=[keys[0]])
    run(workspace, raw(workspace), keys=[keys[1]])
    report = run(workspace, raw(workspace), keys=[keys[0]])
    assert (report.unchanged, report.version, report.records) == (True, "v000002", 1)
    assert len(version(workspace, "data/raw")[0].versions()) == 3
    assert not leftovers(workspace)


def test_a_conversion_does_not_undo_a_drop_unasked(workspace):
    make_dataset(workspace, count=30)
    run(workspace, raw(workspace), keys=["posts.jsonl#1"])
    make_posts(workspace / "posts.jsonl", count=31)
    with pytest.raises(ConfigError, match="was made by drop"):
        convert(workspace, shard_size=8_000)
    assert convert(workspace, shard_size=8_000, replace=True).version == "v000003"
    assert len(records(workspace, "data/raw")) == 31
