"""Killed, doubled, out of room: a job started again ends as if undisturbed."""

import multiprocessing
import shutil
import signal

import pytest
from pipeline import convert, digests, kill_everywhere, killed_at, read_posts, rows_of, shard
from posts import make_posts

from geodata import durable
from geodata.errors import ConfigError, StoreError, TooManyBadRecords
from geodata.tags import STAGING


def test_convert_killed_at_every_point_ends_as_if_undisturbed(workspace):
    convert(workspace)
    expected = digests(workspace, STAGING)
    (workspace / "data/raw").rename(workspace / "data/reference")

    def check():
        assert digests(workspace, STAGING) == expected
        assert not (workspace / "data/raw/.jobs").exists() or not list(
            (workspace / "data/raw/.jobs").iterdir()
        )
        for version in (workspace / "data/raw/metadata").glob("v*.json"):
            assert version.name == "v000001.json"
        shutil.rmtree(workspace / "data/raw")

    points = kill_everywhere(workspace, convert, check)
    assert points > 30


def test_shard_killed_at_every_point_ends_as_if_undisturbed(workspace):
    make_posts(workspace / "posts.jsonl", count=40)
    config = (workspace / "geodata.yaml").read_text().replace("[JP, KR]", "[JP, KR, US, CA]")
    (workspace / "geodata.yaml").write_text(config.replace("us-east: [US, CA], ", ""))
    convert(workspace)
    shard(workspace)
    expected = digests(workspace)

    def check():
        assert digests(workspace) == expected
        assert [v.name for v in (workspace / "data/posts/metadata").glob("v*")] == ["v000001.json"]
        shutil.rmtree(workspace / "data/posts")

    check()
    points = kill_everywhere(workspace, shard, check)
    assert points > 50


def test_a_source_that_changed_since_the_plan_is_refused(workspace):
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=killed_at, args=(25, convert, workspace))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    with (workspace / "posts.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(ConfigError, match=r"changed since.*posts\.jsonl.*--restart"):
        convert(workspace)
    assert convert(workspace, restart=True).records_out == 301


def hold(root, barrier):
    from geodata.jobs.base import JobFolder

    folder = next((root / "data/raw/.jobs").iterdir())
    with JobFolder(root / "data/raw", folder.name).held():
        barrier.wait(60)
        barrier.wait(60)


def test_the_same_job_twice_at_once_is_refused(workspace):
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=killed_at, args=(25, convert, workspace))
    victim.start()
    victim.join(60)
    barrier = context.Barrier(2)
    other = context.Process(target=hold, args=(workspace, barrier))
    other.start()
    barrier.wait(60)
    with pytest.raises(StoreError, match="running in another process"):
        convert(workspace)
    barrier.wait(60)
    other.join(60)
    assert convert(workspace).records_out == 300


def test_a_full_disk_is_one_clear_error_and_leaves_no_version(workspace, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "sync", full)
    with pytest.raises(StoreError, match="No space left on device.*make room"):
        convert(workspace)
    monkeypatch.undo()
    monkeypatch.chdir(workspace)
    assert convert(workspace).records_out == 300


def test_results_of_another_plan_do_not_count(workspace):
    context = multiprocessing.get_context("fork")
    for number in range(40, 60):
        victim = context.Process(target=killed_at, args=(number, convert, workspace))
        victim.start()
        victim.join(60)
        assert victim.exitcode == -signal.SIGKILL
        (folder,) = (workspace / "data/raw/.jobs").iterdir()
        if list(folder.glob("task-*.json")):
            break
        shutil.rmtree(workspace / "data/raw")
    (folder / "plan.json").unlink()  # as a kill inside a restart may leave it
    make_posts(workspace / "posts.jsonl", count=300, seed=9)
    done = convert(workspace)
    assert done.records_out == 300
    shard(workspace)
    expected = {post["text"] for post in read_posts(workspace)}
    assert {row["text"] for row in rows_of(workspace)} == expected


def test_a_mended_source_starts_over_by_itself_and_a_higher_bound_goes_on(workspace):
    text = (workspace / "posts.jsonl").read_text(encoding="utf-8")
    (workspace / "posts.jsonl").write_text(text + "{broken\n{broken too\n", encoding="utf-8")
    with pytest.raises(TooManyBadRecords):
        convert(workspace)
    with pytest.raises(TooManyBadRecords, match="more than 1 records"):
        convert(workspace, on_error="skip", max_errors=1)
    assert convert(workspace, on_error="skip", max_errors=2).rejected == 2
    (workspace / "posts.jsonl").write_text(text, encoding="utf-8")
    assert convert(workspace).records_out == 300
