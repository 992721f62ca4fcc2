"""Folders of any shape: their files come in order, and what is asked of their names holds."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_of_any_shape_is_listed_in_order(tmp_path, seed):
    random_tree(os.fsencode(tmp_path / "tree"), random.Random(seed), depth=3)
    expected = files_below(os.fsencode(tmp_path / "tree"))
    if expected:
        assert [*list_files(tmp_path / "tree").files.entries()] == expected


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
