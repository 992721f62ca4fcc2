"""Parquet row by row: what is kept of rejected rows, keys, origins, embedded media, memory."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from source_reading import read_all

from geodata.schema import dataset_schema, media_of, origin_field, tensor_field
from geodata.sources import open_source, stored
from geodata.sources.tables.footers import group_batches, open_parquet


def _write(path, columns, schema=None, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns, schema=schema)
    pq.write_table(table, path, **options)


def _row(reject):
    return pa.ipc.open_stream(reject.raw).read_all()


def test_a_rejected_row_is_kept_in_the_types_of_its_file(tmp_path):
    _write(tmp_path / "a.parquet", {"v": pa.array([1], pa.int64()), "s": ["x"]})
    words = pa.array(["7", "8"]).dictionary_encode()
    _write(tmp_path / "b.parquet", {"v": words, "s": ["y", "z"]})
    read = read_all(open_source(tmp_path, source_id="s"), first_wins=True)
    assert [(r.file, r.row) for r in read.rejects] == [("b.parquet", 1), ("b.parquet", 2)]
    assert [_row(r).to_pylist() for r in read.rejects] == [
        [{"v": "7", "s": "y"}],
        [{"v": "8", "s": "z"}],
    ]


def test_a_string_that_is_not_utf8_is_kept_as_its_bytes(tmp_path):
    bad = pa.array([b"ok", b"\xff\x00x", b"fine"], pa.binary()).view(pa.string())
    _write(tmp_path / "a.parquet", {"v": bad, "n": [1, 2, 3]})
    (reject,) = read_all(open_source(tmp_path)).rejects
    assert _row(reject).column("v").cast(pa.binary()).to_pylist() == [b"\xff\x00x"]
    assert _row(reject).column("n").to_pylist() == [2]


def test_a_key_that_stands_twice_in_a_piece_is_named(tmp_path):
    keys = ["a", "b", "a", None, None, "b", "c"]
    _write(tmp_path / "a.parquet", {"__key__": keys, "v": range(7)})
    read = read_all(open_source(tmp_path, source_id="s"))
    assert list(read.records) == ["a", "b", "s/a.parquet#4", "s/a.parquet#5", "c"]
    assert read.reasons() == [
        (3, "its key stands in row 1 already"),
        (6, "its key stands in row 2 already"),
    ]
    assert [_row(r).column("v").to_pylist() for r in read.rejects] == [[2], [5]]


def test_keys_that_are_not_utf8_are_rejected(tmp_path):
    bad = pa.array([b"a", b"\xff", b"\xff"], pa.binary()).view(pa.string())
    _write(tmp_path / "a.parquet", {"__key__": bad, "v": range(3)})
    read = read_all(open_source(tmp_path))
    assert list(read.records) == ["a"]
    assert [row for row, _ in sorted(read.reasons())] == [2, 3]


def test_where_records_stood_is_kept(tmp_path):
    _write(tmp_path / "a.parquet", {"v": range(5)}, row_group_size=2)
    stored = dataset_schema(pa.schema([("v", pa.int64()), origin_field("at")]))
    read = read_all(open_source(tmp_path, source_id="s"), 1, schema=stored)
    assert read.column("at") == [{"file": "a.parquet", "row": i} for i in range(1, 6)]


def test_embedded_media_become_media(tmp_path):
    about = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}
    held = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": b"i", "path": "a.png"}, None], held)
    table = pa.table({"image": images, "n": [1, 2]}).replace_schema_metadata(about)
    _write(tmp_path / "a.parquet", table)
    read = read_all(open_source(tmp_path))
    assert [(f.name, media_of(f)) for f in read.schema] == [
        ("image", "image"),
        ("image_path", None),
        ("n", None),
    ]
    assert read.column("image") == [b"i", None]
    assert read.column("image_path") == ["a.png", None]


def test_a_name_that_is_taken_leaves_the_struct(tmp_path):
    about = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}
    held = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array([None], held), "image_path": ["x"]}
    _write(tmp_path / "a.parquet", pa.table(columns).replace_schema_metadata(about))
    assert read_all(open_source(tmp_path)).schema.field("image").type == held


def test_tensors_of_several_shapes_vary(tmp_path):
    def tensors(kind, shape, count):
        values = np.arange(count * np.prod(shape)).astype(kind).reshape(count, *shape)
        return pa.FixedShapeTensorArray.from_numpy_ndarray(values)

    _write(tmp_path / "a.parquet", {"t": tensors("u1", (2, 2), 2)})
    _write(tmp_path / "b.parquet", {"t": tensors("f4", (3,), 1)})
    read = read_all(open_source(tmp_path))
    assert read.schema.field("t") == tensor_field("t", pa.float32())
    assert read.column("t") == [
        {"data": [0, 1, 2, 3], "shape": [2, 2]},
        {"data": [4, 5, 6, 7], "shape": [2, 2]},
        {"data": [0, 1, 2], "shape": [3]},
    ]


MEASURE = """
import sys
import pyarrow as pa
from geodata.schema import dataset_schema
from geodata.sources import open_source
source = open_source(sys.argv[1])
(piece,) = source.pieces(1)
schema = dataset_schema(source.merge([source.scan(piece)]))
nbytes = 0
for batch in source.read(piece, 0, schema, {}, print):
    nbytes += batch.nbytes
    assert batch.nbytes <= 9 << 20
print(nbytes >> 20, pa.default_memory_pool().max_memory() >> 20)
"""


def _measured(path):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    return map(int, done.stdout.split())


def test_a_row_group_is_never_held_whole(tmp_path):
    blob = np.random.default_rng(0).bytes(16 << 10)
    blobs = [blob[i:] + blob[:i] for i in range(6000)]
    _write(tmp_path / "a.parquet", {"v": blobs}, use_dictionary=False, compression="none")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    nbytes, peak = _measured(tmp_path / "a.parquet")
    assert nbytes >= 93
    assert peak < 60


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_beyond_2_gib_in_one_row_group_is_read(tmp_path, nested):
    long = pa.array(["x" * (1 << 20)])
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2100, np.int32)), long)
    if nested:
        words = pa.ListArray.from_arrays(pa.array(np.arange(2101, dtype=np.int32)), words)
    _write(tmp_path / "a.parquet", {"v": words}, store_schema=False, row_group_size=1 << 20)
    nbytes, peak = _measured(tmp_path / "a.parquet")
    assert nbytes >= 2100
    assert peak < 200


def test_rows_of_very_different_size_are_all_read(tmp_path):
    words = ["a"] * 20_000 + ["x" * (1 << 20)] * 60 + ["b"] * 100
    _write(
        tmp_path / "a.parquet",
        {"v": words},
        use_dictionary=False,
        row_group_size=1 << 20,
        write_batch_size=16,
    )
    with open_parquet(tmp_path / "a.parquet") as file:
        batches = list(group_batches(file, 0, tmp_path / "a.parquet"))
    assert pa.Table.from_batches(batches).column("v").to_pylist() == words


def test_a_damaged_group_of_rows_that_swell_rejects_the_rest(tmp_path):
    words = [f"{i % 7} " + "w" * 20_000 for i in range(3000)]
    path = tmp_path / "a.parquet"
    _write(path, {"w": words}, row_group_size=1000, data_page_size=100, write_batch_size=100)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    stop = column.dictionary_page_offset + column.total_compressed_size
    data[stop - 300 : stop] = b"\xff" * 300
    path.write_bytes(data)
    read = read_all(open_source(path))
    lost = [row for row, _ in read.reasons()]
    assert {reason for _, reason in read.reasons()} == {"its row group cannot be read"}
    assert lost == list(range(lost[0], 2001))
    assert lost[0] > 1000
    assert read.column("w") == words[: lost[0] - 1] + words[2000:]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_row_that_is_too_long_is_rejected_alone(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(stored, "MAX_RECORD", 1000)
    words = ["a", "b" * 600, "c" * 600, "d" * 1000, "e"]
    table = pa.table({"v": words})
    if suffix == ".parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        feather.write_feather(table, tmp_path / "a.arrow", "uncompressed")
    read = read_all(open_source(tmp_path))
    assert read.reasons() == [(4, "the record holds 1 GiB or more")]
    assert read.column("v") == [*words[:3], "e"]


@pytest.mark.parametrize("name", ["__index_level_0__", "__null_dask_index__"])
def test_an_index_that_pandas_or_dask_kept_is_a_column(tmp_path, name):
    pq.write_table(pa.table({"a": [1, 2], name: [5, 9]}), tmp_path / "a.parquet")
    read = read_all(open_source(tmp_path / "a.parquet"))
    assert list(read.records.values()) == [{"a": 1, name: 5}, {"a": 2, name: 9}]
