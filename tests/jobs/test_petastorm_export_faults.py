"""An export that is killed or fails leaves no half of a folder; the next takes its rest away."""

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from pipeline import killed_at
from posts import make_posts

import geodata
from geodata.errors import StoreError
from geodata.jobs import petastormexport
from geodata.jobs.gc import gc
from geodata.jobs.petastormexport import export
from geodata.sources.petastorm.environment import Environment


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """A staging dataset; Petastorm's own process, which writes the metadata, is not asked."""
    monkeypatch.chdir(tmp_path)
    make_posts(tmp_path / "posts.jsonl", count=30)
    geodata.convert(tmp_path / "posts.jsonl", tmp_path / "raw", workers=1, shard_size=4_000)
    there = Environment(tmp_path, "3.11", {})
    monkeypatch.setattr(petastormexport, "needed", lambda _cache: there)
    monkeypatch.setattr(
        petastormexport,
        "write_metadata",
        lambda _interpreter, request: Path(request["folder"], "_common_metadata").touch(),
    )
    return tmp_path / "raw"


def run(root):
    return export(str(root / "raw"), root / "out", columns=["text"], workers=1)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_killed_anywhere_it_is_whole_or_not_there(raw):
    root = raw.parent
    run(root)
    whole, around = names(root / "out"), names(root)
    assert len(whole) > 2
    context = multiprocessing.get_context("fork")
    for number in range(1, 200):
        shutil.rmtree(root / "out")
        victim = context.Process(target=killed_at, args=(number, run, root))
        victim.start()
        victim.join(60)
        if victim.exitcode == 0:
            break
        assert victim.exitcode == -signal.SIGKILL
        if (root / "out").exists():
            assert names(root / "out") == whole
            shutil.rmtree(root / "out")
        run(root)
        assert (names(root / "out"), names(root)) == (whole, around)
    assert number > len(whole)


def test_two_at_once_to_one_place(raw):
    target = raw.parent / "out"
    with petastormexport._appearing(target) as work:
        (work / "other.parquet").touch()
        with pytest.raises(StoreError, match="running in another process"):
            run(raw.parent)
    assert names(target) == ["other.parquet"]


def test_what_a_killed_one_left_in_a_dataset_goes_with_gc(raw):
    work = raw / ".jobs/petastorm-0123/work-1"
    work.mkdir(parents=True)
    (work / "half.parquet").write_bytes(b"half")
    assert gc(str(raw), grace=0).jobs == ["petastorm-0123"]
    assert not work.parent.exists()


def test_a_full_disk_leaves_nothing(raw, monkeypatch):
    around = names(raw.parent)

    def full(_path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(petastormexport, "sync", full)
    with pytest.raises(StoreError, match="cannot write.*The disk is full"):
        run(raw.parent)
    assert names(raw.parent) == around
