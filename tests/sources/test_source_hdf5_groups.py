"""HDF5 with a group for each record."""

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import JPEG, PNG, read_file, tensors_of, write_arrays, write_samples

from geodata.errors import SchemaError
from geodata.schema import media_of, tensor_field


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def test_a_group_is_a_record(path):
    write_samples(path)
    for target in (1 << 30, 1):
        read = read_file(path, target)
        assert list(read.records) == [f"s#sample_{i:04}" for i in range(5)]
        assert read.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [4, 4, 3])
        assert read.column("label") == [0, 1, 0, 1, 0]
        assert read.column("meta.name") == [f"name {i}" for i in range(5)]
        assert read.column("weight") == [0.0, 0.5, 1.0, 1.5, 2.0]
        assert (tensors_of(read, "image")[0][:, 0, 0, 0] == range(5)).all()
    assert len(read_file(path).batches) == 1


def test_groups_in_a_group_of_their_own(path):
    with h5py.File(path, "w") as file:
        file["version"] = 1
        for name in ("x1", "x2"):
            file[f"data/samples/{name}/v"] = [1, 2]
    read = read_file(path)
    assert list(read.records) == ["s#x1", "s#x2"]
    assert (tensors_of(read, "v")[0] == [1, 2]).all()


def test_records_of_varying_shape_and_without_some_field(path):
    with h5py.File(path, "w") as file:
        for i, size in enumerate((2, 3, 2)):
            group = file.create_group(str(i))
            group["x"] = np.full((size, 2), i, np.float32)
            if i != 1:
                group["caption"] = f"c{i}"
            group["empty"] = h5py.Empty("f4")
    read = read_file(path)
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
    read = read_file(path)
    assert {f.name: media_of(f) for f in read.schema} == {
        "flat": "image",
        "opaque": "image",
        "plain": None,
    }
    assert read.column("flat") == read.column("opaque") == [PNG, JPEG]
    assert (tensors_of(read, "plain")[0][1] == range(30)).all()


def test_a_bad_record_among_groups_is_rejected_alone(path):
    write_samples(path, 4)
    with h5py.File(path, "a") as file:
        del file["sample_0001/label"]
        file["sample_0001/label"] = h5py.Empty("i8")
        file.create_dataset("sample_0002/ref", data=[file.ref], dtype=h5py.ref_dtype)
        file["sample_0003/text"] = np.array(b"\xff", "S1")
    for target in (1 << 30, 1):
        read = read_file(path, target)
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
        read_file(path, 1)
    assert caught.value.message == (
        "the column holds int64 (first in a.h5 row 1) and string (first in a.h5 row 3)"
    )
    assert caught.value.fields == {"column": "v", "file": "a.h5", "row": 3}
    assert read_file(path, 1, first_wins=True).column("v") == [1, 2]


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
    write_arrays(path, {name: np.zeros(shape) for name, shape in content.items()})
    assert len(read_file(path).records) == rows


def test_parts_of_a_corpus_in_groups_are_refused(path):
    arrays = {"images": 6, "labels": 6}
    write_arrays(path, {f"train/{n}": np.zeros(c) for n, c in arrays.items()})
    with h5py.File(path, "a") as file:
        file["test/images"], file["test/labels"] = np.zeros(2), np.zeros(2)
        file["train/version"] = file["test/version"] = 1
    with pytest.raises(SchemaError, match="'test.images' has 2 rows, 'train.images' 6"):
        read_file(path)
