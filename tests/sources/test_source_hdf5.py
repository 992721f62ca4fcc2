"""HDF5 that others wrote: parallel arrays, tables, groups; what is hostile, cut off or odd."""

import datetime as dt
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
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.formats import get_format
from geodata.schema import KEY, SUBJECT, dataset_schema, media_of, origin_field, tensor_field
from geodata.sources import open_source

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def _write(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)


def _read(path, target=1 << 30, **options):
    return read_all(open_source(path, source_id="s"), target, **options)


def _tensors(read, name):
    kind = read.schema.field(name).type
    return np.concatenate([b.column(name).to_numpy_ndarray() for b in read.batches]), kind


def test_parallel_arrays_are_columns(path):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 5, 3), np.uint8)
    labels = np.arange(50, dtype=np.int64)
    _write(path, {"images": images, "labels": labels})
    for target in (1 << 30, 600):
        read = _read(path, target)
        got, kind = _tensors(read, "images")
        assert kind == pa.fixed_shape_tensor(pa.uint8(), [4, 5, 3])
        assert (got == images).all()
        assert read.column("labels") == labels.tolist()
        assert list(read.records)[:2] == ["s#1", "s#2"]


def test_groups_of_arrays_give_names_in_dots(path):
    _write(path, {"x/y/a": [1, 2], "x/b": [0.5, 1.5], "c": [True, False]})
    read = _read(path)
    assert read.schema == pa.schema(
        [("c", pa.bool_()), ("x.b", pa.float64()), ("x.y.a", pa.int64())]
    )
    assert list(read.records.values()) == [
        {"c": True, "x.b": 0.5, "x.y.a": 1},
        {"c": False, "x.b": 1.5, "x.y.a": 2},
    ]


def test_pieces_are_cut_at_chunks(path):
    _write(path, {"v": np.arange(1000)}, chunks=(64,), compression="gzip")
    source = open_source(path)
    cuts = [(piece.start, piece.stop) for piece in source.pieces(100 * 8)]
    assert cuts[0] == (0, 128)
    assert cuts[-1] == (896, 1000)
    assert _read(path, 100 * 8).column("v") == list(range(1000))


@pytest.mark.parametrize(
    "kind", ["i1", "u1", ">i2", "<u2", ">i4", "u4", "i8", "u8", "f2", ">f4", "f8"]
)
def test_numbers_keep_their_type(path, kind):
    values = np.array([0, 1, 100], kind)
    tensors = np.arange(6).reshape(3, 2).astype(kind)
    _write(path, {"v": values, "t": tensors})
    read = _read(path)
    plain = pa.from_numpy_dtype(np.dtype(kind).newbyteorder("="))
    assert read.schema.field("v").type == plain
    assert read.column("v") == [0, 1, 100]
    got, tensor = _tensors(read, "t")
    assert tensor == pa.fixed_shape_tensor(plain, [2])
    assert (got == tensors).all()


def test_complex_numbers_get_a_last_axis_of_two(path):
    values = (np.arange(6) + 1j * np.arange(6)[::-1]).astype(np.complex64).reshape(3, 2)
    _write(path, {"k": values, "s": values[:, 0]})
    read = _read(path)
    got, kind = _tensors(read, "k")
    assert kind == pa.fixed_shape_tensor(pa.float32(), [2, 2])
    assert (got[..., 0] + 1j * got[..., 1] == values).all()
    assert _tensors(read, "s")[1] == pa.fixed_shape_tensor(pa.float32(), [2])


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
    read = _read(path)
    assert read.column("varying") == ["é", "", "long " * 9]
    assert read.column("ascii") == ["a", "", "b"]
    assert read.column("fixed") == ["ab", "", "abcd"]
    assert read.column("padded") == ["ab", "", "a b"]
    assert read.column("pair") == [["a", "b"]] * 3


def test_text_that_is_not_utf8_is_rejected(path):
    _write(path, {"v": np.array([b"ok", b"\xff", b"fine"]), "n": [1, 2, 3]})
    read = _read(path)
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
    read = _read(path)
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
    read = _read(path)
    assert read.column("colour") == ["green", "red", "blue"]
    assert read.column("flag") == [True, False, True]
    assert read.schema.field("map").type == pa.fixed_shape_tensor(pa.int16(), [2])
    assert read.reasons() == [(3, "a string is not UTF-8, or a value is malformed")]


def test_times(path):
    times = np.array(["2020-01-01T00:00:01", "2021-01-01"], "M8[us]")
    with h5py.File(path, "w") as file:
        file["t"] = times.astype(h5py.opaque_dtype(times.dtype))
    read = _read(path)
    assert read.schema.field("t").type == pa.timestamp("us")
    assert read.column("t") == [dt.datetime(2020, 1, 1, 0, 0, 1), dt.datetime(2021, 1, 1)]


def test_a_table_of_a_compound_gives_its_fields(path):
    kind = np.dtype([("n", ">i4"), ("box", "f4", (4,)), ("at", [("x", "i8")]), ("name", "S3")])
    rows = np.zeros(3, kind)
    rows["n"], rows["name"], rows["at"]["x"] = [1, 2, 3], [b"a", b"bc", b""], [7, 8, 9]
    rows["box"] = np.arange(12).reshape(3, 4)
    _write(path, {"group/table": rows})
    read = _read(path)
    assert read.schema.names == ["n", "box", "at", "name"]
    assert read.column("n") == [1, 2, 3]
    assert read.column("at") == [{"x": 7}, {"x": 8}, {"x": 9}]
    assert read.column("name") == ["a", "bc", ""]
    assert (_tensors(read, "box")[0] == rows["box"]).all()


def test_a_compound_beside_arrays_is_a_struct(path):
    colour = h5py.enum_dtype({"red": 0}, "i1")
    kind = np.dtype([("x", "i4"), ("s", h5py.string_dtype()), ("c", colour)])
    rows = np.array([(1, "a", 0), (2, "b", 0)], kind)
    with h5py.File(path, "w") as file:
        file.create_dataset("p", data=rows, dtype=kind)
        file["v"] = [5, 6]
    read = _read(path)
    assert read.column("p") == [{"x": 1, "s": "a", "c": "red"}, {"x": 2, "s": "b", "c": "red"}]
    assert read.column("v") == [5, 6]


def test_arrays_that_are_not_parallel_are_refused(path):
    _write(path, {"images": np.zeros((5, 2)), "labels": np.zeros(5), "names": np.zeros(3)})
    with pytest.raises(
        SchemaError, match=r"'images' has 5 rows, 'names' 3 \(file a.h5\).*first axis"
    ):
        _read(path)
    read = _read(path, first_wins=True)
    assert read.reasons() == [(None, "'images' has 5 rows, 'names' 3")]


def test_what_is_no_column_is_counted(path):
    with h5py.File(path, "w") as file:
        file["v"] = [1, 2]
        file["v"].attrs["unit"] = "m"
        file.attrs["author"] = "x"
        file["version"] = 3
        file["nothing"] = h5py.Empty("f4")
        file["named"] = np.dtype("i4")
        file["soft"] = h5py.SoftLink("/v")
        file["out"] = h5py.ExternalLink("/etc/passwd", "/")
    source = open_source(path, source_id="s")
    ignored = {
        "attribute": 2,
        "scalar dataset": 2,
        "named type": 1,
        "soft link": 1,
        "link to another file": 1,
    }
    assert source.ignored == ignored
    source.pieces(1)
    assert pickle.loads(pickle.dumps(source)).ignored == ignored
    assert read_all(source).column("v") == [1, 2]


def test_links_in_a_circle_end(path):
    with h5py.File(path, "w") as file:
        file["a/b/v"] = [1, 2]
        file["a/b/up"] = file["a"]
        file["a/b/root"] = file["/"]
        file["a/z"] = file["a/b"]
        file["a/soft"] = h5py.SoftLink("/a/soft")
    source = open_source(path, source_id="s")
    assert read_all(source).column("a.b.v") == [1, 2]
    assert source.ignored == {"group that is linked again": 3, "soft link": 1}


def test_a_diamond_of_groups_is_walked_once(path):
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(30):
            below = group.create_group("a")
            group["b"] = below
            group = below
        group["v"] = [1]
    assert list(_read(path).records.values()) == [{".".join("a" * 30) + ".v": 1}]


def test_values_in_other_files_are_refused(path, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 80)
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (10,), "i8", external=[(str(secret), 0, 80)])
    with pytest.raises(SchemaError, match="values of 'v' lie elsewhere"):
        _read(path)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (10,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)
    with pytest.raises(SchemaError, match="values of 'v' lie elsewhere"):
        _read(path)


def test_references_are_refused(path):
    with h5py.File(path, "w") as file:
        file["v"] = [1]
        file.create_dataset("r", data=[file.ref], dtype=h5py.ref_dtype)
    with pytest.raises(SchemaError, match="'r' holds references, which records cannot"):
        _read(path)


def test_claims_that_nothing_stands_behind_are_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (1 << 50,), "i8", chunks=(1024,))
    with pytest.raises(SchemaError, match="values of 'v' were never written"):
        _read(path)
    with h5py.File(path, "a") as file:
        file["v"][0] = 1
    with pytest.raises(SchemaError, match="'v' claims far more values than the file holds"):
        _read(path)


def test_a_file_that_is_no_hdf5_is_one_rejected_record(tmp_path):
    _write(tmp_path / "d.h5", {"v": np.arange(10_000)})
    whole = (tmp_path / "d.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(b"")
    (tmp_path / "b.h5").write_bytes(b"not at all")
    (tmp_path / "c.h5").write_bytes(whole[: len(whole) // 2])
    read = _read(tmp_path)
    assert len(read.records) == 10_000
    damaged = "the file is not HDF5, or it is damaged"
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("a.h5", None, damaged),
        ("b.h5", None, damaged),
        ("c.h5", None, "the file is truncated"),
    ]


def test_a_damaged_chunk_loses_its_rows(path):
    _write(path, {"v": np.arange(3000)}, chunks=(1000,), compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["v"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + 5] ^= 0xFF
    path.write_bytes(data)
    read = _read(path, 1000 * 8)
    assert read.column("v") == [*range(1000), *range(2000, 3000)]
    assert read.reasons() == [(i + 1, "its values cannot be read") for i in range(1000, 2000)]


def test_files_unite_and_shapes_that_differ_vary(tmp_path):
    _write(tmp_path / "a.h5", {"x": np.ones((2, 3), "u1"), "n": np.array([1, 2], "i8")})
    _write(tmp_path / "b.h5", {"x": np.full((1, 2, 2), 0.5, "f4"), "n": np.array([0.5])})
    read = _read(tmp_path)
    assert read.schema.field("x") == tensor_field("x", pa.float32())
    assert read.schema.field("n").type == pa.float64()
    assert read.column("x") == [{"data": [1.0] * 3, "shape": [3]}] * 2 + [
        {"data": [0.5] * 4, "shape": [2, 2]}
    ]
    assert read.column("n") == [1.0, 2.0, 0.5]


def test_a_conflict_names_both_types_and_files(tmp_path):
    _write(tmp_path / "a.h5", {"v": [1]})
    _write(tmp_path / "b.h5", {"v": ["x"]})
    with pytest.raises(SchemaError, match=r"int64 \(first in a.h5\) and string \(first in b.h5\)"):
        _read(tmp_path)
    assert _read(tmp_path, first_wins=True).reasons() == [
        (1, "'v' is int64 here, this record holds string")
    ]


def test_layouts_are_not_mixed(tmp_path):
    _write(tmp_path / "a.h5", {"v": [1]})
    _write(tmp_path / "b.h5", {"t": np.zeros(1, [("v", "i4")])})
    with pytest.raises(SchemaError, match="several ways: arrays in a.h5, table here .file b.h5"):
        _read(tmp_path)


def _samples(path, count=5):
    with h5py.File(path, "w") as file:
        for i in range(count):
            group = file.create_group(f"sample_{i:04}")
            group["image"] = np.full((4, 4, 3), i, np.uint8)
            group["label"] = i % 2
            group["meta/name"] = f"name {i}"
            group.attrs["weight"] = i / 2


def test_a_group_is_a_record(path):
    _samples(path)
    for target in (1 << 30, 1):
        read = _read(path, target)
        assert list(read.records) == [f"s#sample_{i:04}" for i in range(5)]
        assert read.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [4, 4, 3])
        assert read.column("label") == [0, 1, 0, 1, 0]
        assert read.column("meta.name") == [f"name {i}" for i in range(5)]
        assert read.column("weight") == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert (_tensors(read, "image")[0][:, 0, 0, 0] == range(5)).all()
    assert len(_read(path).batches) == 1


def test_groups_in_a_group_of_their_own(path):
    with h5py.File(path, "w") as file:
        file["version"] = 1
        for name in ("x1", "x2"):
            file[f"data/samples/{name}/v"] = [1, 2]
    read = _read(path)
    assert list(read.records) == ["s#x1", "s#x2"]
    assert (_tensors(read, "v")[0] == [1, 2]).all()


def test_records_of_varying_shape_and_without_some_field(path):
    with h5py.File(path, "w") as file:
        for i, size in enumerate((2, 3, 2)):
            group = file.create_group(str(i))
            group["x"] = np.full((size, 2), i, np.float32)
            if i != 1:
                group["caption"] = f"c{i}"
            group["empty"] = h5py.Empty("f4")
    read = _read(path)
    assert read.schema.field("x") == tensor_field("x", pa.float32())
    assert read.column("caption") == ["c0", None, "c2"]
    assert [x["shape"] for x in read.column("x")] == [[2, 2], [3, 2], [2, 2]]
    assert read.column("x")[1]["data"] == [1.0] * 6
    assert "empty" not in read.schema.names
    assert len(read.batches) == 1


def test_encoded_images_in_groups_are_media(path):
    with h5py.File(path, "w") as file:
        for i, data in enumerate((PNG, JPEG)):
            file[f"{i}/flat"] = np.frombuffer(data, np.uint8)
            file[f"{i}/opaque"] = np.void(data)
            file[f"{i}/plain"] = np.arange(30, dtype=np.uint8)
    read = _read(path)
    assert {f.name: media_of(f) for f in read.schema} == {
        "flat": "image",
        "opaque": "image",
        "plain": None,
    }
    assert read.column("flat") == read.column("opaque") == [PNG, JPEG]
    assert (_tensors(read, "plain")[0][1] == range(30)).all()


def test_a_bad_record_among_groups_is_rejected_alone(path):
    _samples(path, 4)
    with h5py.File(path, "a") as file:
        del file["sample_0001/label"]
        file["sample_0001/label"] = h5py.Empty("i8")
        file.create_dataset("sample_0002/ref", data=[file.ref], dtype=h5py.ref_dtype)
        file["sample_0003/text"] = np.array(b"\xff", "S1")
    for target in (1 << 30, 1):
        read = _read(path, target)
        assert list(read.records) == ["s#sample_0000", "s#sample_0001"]
        assert read.column("label") == [0, None]
        assert read.reasons() == [
            (3, "'ref' holds references, which records cannot"),
            (4, "a string is not UTF-8, or a value is malformed"),
        ]


def test_a_conflict_among_groups_names_their_rows(path):
    with h5py.File(path, "w") as file:
        file["0/v"], file["1/v"], file["2/v"] = 1, 2, "x"
    with pytest.raises(SchemaError) as caught:
        _read(path, 1)
    assert caught.value.message == (
        "the column holds int64 (first in a.h5 row 1) and string (first in a.h5 row 3)"
    )
    assert caught.value.fields == {"column": "v", "file": "a.h5", "row": 3}
    assert _read(path, 1, first_wins=True).column("v") == [1, 2]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ({"left/image": (9, 2), "left/depth": (9,), "right/image": (9, 2), "right/depth": (9,)}, 9),
        ({"s1/image": (9, 9), "s2/image": (9, 9)}, 2),
        ({f"{c}/image": (9, 9) for c in "abcdefghijklmnopq"}, 17),
        ({"cat/image": (9, 9), "cat/label": (), "dog/image": (9, 9), "dog/label": ()}, 2),
        ({"data/images": (9, 2), "data/labels": (9,), "data/version": ()}, 9),
    ],
)
def test_groups_are_told_from_tables(path, content, rows):
    _write(path, {name: np.zeros(shape) for name, shape in content.items()})
    assert len(_read(path).records) == rows


def test_parts_of_a_corpus_in_groups_are_refused(path):
    arrays = {"images": 6, "labels": 6}
    _write(path, {f"train/{n}": np.zeros(c) for n, c in arrays.items()})
    with h5py.File(path, "a") as file:
        file["test/images"], file["test/labels"] = np.zeros(2), np.zeros(2)
        file["train/version"] = file["test/version"] = 1
    with pytest.raises(SchemaError, match="'test.images' has 2 rows, 'train.images' 6"):
        _read(path)


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
    read = _read(path)
    assert read.schema.field("v").type == pa.int16()
    assert read.schema.field("t").type == pa.fixed_shape_tensor(pa.int8(), [2])
    assert list(read.records) == [f"k{i}" for i in range(50)]
    path.write_bytes(path.read_bytes()[:-50])
    (bad,) = _read(path).rejects
    assert bad.row is None
    assert "cut off" in bad.reason


def test_without_h5py_the_extra_is_named(path):
    _write(path, {"v": [1]})
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
        read = _read(path)
        writer.communicate(b"")
    assert [r.reason for r in read.rejects] == reasons
    assert len(read.records) == (0 if reasons else 2)
    assert _read(path).column("v") == [1, 2]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files")
def test_nothing_is_held_open(path):
    _write(path, {"v": np.arange(100)})
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = open_source(path)
    read_all(source, 80)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_records_stood_is_kept(path):
    _samples(path, 2)
    stored = dataset_schema(pa.schema([("label", pa.int64()), origin_field("at")]))
    with h5py.File(path, "a") as file:
        for name in file:
            del file[name]["image"], file[name]["meta"], file[name].attrs["weight"]
    read = _read(path, 1, schema=stored)
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
    assert source.ignored["index of PyTables"] == 1


def test_wide_rows_come_in_bounded_batches(path):
    _write(path, {"v": np.zeros((6, 3 << 20), np.uint8)}, chunks=(6, 1 << 16), compression="lzf")
    read = _read(path)
    assert len(read.records) == 6
    assert len(read.batches) == 3


def _values(source, piece, schema):
    return list(source.read(piece, 0, schema, {}, print))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_the_same(path, method):
    _write(path, {"v": np.arange(5000), "w": [f"w{i}" for i in range(5000)]}, chunks=(100,))
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
    read = _read(path)
    assert read.column("v") == [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    assert read.rejects == []
