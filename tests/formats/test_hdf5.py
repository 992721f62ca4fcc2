"""The conformance of HDF5 shards, what stock h5py sees in them, and where their bytes lie.

What holds for compressed ones too is tested for both; see test_hdf5_gzip.py for the rest.
"""

import fcntl
import hashlib
import json
import sys
import time

import h5py
import numpy as np
import pyarrow as pa
import pytest
from conformance import Conformance
from hdf5_shards import HEAD, both, open_shard, read, records, run, write
from records import JPG, PNG, assert_same, digest, mixed, rows
from typematrix import COLUMNS

from geodata.errors import CorruptShard, MissingExtra
from geodata.formats import get_format
from geodata.formats.layout import Layout
from geodata.schema import KEY, label_field, media_field


class TestHdf5(Conformance):
    name = "hdf5"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.h5"


# stock h5py


def test_stock_h5py_reads_images_and_labels(path):
    images, labels = [PNG, JPG, None, b"", b"\0a\0"], [3, None, -1, 2**40, 0]
    fields = [media_field("image", "image"), label_field("label")]
    write(path, records(fields, images, labels), unit_slots=[2, 1, 2])
    with h5py.File(path) as file:
        offsets, data = file["image/offsets"][:], file["image/data"]
        found = [data[a:b].tobytes() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        assert found == [PNG, JPG, b"", b"", b"\0a\0"]
        assert file["image:valid"][:].tolist() == [True, True, False, True, True]
        assert file["label"][:].tolist() == [3, 0, -1, 2**40, 0]
        assert file["label:valid"][:].tolist() == [True, False, True, True, True]
        assert (file["label"].dtype, file["label:valid"].dtype) == (np.int64, np.bool_)
        offsets, data = file[f"{KEY}/offsets"], file[f"{KEY}/data"]
        assert data[offsets[3] : offsets[4]].tobytes().decode() == "k3"
        assert f"{KEY}:valid" not in file
        assert data.chunks is None
        assert data.compression is None


def test_stock_h5py_reads_tensors_lists_and_structs(path):
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    stored = pa.array([range(6), range(6, 12), [0] * 6], pa.list_(pa.float32(), 6))
    fields = [
        pa.field("tensor", tensor),
        pa.field("flags", pa.list_(pa.bool_())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("place", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
        pa.field("a/b", pa.float16()),
        pa.field("größe", pa.uint8()),
    ]
    columns = [
        pa.ExtensionArray.from_storage(tensor, stored),
        [[True], [], [False, True]],
        [1, 2, 3],
        [{"lat": 1.5, "name": "ä"}, {"lat": 2.5, "name": ""}, {"lat": 3.5, "name": "b"}],
        np.array([0.5, 1.5, 2.5], np.float16),
        [1, 2, 3],
    ]
    write(path, records(fields, *columns), unit_slots=[1, 2])
    with h5py.File(path) as file:
        assert file["tensor"].shape == (3, 2, 3)
        assert file["tensor"][1].tolist() == [[6, 7, 8], [9, 10, 11]]
        assert file["flags/offsets"][:].tolist() == [0, 1, 1, 3]
        assert file["flags/item"][:].tolist() == [True, False, True]
        assert file["at"][:].tolist() == [1, 2, 3]
        assert file["place/lat"][:].tolist() == [1.5, 2.5, 3.5]
        assert file["place/name/data"][:].tobytes().decode() == "äb"
        assert file["a%2Fb"][:].tolist() == [0.5, 1.5, 2.5]
        assert file["a%2Fb"].dtype == np.float16
        assert file["größe"][:].tolist() == [1, 2, 3]
        assert "größe" in list(file)


@both
@pytest.mark.parametrize("kind", COLUMNS)
def test_stock_h5py_reads_every_part_over_all_units(path, kind, name):
    array = COLUMNS[kind]
    several = pa.concat_arrays([array, array, pa.nulls(2, array.type), array.slice(0, 1)])
    batch = rows(several)
    slots = [1, len(array), len(several) - len(array) - 1]
    write(path, batch, name=name, unit_slots=slots)
    layout = Layout(batch.schema.field("value"))
    expected = layout.flatten(several)
    with h5py.File(path) as file:
        for part in layout.parts:
            assert (part.name in file) == (part.name in expected)
            if part.name in expected:
                found = file[part.name][:]
                assert (found.dtype, found.shape) == (part.dtype, expected[part.name].shape)
                assert found.tobytes() == expected[part.name].tobytes()


@both
def test_stock_h5py_reads_an_empty_shard(path, name):
    write(path, mixed(1).slice(0, 0), name=name)
    with h5py.File(path) as file:
        assert file["image/offsets"][:].tolist() == [0]
        assert file["image/data"].shape == file["class"].shape == (0,)
        assert "class:valid" not in file


@both
def test_a_file_is_the_same_at_another_time_in_another_process(path, name):
    code = (
        "import sys; from pathlib import Path; from hdf5_shards import write;"
        "from records import mixed;"
        "write(Path(sys.argv[1]), mixed(300), unit_bytes=20_000, name=sys.argv[2])"
    )
    started, found = int(time.time()), set()
    for seed in ("1", "2"):
        run(code, path, name, env={"PYTHONHASHSEED": seed, "MALLOC_PERTURB_": f"{seed}7"})
        found.add(hashlib.sha256(path.read_bytes()).hexdigest())
        while int(time.time()) == started:
            time.sleep(0.05)
    assert len(found) == 1


# where the bytes lie


@both
def test_a_range_of_bytes_and_the_frame_are_a_unit(path, name):
    batch = mixed(300)
    write(path, batch, unit_bytes=20_000, name=name)
    ranges, data = get_format("hdf5").units(path), path.read_bytes()
    assert len(ranges) > 3
    start, end = ranges[0].offset, ranges[-1].offset + ranges[-1].length
    first = 0
    for number, unit in enumerate(ranges):
        hollow = bytearray(data[:start]) + bytes(end - start) + data[end:]
        piece = slice(unit.offset, unit.offset + unit.length)
        hollow[piece] = data[piece]
        path.write_bytes(hollow)
        found = open_shard(path).read_unit(number)
        assert_same(found, batch.slice(first, unit.slots))
        first += unit.slots


@both
def test_units_are_adjacent_and_their_headers_small(path, name):
    write(path, mixed(300), unit_bytes=20_000, name=name)
    ranges = get_format("hdf5").units(path)
    for one, following in zip(ranges, ranges[1:], strict=False):
        assert one.offset + one.length == following.offset
    parts = sum(len(Layout(field).parts) for field in mixed(1).schema)
    said = get_format("hdf5").row_nbytes(mixed(300)).sum()
    assert sum(unit.length for unit in ranges) < said + 600 * parts * len(ranges)


@both
def test_reading_needs_nothing_of_hdf5(path, name):
    batch = mixed(300)
    write(path, batch, unit_bytes=20_000, name=name)
    data = bytearray(path.read_bytes())
    head = json.loads(data[:HEAD])
    starts = [HEAD, *(unit.offset for unit in get_format("hdf5").units(path)[:1])]
    data[starts[0] : starts[1]] = b"\xff" * (starts[1] - starts[0])
    first, last = sorted([head["about"], head["table"]])
    assert first[0] + first[1] <= last[0]
    data[sum(last) :] = b"\xff" * (len(data) - sum(last))
    path.write_bytes(data)
    with pytest.raises(OSError, match="open"):
        h5py.File(path)
    assert digest(*read(path)) == digest(batch)


def test_a_unit_is_a_view_of_the_file(path):
    write(path, mixed(50))
    reader = open_shard(path)
    addresses = [
        [reader.read_unit(0).column(name).buffers()[place].address for _ in range(2)]
        for name, place in (("image", 2), ("score", 1), ("caption", 2))
    ]
    assert all(one == other for one, other in addresses)


def test_columns_not_asked_for_are_not_touched(path):
    batch = mixed(50)
    write(path, batch)
    offset, data = batch.column("caption").buffers()[2].to_pybytes()[:40], path.read_bytes()
    at = data.index(offset)
    path.write_bytes(data[:at] + b"\xff" * 40 + data[at + 40 :])
    names = [name for name in batch.schema.names if name != "caption"]
    assert_same(open_shard(path).read_unit(0, names), batch.select(names))
    with pytest.raises(CorruptShard) as caught:
        open_shard(path).read_unit(0)
    assert caught.value.fields == {"shard": path.name, "unit": 0, "column": "caption"}
    assert caught.value.__cause__ is None


def test_a_lock_on_the_file_does_not_matter(path):
    write(path, mixed(20))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert digest(*read(path)) == digest(mixed(20))


@both
def test_reading_works_without_h5py_and_writing_names_the_extra(path, monkeypatch, name):
    write(path, mixed(20), name=name)
    monkeypatch.delitem(sys.modules, "geodata.formats.hdf5.writer", raising=False)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert digest(*read(path)) == digest(mixed(20))
    with pytest.raises(MissingExtra, match=r"geodata-train\[hdf5\]"):
        write(path, mixed(20), name=name)
