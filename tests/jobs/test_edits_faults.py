"""Whatever befalls an edit, whichever it is: run again, it ends as if undisturbed."""

import errno
import os
import shutil

import pytest
from column_cases import add
from drop_cases import run as drop
from editing_cases import (
    at_once,
    config_of,
    leftovers,
    make_dataset,
    raw,
    records,
    shards,
    version,
)
from pipeline import kill_everywhere

import geodata
from geodata import durable
from geodata.errors import StoreError

ROOTS = ("data", "eu", "disk")


def append(root):
    return geodata.append(root / "more.jsonl", raw(root), workers=1)


def drop_some(root):
    """Drop a record of each of two regions, which may be read in both."""
    return drop(root, keys=(root / "keys.txt").read_text().split())


def compact(root):
    return geodata.compact("posts", config=config_of(root), workers=1)


EDITS = {
    "append": (append, "data/raw"),
    "drop": (drop_some, "posts"),
    "compact": (compact, "posts"),
    "add-column": (add, "posts"),
}
"""Functions of the folder in which the datasets lie, and which one they change."""


class Case:
    """An edit, and what the datasets are before and after it."""

    def __init__(self, root, edit):
        self.root = root
        self.edit, self.reference = EDITS[edit]
        make_dataset(root, count=24, shard_size=600 if edit == "compact" else 6_000)
        (root / "more.jsonl").write_text('{"text": "more"}\n{"text": "still"}\n')
        found = records(root)
        free = [key for key, row in found.items() if row["__subject__"] is None]
        keys = [next(k for k in free if found[k]["country"] == c) for c in ("DE", "US")]
        (root / "keys.txt").write_text("\n".join(keys))
        for name in ROOTS:
            shutil.copytree(root / name, root / "kept" / name)
        assert not self.run().unchanged
        self.expected = shards(root, self.reference)
        self.restore()

    def run(self, _root=None):
        return self.edit(self.root)

    def restore(self):
        """Put the datasets back to what they were before the edit."""
        for name in ROOTS:
            shutil.rmtree(self.root / name)
            shutil.copytree(self.root / "kept" / name, self.root / name)

    def check(self):
        """Assert that the edit was made once and left nothing; then take it back."""
        assert shards(self.root, self.reference) == self.expected
        assert [v.number for v in version(self.root, self.reference)[0].versions()] == [1, 2]
        assert not leftovers(self.root)
        config = None if "/" in self.reference else config_of(self.root)
        name = raw(self.root) if config is None else self.reference
        assert geodata.verify(name, config=config, workers=1).ok
        self.restore()


@pytest.fixture(params=EDITS)
def case(request, workspace):
    return Case(workspace, request.param)


def test_killed_at_every_point(case):
    assert kill_everywhere(case.root, case.run, case.check) > 25


def test_a_full_disk_at_any_file(case, monkeypatch):
    """It is told by one error, and what was finished before is not done again."""
    for number in range(1, 500, 3):
        left = number

        def full(name):
            nonlocal left
            left -= name.startswith("sync")
            if left == 0 and name.startswith("sync"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(durable, "on_point", full)
            try:
                case.run()
            except StoreError as error:
                assert "The disk is full" in str(error)
        case.run()
        case.check()
        if left > 0:
            break
    assert 6 < number < 490


def test_twice_at_once(case):
    codes = at_once(case.run, case.run)
    assert 0 in codes
    assert case.run().unchanged
    case.check()
