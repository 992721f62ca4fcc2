"""Damaged files of jobs that were killed: that part is done again, or one line says what to do."""

import multiprocessing
import shutil

import pytest
from damaging import DAMAGES, age, empty, garble, run, truncate, unharmed
from editing_cases import files_of
from pipeline import convert, killed_at, shard
from posts import CONFIG

from geodata.catalog import Catalog, locate
from geodata.errors import StoreError
from geodata.tags import STAGING

RAW = "data/raw"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_job_whose_files_are_damaged_does_that_part_again(workspace, damage):
    convert(workspace)
    catalog = Catalog.at(locate(RAW, None), "test")
    expected = catalog.shards(catalog.index(), STAGING)
    (workspace / RAW).rename(workspace / "data/expected")
    context = multiprocessing.get_context("fork")
    for number in range(20, 90, 8):
        victim = context.Process(target=killed_at, args=(number, convert, workspace))
        victim.start()
        victim.join(60)
        damaged = list((workspace / RAW).glob(".jobs/*/*.json"))
        for path in damaged:
            damage(path)
        assert convert(workspace).records_out == 300
        catalog = Catalog.at(locate(RAW, None), "test")
        assert catalog.shards(catalog.index(), STAGING) == expected
        shutil.rmtree(workspace / RAW)
        if victim.exitcode == 0:
            break
        assert damaged or number < 30


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["npy", "arrow"])
def test_what_a_job_kept_of_records_is_told_if_it_is_damaged(workspace, kind, damage):
    """By one line that says what to remove; then the job ends as if undisturbed."""

    def job(root):
        return convert(root, dedupe=True) if kind == "npy" else shard(root, seed=3)

    root = workspace
    if kind == "npy":
        lines = (root / "posts.jsonl").read_text().splitlines(keepends=True)
        (root / "posts.jsonl").write_text("".join([*lines, *lines[:9]]))
    else:
        convert(root)
    context = multiprocessing.get_context("fork")
    for number in range(10, 400, 4):
        victim = context.Process(target=killed_at, args=(number, job, root))
        victim.start()
        victim.join(60)
        kept = list((root / RAW).rglob(f"[!.]*.{kind}"))
        kept = [path for path in kept if ".jobs" in path.parts and path.stat().st_size > 20]
        told = [path.name for path in (root / RAW / ".jobs").glob("*/repeats-*")]
        if kept and (kind == "arrow" or told):
            break
    for path in kept:
        damage(path)
    with pytest.raises(StoreError, match="what the job has kept is damaged, or gone") as caught:
        job(root)
    (folder,) = (root / RAW / ".jobs").iterdir()
    assert f"Remove {folder} and run the same command again" in str(caught.value)
    shutil.rmtree(folder)
    assert job(root).records_out == 300


@pytest.mark.parametrize("damage", [truncate, garble, empty])
def test_gc_refuses_where_it_cannot_tell_what_a_job_has_delivered(workspace, damage):
    root = workspace
    convert(root)
    shard(root)
    (root / "geodata.yaml").write_text(CONFIG.replace("2031-08-17", "2032-08-17"))
    context = multiprocessing.get_context("fork")
    for number in range(60, 400, 10):
        victim = context.Process(target=killed_at, args=(number, shard, root))
        victim.start()
        victim.join(60)
        notices = list((root / "data/posts/.jobs").glob("*/elsewhere.json"))
        if notices:
            break
    (notice,) = notices
    damage(notice)
    age(root)
    before = files_of(root)
    code, said = run("gc posts")
    assert code == 1 and str(notice) in said
    assert unharmed(before, root)
