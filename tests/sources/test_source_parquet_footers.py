"""What a Parquet file's footer says is looked at by a process that may die of it, once a file."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_reading import read_all

from geodata.schema import dataset_schema
from geodata.sources import open_source
from geodata.sources.guard import guard
from geodata.sources.tables import footers

COUNT = 300


@pytest.fixture
def folder(tmp_path):
    for number in range(COUNT):
        pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number:03}.parquet")
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """How many files each question was about."""
    counts, ask = [], guard.ask

    def counted(module, function, request):
        counts.append(len(request["paths"]))
        return ask(module, function, request)

    monkeypatch.setattr(guard, "ask", counted)
    return counts


def test_files_are_looked_at_many_at_once_and_none_again(folder, asked):
    read = read_all(open_source(folder, source_id="s"))
    assert [v for batch in read.batches for v in batch.column("a").to_pylist()] == [*range(COUNT)]
    assert asked == [256, 44]


def test_a_file_that_changed_since_is_looked_at_again(folder, asked):
    source = open_source(folder, source_id="s")
    pieces = source.pieces(1 << 30)
    os.utime(folder / "007.parquet", ns=(0, 0))
    del asked[:]
    scans = [source.scan(piece) for piece in pieces]
    assert asked == [1]
    schema = dataset_schema(source.merge(scans))
    (batch,) = source.read(pieces[7], 0, schema, {}, pytest.fail)
    assert batch.column("a").to_pylist() == [7]
    assert asked == [1, 1]


def test_the_file_that_is_deadly_is_found_among_others(folder, monkeypatch):
    deadly, fresh_dies = {"003.parquet", "255.parquet", "256.parquet"}, []

    def ask(module, function, request):
        for number, path in enumerate(request["paths"]):
            if Path(path).name in deadly:
                fresh_dies.append(number == 0)
                raise guard.Died("of it")
            yield {"sound": True}

    monkeypatch.setattr(guard, "ask", ask)
    paths = sorted(folder.iterdir())
    found = list(footers.sound_footers(paths))
    assert {path.name for path, sound in zip(paths, found, strict=True) if not sound} == deadly
    assert fresh_dies == [False, True, False, True, True]
    read = read_all(open_source(folder, source_id="s"))
    assert [r.file for r in read.rejects] == sorted(deadly)
    assert sum(batch.num_rows for batch in read.batches) == COUNT - 3
