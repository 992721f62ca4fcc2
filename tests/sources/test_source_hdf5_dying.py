"""HDF5 files of which the process dies that reads them: what is lost is what it dies of."""

import numpy as np
import pytest
from hdf5_files import read_file, write_arrays

from geodata.schema import KEY
from geodata.sources.corpus import Broken
from geodata.sources.guard import guard
from geodata.sources.guard.guard import Died
from geodata.sources.hdf5 import asking as hdf5asking
from geodata.sources.hdf5.asking import Asking

WHY = "what reads it is ended by SIGSEGV"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5asking, "_READING", "dying_reading")
    yield tmp_path / "a.h5"
    guard.end_guards()


def test_a_row_that_is_deadly_is_lost_alone(path):
    write_arrays(path, {"x": np.arange(300)})
    read = read_file(path)
    assert [(r.row, r.reason) for r in read.rejects] == [(14, WHY)]
    values = [value for batch in read.batches for value in batch.column("x").to_pylist()]
    assert values == [value for value in range(300) if value != 13]
    keys = [key for batch in read.batches for key in batch.column(KEY).to_pylist()]
    assert keys[12:14] == ["s#13", "s#15"]


def test_what_is_deadly_too_often_is_lost_from_there_on(path):
    write_arrays(path, {"x": np.where(np.arange(300) < 100, 0, 13)})
    read = read_file(path)
    kept = sum(batch.num_rows for batch in read.batches)
    assert kept == 100
    assert [r.row for r in read.rejects] == [*range(101, 301)]
    assert {r.reason for r in read.rejects} == {WHY}


def _deaths(monkeypatch, *tellings):
    """Let each question be answered by what is told next, or the last of all, and by a death."""
    asked = []

    def ask(module, function, request):
        asked.append((request["start"], request["stop"]))
        yield from tellings[min(len(asked), len(tellings)) - 1]
        raise Died(WHY)

    monkeypatch.setattr(guard, "ask", ask)
    return asked


@pytest.mark.parametrize("do", ["scan", "cuts", "read"])
def test_a_file_of_which_nothing_is_told_is_damaged(tmp_path, monkeypatch, do):
    asked = _deaths(monkeypatch, [])
    asking = Asking(tmp_path / "a.h5", 0, 10)
    given = {"scan": {"several": False}, "cuts": {"target": 1}, "read": {"key": ""}}[do]
    with pytest.raises(Broken, match=f"the file is damaged: {WHY}"):
        list(getattr(asking, do)(**given))
    assert asked == [(0, 10)] * 2


def test_a_scan_that_dies_of_anything_ends(tmp_path, monkeypatch):
    at = {"at": 0, "rows": 10}
    asked = _deaths(monkeypatch, [at], [at], [])
    with pytest.raises(Broken, match=WHY):
        Asking(tmp_path / "a.h5", 0, 10).scan(several=False)
    assert asked == [(0, 10), (0, 10), (0, 10), (0, 0)]
