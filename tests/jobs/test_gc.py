"""What goes: that which no version, no repair and no job that may go on needs."""

import fcntl
import json
import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from damaging import age, garble
from editing_cases import config_of, make_dataset
from pipeline import convert, shard
from version_cases import contents, data_files, make_twice

import geodata
from geodata import durable
from geodata.catalog import locate
from geodata.errors import ConfigError, StoreError
from geodata.jobs import gc as gc_module
from geodata.jobs.base import JobFolder
from geodata.jobs.gc import gc, versions_held
from geodata.jobs.history import history
from geodata.jobs.repair import repair
from geodata.jobs.rollback import rollback


@pytest.fixture
def twice(workspace):
    return make_twice(workspace)


def test_gc_removes_exactly_what_no_version_needs(twice):
    config, needed = config_of(twice), data_files(twice)
    folder = twice / "data/posts/data/region=us-east"
    (folder / "leftover-0123.tar").write_bytes(b"1" * 100)
    (folder / ".half.tar.123-ab.tmp").write_bytes(b"1" * 10)
    fresh = gc("posts", config=config)
    assert (fresh.files, fresh.young) == ({}, 2)
    age(twice / "data/posts")
    dry = gc("posts", config=config, dry_run=True)
    assert (dry.files, dry.bytes) == ({"data": 1, "unfinished": 1}, {"data": 100, "unfinished": 10})
    assert data_files(twice) > needed
    assert gc("posts", config=config).files == dry.files
    assert data_files(twice) == needed
    assert gc("posts", config=config).files == {}
    assert geodata.verify("posts@v1", config=config, workers=1).ok


def test_gc_gives_up_old_versions_only_when_asked(twice):
    config, kept = config_of(twice), contents(twice)
    age(twice / "data/posts")
    report = gc("posts", config=config, keep=1)
    assert (report.versions, report.kept) == (["v000001"], ["v000002"])
    assert report.files["versions"] == 1 and report.files["data"] > 3
    assert [v.version for v in history("posts", config=config).versions] == ["v000002"]
    assert history("posts", config=config).versions[0].added is not None
    assert contents(twice) == kept
    assert geodata.verify("posts", config=config, workers=1).ok
    names = {Path(s.file).name for s in geodata.list_files("posts", config=config).shards}
    assert {name for name in data_files(twice) if name.endswith(".tar")} == names
    with pytest.raises(ConfigError, match="not of a version"):
        gc("posts@v2", config=config)


def test_gc_leaves_what_a_job_has_made_that_may_go_on(twice):
    """Files of a killed job stay while it may go on, and go with it when it is too old."""
    config = config_of(twice)
    key = "data/region=us-east/0123456789-0123.tar"
    made = twice / "data/posts" / key
    made.write_bytes(b"a shard")
    age(twice / "data/posts")
    job = twice / "data/posts/.jobs/append-1"
    job.mkdir(parents=True)
    line = json.dumps({"files": {"main": {"path": key}}})
    (job / "task-1.json").write_text(json.dumps({"shards": [line]}))
    report = gc("posts", config=config)
    assert (report.jobs, report.files, made.exists()) == ([], {}, True)
    age(job)
    with (job / "lock").open("w") as lock:
        age(job)
        fcntl.flock(lock, fcntl.LOCK_EX)  # it runs, for longer than the grace period
        assert gc("posts", config=config).jobs == []
    report = gc("posts", config=config)
    assert report.jobs == ["append-1"]
    assert report.files == {"jobs": 1, "data": 1}
    assert not made.exists() and not job.exists()


def test_gc_leaves_what_a_running_job_delivers_before_it_tells(twice):
    """Without a grace period too: only what is older than the job that runs is nobody's."""
    config = config_of(twice)
    folder = twice / "data/posts/data/region=us-east"
    (folder / "0123456789-0123.tar").write_bytes(b"an orphan")
    age(twice / "data/posts")
    job, other = JobFolder(twice / "data/posts", "drop-1"), twice / "data/posts/.jobs/drop-2"
    other.mkdir(parents=True)
    with job.held():
        (folder / "9876543210-9876.tar").write_bytes(b"delivered")
        time.sleep(0.05)
        report = gc("posts", config=config, grace=0)
        assert (report.files, report.young) == ({"data": 1, "jobs": 1}, 1)
        assert (report.jobs, other.exists(), job.path.exists()) == (["drop-2"], False, True)
        assert (folder / "9876543210-9876.tar").exists()
    report = gc("posts", config=config, grace=0)
    assert (report.jobs, report.files) == (["drop-1"], {"jobs": 1, "data": 1})


def kill_when_delivered(root, **options):
    """Kill a run of `shard` when it has delivered, and stored that it has; return the files."""
    context = multiprocessing.get_context("fork")
    results = root / "data/raw/.jobs"

    def run():
        durable.on_point = lambda _name: (
            any(results.glob("*/write-*.json")) and os.kill(os.getpid(), signal.SIGKILL)
        )
        shard(root, **options)

    before = data_files(root)
    victim = context.Process(target=run)
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    assert data_files(root) > before
    return data_files(root) - before


@pytest.mark.parametrize("given_up", [False, True])
def test_what_shard_delivered_stays_while_its_job_in_the_staging_dataset_may_go_on(twice, given_up):
    config, before = config_of(twice), data_files(twice)
    delivered = kill_when_delivered(twice, seed=2)
    age(twice / "data/posts")
    if given_up:
        age(twice / "data/raw")
    dry = gc("posts", config=config, dry_run=True)
    assert gc("posts", config=config).to_json() == {**dry.to_json(), "dry_run": False}
    assert data_files(twice) == (before if given_up else before | delivered)
    assert len(dry.jobs) == given_up
    assert shard(twice, seed=2).version == "v000003"
    assert geodata.verify("posts", config=config, workers=1).ok
    assert not any((twice / "data/posts/.jobs").iterdir())


def test_gc_waits_for_a_job_that_begins_again(twice, monkeypatch):
    """A job found to be over goes on while gc is at work: nothing is taken from under it."""
    kill_when_delivered(twice, seed=2)
    age(twice / "data")
    files = data_files(twice)
    (job,) = (twice / "data/raw/.jobs").glob("shard-*")
    monkeypatch.setattr("geodata.jobs.deliveries._held_since", lambda _folder: None)
    with JobFolder(twice / "data/raw", job.name).held():
        age(twice / "data")
        with pytest.raises(StoreError, match="running in another process"):
            gc("posts", config=config_of(twice))
    assert data_files(twice) == files


def test_gc_beside_jobs_whose_files_come_and_go(twice, monkeypatch):
    job = twice / "data/posts/.jobs/append-1"
    (job / "work-1").mkdir(parents=True)
    for name in ("task-1.json", "work-1/half.tar"):
        (job / name).write_text("{}")
    walk = os.walk

    def walked(top, *rest):
        found = list(walk(top, *rest))
        if Path(top) == job:
            (job / "task-1.json").unlink(missing_ok=True)
            (job / "work-1/half.tar").unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(os, "walk", walked)
    assert gc("posts", config=config_of(twice)).files == {}
    assert job.exists()


def test_gc_and_rollback_exclude_each_other(twice):
    config = config_of(twice)
    with versions_held(locate("posts", config)):
        with pytest.raises(StoreError, match="running in another process"):
            rollback("posts@v1", config=config)
        with pytest.raises(StoreError, match="running in another process"):
            gc("posts", config=config, keep=1)
        assert rollback("posts@v1", config=config, dry_run=True).version is None
    assert rollback("posts@v1", config=config).version == "v000003"


def test_gc_counts_and_removes_what_lies_with_the_index_once(workspace):
    """Also where each region has a root of its own, and of versions that lay elsewhere."""
    config = workspace / "geodata.yaml"
    text = config.read_text()
    roots = {"jurisdiction: DE,": "jurisdiction: DE, root: eu,"}
    roots["jurisdiction: US,"] = "jurisdiction: US, root: us,"
    for before, after in roots.items():
        text = text.replace(before, after)
    config.write_text(text)
    convert(workspace)
    shard(workspace)
    config.write_text(text.replace("root: eu,", "root: europe,"))
    shard(workspace, seed=1)
    (workspace / "data/posts/metadata/sources/left.jsonl").write_text("{}")
    (workspace / "data/posts/metadata/.v000003.json.1-2.tmp").write_text("{")
    for root in ("data/posts", "eu", "europe", "us"):
        age(workspace / root)
    dry = gc("posts", config=config_of(workspace), dry_run=True)
    assert (dry.files["sources"], dry.files["unfinished"]) == (1, 1)
    assert gc("posts", config=config_of(workspace)).files == dry.files
    assert gc("posts", config=config_of(workspace), keep=1).files["data"] > 1
    assert not [path for path in (workspace / "eu").rglob("*") if path.is_file()]
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_the_copy_that_is_left_of_an_index_stays(workspace):
    """That beside the index is gone, the one with a region's bytes brings the index back."""
    make_dataset(workspace, count=24)
    root = workspace / "data/posts/metadata"
    whole = (root / "v000001.json").read_bytes()
    next((root / "copies").glob("v000001-*.json")).unlink()
    age(workspace)
    assert gc("posts", config=config_of(workspace)).files == {}
    garble(root / "v000001.json")
    assert repair("posts", config=config_of(workspace), workers=1).ok
    assert (root / "v000001.json").read_bytes() == whole


def test_copies_that_a_commit_finds_there_while_gc_runs_stay(workspace, monkeypatch):
    """The commit does not write them again, and they are old, and of a version given up."""
    make_dataset(workspace, count=24)
    (workspace / "more.jsonl").write_text('{"text": "more"}\n')
    raw, source = str(workspace / "data/raw"), workspace / "more.jsonl"
    append = partial(geodata.append, source, raw, workers=1)
    append()
    rollback(f"{raw}@v1")
    age(workspace / "data")
    swept, done = gc_module._sweep, []

    def meanwhile(*arguments):
        if not done:
            done.append(append())
        return swept(*arguments)

    monkeypatch.setattr(gc_module, "_sweep", meanwhile)
    assert gc(raw, keep=1).versions == ["v000001", "v000002"]
    assert done[0].version == "v000004"
    assert not repair(raw, workers=1).repaired
