"""Versions: which there are, back to one, what goes, what can be made anew."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from pipeline import convert, killed_at, shard

import geodata
from geodata import durable
from geodata.catalog import Catalog, locate
from geodata.config import load_config
from geodata.errors import ConfigError, ObjectNotFound, StoreError
from geodata.jobs.base import JobFolder
from geodata.jobs.gc import gc, versions_held
from geodata.jobs.history import history
from geodata.jobs.repair import repair
from geodata.jobs.rollback import rollback


@pytest.fixture
def twice(workspace):
    """The posts, sharded by two seeds: two versions of the same records in other shards."""
    convert(workspace, format="webdataset")
    shard(workspace)
    shard(workspace, seed=1)
    return workspace


def config_of(root):
    return load_config(root / "geodata.yaml")


def shards_here(config):
    """Return the shards whose records may be read in this region."""
    return [s for s in geodata.list_files("posts", config=config).shards if s.region == config.here]


def contents(root, reference="posts"):
    """Return shard ids and records of a version."""
    report = geodata.inspect(reference, config=config_of(root), head=400)
    listing = geodata.list_files(reference, config=config_of(root))
    return {s.shard for s in listing.shards}, sorted(row["__key__"] for row in report.head)


def data_files(root):
    return {p.name for p in (root / "data/posts/data").rglob("*") if p.is_file()}


def age(folder, seconds=200_000):
    then = time.time() - seconds
    for path in Path(folder).rglob("*"):
        os.utime(path, (then, then))


def test_history_tells_what_made_each_version(twice):
    report = history("posts", config=config_of(twice))
    first, second = report.versions
    assert (first.version, first.parent, first.operation) == ("v000001", None, "shard")
    assert (second.version, second.parent) == ("v000002", "v000001")
    assert first.records == second.records == 300
    assert (first.added, first.removed) == (first.shards, 0)
    assert second.added == second.shards and second.removed == first.shards
    (raw,) = history(str(twice / "data/raw")).versions
    assert (raw.operation, raw.records) == ("convert", 300)


def test_back_to_a_version_and_forth(twice):
    config, before = config_of(twice), contents(twice, "posts@v1")
    dry = rollback("posts@v1", config=config, dry_run=True)
    assert (dry.version, dry.of, dry.before) == (None, "v000001", "v000002")
    assert len(history("posts", config=config).versions) == 2
    done = rollback("posts@v1", config=config)
    assert (done.version, done.unchanged) == ("v000003", False)
    assert contents(twice) == before != contents(twice, "posts@v2")
    assert rollback("posts@v1", config=config).unchanged
    assert history("posts", config=config).versions[-1].of == "v000001"
    assert geodata.verify("posts", config=config, workers=1).ok
    assert rollback("posts@v2", config=config).version == "v000004"
    with pytest.raises(ConfigError, match="back to which"):
        rollback("posts", config=config)


def test_a_version_with_a_lost_file_does_not_come_back(twice):
    gone = geodata.list_files("posts@v1", config=config_of(twice)).shards[0]
    Path(gone.file).unlink()
    with pytest.raises(ObjectNotFound, match="not there any more"):
        rollback("posts@v1", config=config_of(twice))
    assert len(history("posts", config=config_of(twice)).versions) == 2


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


def test_a_version_comes_back_where_its_files_lie(workspace):
    config = workspace / "geodata.yaml"
    text = config.read_text().replace("jurisdiction: DE,", "jurisdiction: DE, root: eu,")
    config.write_text(text)
    convert(workspace)
    shard(workspace)
    before = contents(workspace)
    config.write_text(text.replace("root: eu,", "root: europe,"))
    shard(workspace, seed=1)
    assert rollback("posts@v1", config=config_of(workspace)).version == "v000003"
    assert contents(workspace) == before
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_indexes_and_sidecars_are_made_anew(twice):
    config = config_of(twice)
    one, other = shards_here(config)[:2]
    index, sidecar = Path(f"{one.file}.index"), Path(f"{other.file}.units.json")
    whole = index.read_bytes(), sidecar.read_bytes()
    index.write_bytes(whole[0][:-7])
    sidecar.unlink()
    dry = repair("posts", config=config, dry_run=True, workers=1)
    assert (len(dry.repaired), dry.lost) == (2, []) and not sidecar.exists()
    report = repair("posts", config=config, workers=1)
    assert {Path(entry["file"]).name for entry in report.repaired} == {index.name, sidecar.name}
    assert (report.ok, report.version) == (True, "v000002")
    assert (index.read_bytes(), sidecar.read_bytes()) == whole
    assert geodata.verify("posts", config=config, workers=1).ok
    again = repair("posts", config=config, workers=1)
    assert (again.repaired, again.ok) == ([], True)


def test_what_is_beyond_repair_is_listed_and_left_out_on_demand(twice):
    config = config_of(twice)
    damaged, lost = geodata.list_files("posts", config=config).shards[:2]
    path = Path(damaged.file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    Path(lost.file).unlink()
    report = repair("posts", config=config, workers=1)
    assert not report.ok and report.dropped == 0 and report.version == "v000002"
    told = {entry["shard"]: entry["problem"] for entry in report.lost}
    assert told == {damaged.shard: "does not match its digest", lost.shard: "is missing"}
    report = repair("posts", config=config, drop_lost=True, workers=1)
    assert report.ok and report.version == "v000003"
    assert report.dropped == damaged.records + lost.records
    assert geodata.verify("posts", config=config, workers=1).ok
    assert geodata.inspect("posts", config=config).records == 300 - report.dropped


def test_what_cannot_be_read_or_written_now_is_not_lost(twice, monkeypatch):
    config = config_of(twice)
    Path(f"{shards_here(config)[0].file}.index").unlink()

    def fails(error):
        def called(*_args):
            raise OSError(error, os.strerror(error))

        return called

    form = "geodata.formats.webdataset.shard.WebDatasetFormat"
    for place, error, match in [
        (f"{form}.write_index", errno.ENOSPC, "cannot write"),
        ("geodata.jobs.repair.file_ref", errno.EACCES, "cannot be read"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(place, fails(error))
            with pytest.raises(StoreError, match=match):
                repair("posts", config=config, drop_lost=True, workers=1)
    assert len(history("posts", config=config).versions) == 2
    assert repair("posts", config=config, drop_lost=True, workers=1).dropped == 0


def test_an_index_is_not_made_anew_where_its_keys_may_not_be_read(twice):
    shards = geodata.list_files("posts", config=config_of(twice)).shards
    personal = [shard for shard in shards if shard.category == "PersonalData"]
    one = next(shard for shard in personal if shard.region == "us-east")
    index, sidecar = Path(f"{one.file}.index"), Path(f"{one.file}.units.json")
    index.unlink()
    sidecar.unlink()
    assert config_of(twice).here == "eu-central"
    report = repair("posts", config=config_of(twice), drop_lost=True, workers=1)
    assert ([entry["dropped"] for entry in report.lost], report.ok) == ([False], False)
    assert "denied by rule home-only" in report.lost[0]["problem"]
    assert (index.exists(), sidecar.exists(), report.version) == (False, True, "v000002")
    here = load_config(twice / "geodata.yaml", ["here=us-east"])
    assert repair("posts", config=here, workers=1).ok and index.exists()


def test_a_repair_on_top_of_an_append_keeps_what_the_dataset_is_made_of(workspace, monkeypatch):
    convert(workspace)
    next((workspace / "data/raw/data").rglob("*.parquet")).write_bytes(b"damaged")
    more = workspace / "more.jsonl"
    more.write_text('{"text": "more"}\n')
    amend, raw = Catalog.amend, str(workspace / "data/raw")

    def second(catalog, base, change, check=None):
        monkeypatch.setattr(Catalog, "amend", amend)
        geodata.append(more, raw, workers=1)
        return amend(catalog, base, change, check)

    monkeypatch.setattr(Catalog, "amend", second)
    assert repair(raw, drop_lost=True, workers=1).version == "v000003"
    assert geodata.append(more, raw, workers=1).unchanged


def test_repairs_killed_anywhere_are_whole_in_the_end(twice):
    config = config_of(twice)
    index = Path(f"{shards_here(config)[0].file}.index")
    whole = index.read_bytes()
    context = multiprocessing.get_context("fork")
    for number in range(1, 100):
        index.write_bytes(whole[:-7])
        mend = lambda _root: repair("posts", config=config, workers=1)  # noqa: E731
        victim = context.Process(target=killed_at, args=(number, mend, twice))
        victim.start()
        victim.join(60)
        mend(twice)
        assert index.read_bytes() == whole
        assert geodata.verify("posts", config=config, workers=1).ok
        if victim.exitcode == 0:
            break
    assert 3 < number < 99


def test_the_commands_speak_json(twice, capsys):
    from click.testing import CliRunner

    from geodata.cli import cli

    for command in ("history posts", "gc posts --dry-run", "rollback posts@v1 --dry-run"):
        found = CliRunner().invoke(cli, [*command.split(), "--json"])
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["schema_version"] == 1
    assert "v2" in CliRunner().invoke(cli, ["history", "posts"]).stdout
    assert CliRunner().invoke(cli, ["repair", "posts"]).stdout.endswith("nothing to repair\n")
