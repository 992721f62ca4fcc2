"""WebDataset tars: what their members hold, and the types over all records."""

import io
import os

import numpy as np
import pyarrow as pa
import pytest
import webdataset
from formats.records import PNG
from tar_files import JPG, npy, read, rejected, stock, tensor, write_tar

from geodata.errors import SchemaError
from geodata.schema import is_tensor, media_of


def test_extensions_are_columns(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_tar(
        tmp_path / "a.tar",
        ("x/0001.jpg", JPG),
        ("x/0001.seg.PNG", PNG),
        ("x/0001.txt", "é\0".encode()),
        ("x/0001.cls", b"7\n"),
        ("x/0001.json", b'{"a": 1, "b": [0.5]}'),
        ("x/0001.npy", npy(array)),
        ("x/0001.wav", b"RIFF"),
        ("x/0001.bin", b""),
        ("y.json", b'{"a": -1}'),
    )
    found = read(path)
    assert found.rejects == []
    assert found.records["s/x/0001"] == {
        "jpg": JPG,
        "seg.png": PNG,
        "txt": "é\0",
        "cls": 7,
        "json": {"a": 1, "b": [0.5]},
        "npy": tensor(array),
        "wav": b"RIFF",
        "bin": b"",
    }
    assert found.records["s/y"]["json"] == {"a": -1, "b": None}
    assert found.records["s/y"]["jpg"] is None
    media = {field.name: media_of(field) for field in found.schema if media_of(field)}
    assert media == {"jpg": "image", "seg.png": "image", "txt": "text", "wav": "audio"}
    assert is_tensor(found.schema.field("npy"))
    assert found.schema.field("cls").type == pa.int64()
    assert found.schema.field("json").type == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.float64()))]
    )


def test_values_equal_those_of_the_stock_reader(tmp_path):
    rng = np.random.default_rng(0)
    pattern = str(tmp_path / "%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=7, verbose=0) as sink:
        for i in range(20):
            sample = {"__key__": f"d/{i:04}", "cls": i % 3, "txt": f"caption {i} ü"}
            sample |= {"json": {"i": i, "f": i / 3}, "npy": rng.random((i % 4, 2)), "raw": b"\0"}
            sink.write(sample)
    found = read(tmp_path)
    assert found.rejects == []
    samples = {}
    for shard in sorted(tmp_path.glob("*.tar")):
        for sample in stock(shard, decode=True):
            samples[f"s/{shard.name}/{sample['__key__']}"] = sample
    assert list(found.records) == list(samples) and len(samples) == 20
    for key, sample in samples.items():
        record = found.records[key]
        for name in ("cls", "txt", "json", "raw"):
            assert record[name] == sample[name], name
        assert record["npy"] == tensor(sample["npy"])


def test_types_unite_over_pieces_and_files(tmp_path):
    write_tar(
        tmp_path / "a.tar", ("0.json", b'{"a": null}'), ("0.npy", npy(np.ones(2, "f4"))),
        ("1.json", b'{"a": 1}'), ("1.npy", npy(np.ones((1, 1), ">f8")))
    )  # fmt: skip
    write_tar(
        tmp_path / "b.tar", ("0.json", b'{"a": 2.5}'), ("0.npy", npy(np.arange(3, dtype="i2")))
    )
    found = read(tmp_path, 1)
    assert found.rejects == []
    assert found.column("json") == [{"a": None}, {"a": 1.0}, {"a": 2.5}]
    assert [t["data"] for t in found.column("npy")] == [[1.0, 1.0], [1.0], [0.0, 1.0, 2.0]]
    assert found.schema.field("npy").type.field("data").type == pa.list_(pa.float64())


def test_conflicts_name_types_file_and_row(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.json", b'{"a": 1}'), ("1.json", b'{"a": 2}'))
    write_tar(tmp_path / "b.tar", ("0.txt", b""), ("1.json", b'{"a": "x"}'))
    with pytest.raises(SchemaError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(
        "the column holds int64 (first in a.tar row 1) and string (first in b.tar row 2)"
    )
    found = read(tmp_path, first_wins=True)
    assert len(found.records) == 3
    assert found.reasons() == [(2, "'json.a' is int64 here, this record holds string")]


def test_tensors_that_conflict(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.npy", npy(np.ones(1, bool))), ("1.npy", npy(np.ones(1))))
    with pytest.raises(SchemaError, match=r"bool \(first in a.tar row 1\) and double"):
        read(tmp_path)
    found = read(tmp_path, first_wins=True)
    assert [t["data"] for t in found.column("npy")] == [[True]]
    assert len(found.rejects) == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["b1", "i1", "<i8", ">i4", "u1", "<u8", "<f2", ">f4", "<f8"])
def test_arrays_of_all_numbers(tmp_path, kind, order):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, kind, order=order)
    empty, single = np.zeros((0, 3), kind), np.array(1, kind)
    members = [("0.npy", npy(array)), ("1.npy", npy(empty)), ("2.npy", npy(single))]
    found = read(write_tar(tmp_path / "a.tar", *members))
    assert found.rejects == []
    assert found.column("npy") == [tensor(array), tensor(empty), tensor(single)]


def bad_shape():
    return npy(np.zeros(4, "f4")).replace(b"(4,)", b"(9,)")


def npy_of_shape(shape, by_column=False):
    """Return an .npy file whose header says a shape that NumPy itself may not take."""
    told = f"{{'descr': '<i4', 'fortran_order': {by_column}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + len(told).to_bytes(2, "little") + told


BAD_ARRAYS = [
    npy(np.array(["a"])),
    npy(np.zeros(1, "c8")),
    npy(np.zeros(1, [("a", "i4")])),
    npy(np.zeros(2))[:-1],
    npy(np.zeros(2)) + b"x",
    bad_shape(),
    npy_of_shape("(" + "9" * 5000 + ",)"),
    npy_of_shape("(" + "1, " * 100 + ")", by_column=True) + bytes(4),
    b"",
    b"\x93NUMPY",
    b"\x93NUMPY\x01\x00\xff\xff{",
    b"no array",
]


@pytest.mark.parametrize("data", BAD_ARRAYS)
def test_arrays_that_are_refused(tmp_path, data):
    found = read(write_tar(tmp_path / "a.tar", ("0.npy", data), ("1.npy", npy(np.zeros(1)))))
    assert list(found.records) == ["s/1"] and len(found.rejects) == 1


@pytest.mark.parametrize("by_column", [False, True])
def test_an_empty_array_may_be_long_in_other_dimensions(tmp_path, by_column):
    long = (1 << 31) - 1
    data = npy_of_shape(f"({long}, {long}, {long}, 0)", by_column)
    found = read(write_tar(tmp_path / "a.tar", ("0.npy", data)))
    assert found.column("npy") == [{"data": [], "shape": [long, long, long, 0]}]


def test_pickles_are_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    import pickle

    trapped = io.BytesIO()
    np.save(trapped, np.array([Trap()], object), allow_pickle=True)
    bad = [("0.pkl", pickle.dumps(Trap())), ("1.pyd", b""), ("2.x.pth", b""), ("3.pkl.gz", b"")]
    bad += [("4.pt", b""), ("5.npy", trapped.getvalue())]
    found = read(write_tar(tmp_path / "a.tar", *bad, ("6.txt", b"")))
    assert list(found.records) == ["s/6"]
    assert [row for row, _ in found.reasons()] == [1, 2, 3, 4, 5, 6]
    assert found.reasons()[0][1] == "the member is a pickle: reading it would run code"
    assert found.rejects[0].file == "a.tar/0.pkl"
    assert not (tmp_path / "sprung").exists()


BAD_CONTENTS = [
    (
        "0.txt",
        b"\xff",
        "invalid UTF-8 at byte 0; if it is in another encoding, say which it is with --encoding",
    ),
    ("0.json", b'{"a":', "invalid JSON at line 1 column 6: Expecting value"),
    ("0.json", b'{"a": 1, "a": 2}', "an object has a key twice"),
    ("0.json", b'"\\ud800"', "a string holds half a surrogate pair"),
    ("0.json", b"1e999", "a number is too large for a float64"),
    ("0.json", b"[" * 40 + b"]" * 40, "nested deeper than 32 levels"),
    ("0.", b"", "the member's name ends with a dot"),
]


@pytest.mark.parametrize(("name", "content", "reason"), BAD_CONTENTS)
def test_contents_that_are_refused(tmp_path, name, content, reason):
    path = write_tar(tmp_path / "a.tar", (name, content), ("1.txt", b"x"))
    assert rejected(path) == [(f"a.tar/{name}", 1, reason)]
    assert list(read(path).records) == ["s/1"]


def test_names_of_the_columns_are_checked(tmp_path):
    with pytest.raises(SchemaError, match="reserved"):
        read(write_tar(tmp_path / "a.tar", ("a.__url__", b"x")))
