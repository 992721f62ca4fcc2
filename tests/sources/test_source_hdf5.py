"""HDF5 of parallel arrays and tables: values and types, and what unites over files."""

import datetime as dt

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import JPEG, PNG, read_file, tensors_of, write_arrays

from geodata.errors import SchemaError
from geodata.schema import media_of, tensor_field
from geodata.sources import open_source


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def test_parallel_arrays_are_columns(path):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 5, 3), np.uint8)
    labels = np.arange(50, dtype=np.int64)
    write_arrays(path, {"images": images, "labels": labels})
    for target in (1 << 30, 600):
        read = read_file(path, target)
        got, kind = tensors_of(read, "images")
        assert kind == pa.fixed_shape_tensor(pa.uint8(), [4, 5, 3])
        assert (got == images).all()
        assert read.column("labels") == labels.tolist()
        assert list(read.records)[:2] == ["s#1", "s#2"]


def test_groups_of_arrays_give_names_in_dots(path):
    write_arrays(path, {"x/y/a": [1, 2], "x/b": [0.5, 1.5], "c": [True, False]})
    read = read_file(path)
    assert read.schema == pa.schema(
        [("c", pa.bool_()), ("x.b", pa.float64()), ("x.y.a", pa.int64())]
    )
    assert list(read.records.values()) == [
        {"c": True, "x.b": 0.5, "x.y.a": 1},
        {"c": False, "x.b": 1.5, "x.y.a": 2},
    ]


def test_pieces_are_cut_at_chunks(path):
    write_arrays(path, {"v": np.arange(1000)}, chunks=(64,), compression="gzip")
    source = open_source(path)
    cuts = [(piece.start, piece.stop) for piece in source.pieces(100 * 8)]
    assert cuts[0] == (0, 128)
    assert cuts[-1] == (896, 1000)
    assert read_file(path, 100 * 8).column("v") == list(range(1000))


@pytest.mark.parametrize(
    "kind", ["i1", "u1", ">i2", "<u2", ">i4", "u4", "i8", "u8", "f2", ">f4", "f8"]
)
def test_numbers_keep_their_type(path, kind):
    values = np.array([0, 1, 100], kind)
    tensors = np.arange(6).reshape(3, 2).astype(kind)
    write_arrays(path, {"v": values, "t": tensors})
    read = read_file(path)
    plain = pa.from_numpy_dtype(np.dtype(kind).newbyteorder("="))
    assert read.schema.field("v").type == plain
    assert read.column("v") == [0, 1, 100]
    got, tensor = tensors_of(read, "t")
    assert tensor == pa.fixed_shape_tensor(plain, [2])
    assert (got == tensors).all()


def test_complex_numbers_get_a_last_axis_of_two(path):
    values = (np.arange(6) + 1j * np.arange(6)[::-1]).astype(np.complex64).reshape(3, 2)
    write_arrays(path, {"k": values, "s": values[:, 0]})
    read = read_file(path)
    got, kind = tensors_of(read, "k")
    assert kind == pa.fixed_shape_tensor(pa.float32(), [2, 2])
    assert (got[..., 0] + 1j * got[..., 1] == values).all()
    assert tensors_of(read, "s")[1] == pa.fixed_shape_tensor(pa.float32(), [2])


def test_text_of_every_kind(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("varying", data=["é", "", "long " * 9], dtype=h5py.string_dtype())
        file.create_dataset("ascii", data=["a", "", "b"], dtype=h5py.string_dtype("ascii"))
        file["fixed"] = np.array([b"ab", b"", b"abcd"], "S4")
        padded = h5py.h5t.C_S1.copy()
        padded.set_size(6)
        padded.set_strpad(h5py.h5t.STR_SPACEPAD)
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"padded", padded, space)
        made.write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.array([b"ab    ", b"      ", b"a b   "], "S6"), padded
        )
        file.create_dataset("pair", data=[["a", "b"]] * 3, dtype=h5py.string_dtype())
    read = read_file(path)
    assert read.column("varying") == ["é", "", "long " * 9]
    assert read.column("ascii") == ["a", "", "b"]
    assert read.column("fixed") == ["ab", "", "abcd"]
    assert read.column("padded") == ["ab", "", "a b"]
    assert read.column("pair") == [["a", "b"]] * 3


def test_text_that_is_not_utf8_is_rejected(path):
    write_arrays(path, {"v": np.array([b"ok", b"\xff", b"fine"]), "n": [1, 2, 3]})
    read = read_file(path)
    assert read.column("v") == ["ok", "fine"]
    assert read.reasons() == [(2, "a string is not UTF-8, or a value is malformed")]
    row = pa.ipc.open_stream(read.rejects[0].raw).read_all()
    assert row.column("n").to_pylist() == [2]


def test_bytes_and_lists_of_varying_length(path):
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (3,), h5py.vlen_dtype(np.uint8))
        for place, data in enumerate((PNG, JPEG, b"")):
            images[place] = np.frombuffer(data, np.uint8)
        other = file.create_dataset("other", (3,), h5py.vlen_dtype(np.uint8))
        other[0] = np.frombuffer(b"xyz", np.uint8)
        floats = file.create_dataset("floats", (3,), h5py.vlen_dtype(np.float32))
        floats[1] = [0.5, 1.5]
        words = file.create_dataset("words", (3,), h5py.vlen_dtype(h5py.string_dtype()))
        words[2] = np.array(["a", "bc"], object)
        file["opaque"] = np.array([np.void(PNG)] * 3)
    read = read_file(path)
    assert {f.name: media_of(f) for f in read.schema if media_of(f)} == {
        "images": "image",
        "opaque": "image",
    }
    assert read.column("images") == [PNG, JPEG, b""]
    assert read.column("other") == [b"xyz", b"", b""]
    assert read.column("floats") == [[], [0.5, 1.5], []]
    assert read.column("words") == [[], [], ["a", "bc"]]
    assert read.column("opaque") == [PNG] * 3


def test_an_enumeration_becomes_names(path):
    colours = h5py.enum_dtype({"red": 0, "green": 7, "blue": -1}, "i2")
    with h5py.File(path, "w") as file:
        file.create_dataset("colour", data=[7, 0, 5, -1], dtype=colours)
        file.create_dataset("map", data=[[7, 0]] * 4, dtype=colours)
        file["flag"] = np.array([True, False, True, True])
    read = read_file(path)
    assert read.column("colour") == ["green", "red", "blue"]
    assert read.column("flag") == [True, False, True]
    assert read.schema.field("map").type == pa.fixed_shape_tensor(pa.int16(), [2])
    assert read.reasons() == [(3, "a string is not UTF-8, or a value is malformed")]


def test_times(path):
    times = np.array(["2020-01-01T00:00:01", "2021-01-01"], "M8[us]")
    with h5py.File(path, "w") as file:
        file["t"] = times.astype(h5py.opaque_dtype(times.dtype))
    read = read_file(path)
    assert read.schema.field("t").type == pa.timestamp("us")
    assert read.column("t") == [dt.datetime(2020, 1, 1, 0, 0, 1), dt.datetime(2021, 1, 1)]


def test_a_table_of_a_compound_gives_its_fields(path):
    kind = np.dtype([("n", ">i4"), ("box", "f4", (4,)), ("at", [("x", "i8")]), ("name", "S3")])
    rows = np.zeros(3, kind)
    rows["n"], rows["name"], rows["at"]["x"] = [1, 2, 3], [b"a", b"bc", b""], [7, 8, 9]
    rows["box"] = np.arange(12).reshape(3, 4)
    write_arrays(path, {"group/table": rows})
    read = read_file(path)
    assert read.schema.names == ["n", "box", "at", "name"]
    assert read.column("n") == [1, 2, 3]
    assert read.column("at") == [{"x": 7}, {"x": 8}, {"x": 9}]
    assert read.column("name") == ["a", "bc", ""]
    assert (tensors_of(read, "box")[0] == rows["box"]).all()


def test_a_compound_beside_arrays_is_a_struct(path):
    colour = h5py.enum_dtype({"red": 0}, "i1")
    kind = np.dtype([("x", "i4"), ("s", h5py.string_dtype()), ("c", colour)])
    rows = np.array([(1, "a", 0), (2, "b", 0)], kind)
    with h5py.File(path, "w") as file:
        file.create_dataset("p", data=rows, dtype=kind)
        file["v"] = [5, 6]
    read = read_file(path)
    assert read.column("p") == [{"x": 1, "s": "a", "c": "red"}, {"x": 2, "s": "b", "c": "red"}]
    assert read.column("v") == [5, 6]


def test_files_unite_and_shapes_that_differ_vary(tmp_path):
    write_arrays(tmp_path / "a.h5", {"x": np.ones((2, 3), "u1"), "n": np.array([1, 2], "i8")})
    write_arrays(tmp_path / "b.h5", {"x": np.full((1, 2, 2), 0.5, "f4"), "n": np.array([0.5])})
    read = read_file(tmp_path)
    assert read.schema.field("x") == tensor_field("x", pa.float32())
    assert read.schema.field("n").type == pa.float64()
    assert read.column("x") == [{"data": [1.0] * 3, "shape": [3]}] * 2 + [
        {"data": [0.5] * 4, "shape": [2, 2]}
    ]
    assert read.column("n") == [1.0, 2.0, 0.5]


def test_a_conflict_names_both_types_and_files(tmp_path):
    write_arrays(tmp_path / "a.h5", {"v": [1]})
    write_arrays(tmp_path / "b.h5", {"v": ["x"]})
    with pytest.raises(SchemaError, match=r"int64 \(first in a.h5\) and string \(first in b.h5\)"):
        read_file(tmp_path)
    assert read_file(tmp_path, first_wins=True).reasons() == [
        (1, "'v' is int64 here, this record holds string")
    ]


def test_layouts_are_not_mixed(tmp_path):
    write_arrays(tmp_path / "a.h5", {"v": [1]})
    write_arrays(tmp_path / "b.h5", {"t": np.zeros(1, [("v", "i4")])})
    with pytest.raises(SchemaError, match="several ways: arrays in a.h5, table here .file b.h5"):
        read_file(tmp_path)
