"""HDF5 files beside others: our own shards, locks, processes, origins, memory."""

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import read_file, tensors_of, write_arrays, write_samples
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.formats import get_format
from geodata.schema import KEY, SUBJECT, dataset_schema, origin_field
from geodata.sources import open_source


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def _shard(path, rows):
    schema = dataset_schema(
        pa.schema([("v", pa.int16()), ("t", pa.fixed_shape_tensor(pa.int8(), [2]))])
    )
    writer = get_format("hdf5").create(path, schema, unit_bytes=100, metadata={})
    tensors = pa.ExtensionArray.from_storage(
        schema.field("t").type, pa.array([[i, i] for i in rows], pa.list_(pa.int8(), 2))
    )
    columns = {
        KEY: pa.array([f"k{i}" for i in rows]),
        SUBJECT: pa.nulls(len(rows), pa.string()),
        "v": pa.array(rows, pa.int16()),
        "t": tensors,
    }
    writer.write(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    writer.close()


def test_our_own_shards_keep_keys_and_types(path):
    _shard(path, range(50))
    read = read_file(path)
    assert read.schema.field("v").type == pa.int16()
    assert read.schema.field("t").type == pa.fixed_shape_tensor(pa.int8(), [2])
    assert list(read.records) == [f"k{i}" for i in range(50)]
    path.write_bytes(path.read_bytes()[:-50])
    (bad,) = read_file(path).rejects
    assert bad.row is None
    assert "cut off" in bad.reason


def test_without_h5py_the_extra_is_named(path):
    write_arrays(path, {"v": [1]})
    code = f"""
import sys
sys.modules["h5py"] = None
from geodata.errors import MissingExtra
from geodata.sources import open_source
try:
    open_source({str(path)!r}).pieces(1)
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'h5py is not installed. pip install "geodata-train[hdf5]"'


WRITER = """
import sys, h5py
with h5py.File(sys.argv[1], "w", libver=sys.argv[2]) as file:
    file["v"] = [1, 2]
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("version", "reasons"),
    [
        ("earliest", []),
        ("latest", ["the file is being written, or its writer was killed (see h5clear)"]),
    ],
)
def test_no_lock_is_taken(path, version, reasons):
    command = [sys.executable, "-c", WRITER, str(path), version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"written\n"
        read = read_file(path)
        writer.communicate(b"")
    assert [r.reason for r in read.rejects] == reasons
    assert len(read.records) == (0 if reasons else 2)
    assert read_file(path).column("v") == [1, 2]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files")
def test_nothing_is_held_open(path):
    write_arrays(path, {"v": np.arange(100)})
    source = open_source(path)
    read_all(source, 80)  # starts the process that reads
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_all(source, 80)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_records_stood_is_kept(path):
    write_samples(path, 2)
    stored = dataset_schema(pa.schema([("label", pa.int64()), origin_field("at")]))
    with h5py.File(path, "a") as file:
        for name in file:
            del file[name]["image"], file[name]["meta"], file[name].attrs["weight"]
    read = read_file(path, 1, schema=stored)
    assert read.column("at") == [{"file": "a.h5", "row": 1}, {"file": "a.h5", "row": 2}]


def test_a_layout_like_that_of_pandas(path):
    kind = np.dtype([("index", "i8"), ("values_block_0", "f8", (2,)), ("word", "S5")])
    rows = np.zeros(4, kind)
    rows["index"] = range(4)
    with h5py.File(path, "w") as file:
        file.create_dataset("df/table", data=rows, chunks=(2,), maxshape=(None,))
        file["df/table"].attrs["values_block_0_kind"] = np.void(pickle.dumps(["a", "b"]))
        file["df/_i_table/index/bounds"] = np.zeros((0, 127))
        file["df/_i_table/index"].attrs["CLASS"] = "INDEX"
    source = open_source(path, source_id="s")
    read = read_all(source)
    assert read.schema.names == ["index", "values_block_0", "word"]
    assert read.column("index") == [0, 1, 2, 3]
    assert read.ignored["index of PyTables"] == 1


def test_wide_rows_come_in_bounded_batches(path):
    write_arrays(
        path, {"v": np.zeros((6, 3 << 20), np.uint8)}, chunks=(6, 1 << 16), compression="lzf"
    )
    read = read_file(path)
    assert len(read.records) == 6
    assert len(read.batches) == 3


def _values(source, piece, schema):
    return list(source.read(piece, 0, schema, {}, print))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_the_same(path, method):
    write_arrays(path, {"v": np.arange(5000), "w": [f"w{i}" for i in range(5000)]}, chunks=(100,))
    source = open_source(path)
    piece = source.pieces(1 << 30)[0]
    scan = source.scan(piece)
    schema = dataset_schema(source.merge([scan]))
    here = _values(source, piece, schema)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = [pool.submit(_values, source, piece, schema) for _ in range(4)]
        assert pool.submit(source.scan, piece).result() == scan
        assert all(future.result() == here for future in futures)


def test_values_of_very_different_length_are_all_read(path):
    sizes = [1] * 3000 + [1 << 20] * 40 + [0, 3] * 50
    with h5py.File(path, "w") as file:
        values = file.create_dataset("v", (len(sizes),), h5py.vlen_dtype(np.uint8))
        for place, size in enumerate(sizes):
            values[place] = np.full(size, place % 256, np.uint8)
    read = read_file(path)
    assert read.column("v") == [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    assert read.rejects == []


def test_dimensions_of_netcdf_that_are_no_variables_are_passed_over(path):
    """They are datasets as long as the dimension, without values, of whatever length."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with h5py.File(path, "w") as file:
        file["temperature"] = values
        for axis, (name, length) in enumerate({"sample": 4, "level": 3}.items()):
            dimension = file.create_dataset(name, (length,), ">f4")
            dimension.make_scale(
                f"This is a netCDF dimension but not a netCDF variable.{length:10}"
            )
            file["temperature"].dims[axis].attach_scale(dimension)
    read = read_file(path)
    got, _kind = tensors_of(read, "temperature")
    assert (got == values).all() and len(read.schema) == 1
    assert read.ignored["dimension of netCDF"] == 2


def test_a_scale_with_values_is_a_column_and_one_without_is_refused(path):
    with h5py.File(path, "w") as file:
        file["v"] = np.arange(4)
        file["time"] = np.arange(4) / 2
        file["time"].make_scale("time")
        file["v"].dims[0].attach_scale(file["time"])
    assert read_file(path).column("time") == [0, 0.5, 1, 1.5]
    with h5py.File(path, "a") as file:
        file.create_dataset("level", (4,), "f4").make_scale("level")
    with pytest.raises(SchemaError, match="the values of 'level' were never written"):
        read_file(path)
