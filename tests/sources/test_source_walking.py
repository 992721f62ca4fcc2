"""Folders of any shape: their files come in order, and what is asked of their names holds."""

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from geodata.errors import ConfigError
from geodata.sources import walking
from geodata.sources.filelist import FileList
from geodata.sources.listing import list_files, suffix_of, suffixes_of

PARTS = [
    b"a",
    b"a-b",
    b"a.b",
    b"a0",
    b"a.jpg",
    b"b.JPG",
    b"c.tar.gz",
    b"d.",
    b"e.\xff",
    b"\xc3\xa9",
]


def random_tree(root: bytes, dice: random.Random, depth: int) -> None:
    Path(os.fsdecode(root)).mkdir()
    for part in dice.sample(PARTS, dice.randint(0, 6)):
        path = root + b"/" + part
        if depth and dice.random() < 0.4:
            random_tree(path, dice, depth - 1)
        else:
            Path(os.fsdecode(path)).write_bytes(b"x" * dice.randint(0, 9))


def files_below(root: bytes) -> list[tuple[bytes, int, int]]:
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = folder + b"/" + name
            status = Path(os.fsdecode(path)).stat()
            found.append((path[len(root) + 1 :], status.st_size, status.st_mtime_ns))
    return sorted(found)


@pytest.fixture(params=["fast", "slow"])
def disk(request, monkeypatch):
    if request.param == "slow":
        monkeypatch.setattr(walking, "LONG", 0.0)
        monkeypatch.setattr(walking, "FEW", 1)


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("seed", range(20))
def test_a_tree_of_any_shape_is_listed_in_order(tmp_path, seed):
    random_tree(os.fsencode(tmp_path / "tree"), random.Random(seed), depth=3)
    expected = files_below(os.fsencode(tmp_path / "tree"))
    if expected:
        assert [*list_files(tmp_path / "tree").files.entries()] == expected


@pytest.mark.usefixtures("disk")
def test_what_is_skipped_is_counted_and_links_to_nothing_are_listed(tmp_path):
    for number in range(3):
        folder = tmp_path / f"d{number}"
        folder.mkdir()
        (folder / "a.txt").write_text("x")
        (folder / ".hidden").write_text("x")
        (folder / "to-folder").symlink_to(tmp_path)
        (folder / "to-nothing.txt").symlink_to("nothing")
        os.mkfifo(folder / "pipe.txt")
    listing = list_files(tmp_path)
    assert [(e[0].decode(), e[1]) for e in listing.files.entries()] == [
        (f"d{number}/{name}", size)
        for number in range(3)
        for name, size in (("a.txt", 1), ("to-nothing.txt", 0))
    ]
    assert listing.ignored == {"hidden": 3, "link to a folder": 3, "not a regular file": 3}


@pytest.mark.usefixtures("disk")
def test_of_folders_that_cannot_be_read_the_first_is_named(tmp_path, monkeypatch):
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    scandir = os.scandir

    def failing(path):
        if path.endswith((b"/b/", b"/d/")):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(ConfigError, match="cannot be read") as raised:
        list_files(tmp_path)
    assert raised.value.fields["file"].endswith("/b/")


def test_looks_that_take_long_are_side_by_side(tmp_path, monkeypatch):
    """As on a file server: 8 folders of 400 files, every look 1 ms."""
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        for number in range(400):
            (tmp_path / name / f"{number}.txt").touch()
    expected = [e[0] for e in list_files(tmp_path).files.entries()]
    look, threads = os.stat, []

    def slow(path, **options):
        if "dir_fd" in options:
            threads.append(threading.current_thread().name)
            time.sleep(0.001)
        return look(path, **options)

    monkeypatch.setattr(os, "stat", slow)
    assert [e[0] for e in list_files(tmp_path).files.entries()] == expected
    assert len(threads) == 3200
    assert len(set(threads)) > 8


NAMES = [
    *("a.jpg", "b.JPG", "d/c.jpg", "x", ".jpg", "d/.jpg", "d.e/f", "g.", "h..png", "", "i.j/k.txt"),
    *("l.jsonl.gz", "m.gz", "n/.gz", "o.txt-00001-of-00002", "p.", "q.jpg.zst", "r.tar.", "s"),
]


@pytest.mark.parametrize("names", [NAMES, NAMES[:3], ["x"], ["a.b/c"] * 3, []])
def test_suffixes_are_counted_as_if_one_by_one(names):
    names = [os.fsencode(name) for name in names]
    assert suffixes_of(lambda: names) == Counter(map(suffix_of, names))


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (["a/1", "a/2", "b/1"], [range(2), range(2, 3)]),
        (["a", "a-b/1", "a/1", "a/2/3", "a0"], [range(1), range(1, 2), range(2, 4), range(4, 5)]),
        (["1", "2"], [range(1), range(1, 2)]),
    ],
)
def test_a_list_is_cut_by_first_folders(names, runs):
    files = FileList((os.fsencode(name), 0, 0) for name in names)
    assert [*files.by_folder(range(len(files)))] == runs
    assert [*files.by_folder(range(1, len(files)))] == [
        range(max(run.start, 1), run.stop) for run in runs if run.stop > 1
    ]
