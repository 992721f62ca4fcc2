"""Sources travel: scanned and read in spawned processes they give what one process gives."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geodata.schema import dataset_schema
from geodata.sources import open_source

KINDS = ["jsonl", "csv", "parquet", "text"]


@pytest.fixture
def corpora(tmp_path):
    for kind in KINDS:
        (tmp_path / kind).mkdir()
    rows = [{"a": i, "b": f"v{i}"} for i in range(50)]
    (tmp_path / "jsonl/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["a,b", *(f"{row['a']},{row['b']}" for row in rows)]
    (tmp_path / "csv/a.csv").write_text("\n".join(lines))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet/a.parquet", row_group_size=10)
    for row in rows:
        (tmp_path / f"text/{row['a']}.txt").write_text(row["b"])
    return tmp_path


def _read(source, piece, schema):
    return list(source.read(piece, 0, schema, {}, print))


def test_spawned_processes_read_the_same(corpora):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for kind in KINDS:
            source = open_source(corpora / kind)
            piece = source.pieces(1 << 30)[0]
            scan = pool.submit(source.scan, piece).result()
            assert scan == source.scan(piece)
            assert scan.rows == 50
            schema = dataset_schema(source.merge([scan]))
            there = pool.submit(_read, source, piece, schema).result()
            assert there == _read(source, piece, schema)
