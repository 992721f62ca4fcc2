"""HDF5 that is damaged, or holds what is no column."""

import h5py
import numpy as np
import pytest
from hdf5_files import read_file, write_arrays
from source_reading import read_all

import geodata
from geodata.errors import SchemaError
from geodata.sources import open_source


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def test_arrays_that_are_not_parallel_are_refused(path):
    write_arrays(path, {"images": np.zeros((5, 2)), "labels": np.zeros(5), "names": np.zeros(3)})
    with pytest.raises(
        SchemaError, match=r"'images' has 5 rows, 'names' 3 \(file a.h5\).*first axis"
    ):
        read_file(path)
    read = read_file(path, first_wins=True)
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
    ignored = {
        "attribute": 2,
        "scalar dataset": 2,
        "named type": 1,
        "soft link": 1,
        "link to another file": 1,
    }
    for target in (1, 1 << 30):
        source = open_source(path, source_id="s")
        read = read_all(source, target)
        assert (read.ignored, source.ignored) == (ignored, {})
        assert read.column("v") == [1, 2]


def test_the_report_counts_what_lies_beside_records_once(tmp_path):
    path = tmp_path / "in/a.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file["v"] = np.zeros((5000, 100))
        file["v"].attrs["unit"] = "m"
    (path.parent / "b.md").write_text("")
    report = geodata.convert(path.parent, tmp_path / "out", kind="hdf5", workers=1)
    assert report.ignored == {".md": 1, "attribute": 1}


def test_links_in_a_circle_end(path):
    with h5py.File(path, "w") as file:
        file["a/b/v"] = [1, 2]
        file["a/b/up"] = file["a"]
        file["a/b/root"] = file["/"]
        file["a/z"] = file["a/b"]
        file["a/soft"] = h5py.SoftLink("/a/soft")
    source = open_source(path, source_id="s")
    read = read_all(source)
    assert read.column("a.b.v") == [1, 2]
    assert read.ignored == {"group that is linked again": 3, "soft link": 1}


def test_a_diamond_of_groups_is_walked_once(path):
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(30):
            below = group.create_group("a")
            group["b"] = below
            group = below
        group["v"] = [1]
    assert list(read_file(path).records.values()) == [{".".join("a" * 30) + ".v": 1}]


def test_values_in_other_files_are_refused(path, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 80)
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (10,), "i8", external=[(str(secret), 0, 80)])
    with pytest.raises(SchemaError, match="values of 'v' lie elsewhere"):
        read_file(path)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (10,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)
    with pytest.raises(SchemaError, match="values of 'v' lie elsewhere"):
        read_file(path)


def test_references_are_refused(path):
    with h5py.File(path, "w") as file:
        file["v"] = [1]
        file.create_dataset("r", data=[file.ref], dtype=h5py.ref_dtype)
    with pytest.raises(SchemaError, match="'r' holds references, which records cannot"):
        read_file(path)


def test_claims_that_nothing_stands_behind_are_refused(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (1 << 50,), "i8", chunks=(1024,))
    with pytest.raises(SchemaError, match="values of 'v' were never written"):
        read_file(path)
    with h5py.File(path, "a") as file:
        file["v"][0] = 1
    with pytest.raises(SchemaError, match="'v' claims far more values than the file holds"):
        read_file(path)


def test_a_file_that_is_no_hdf5_is_one_rejected_record(tmp_path):
    write_arrays(tmp_path / "d.h5", {"v": np.arange(10_000)})
    whole = (tmp_path / "d.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(b"")
    (tmp_path / "b.h5").write_bytes(b"not at all")
    (tmp_path / "c.h5").write_bytes(whole[: len(whole) // 2])
    read = read_file(tmp_path)
    assert len(read.records) == 10_000
    damaged = "the file is not HDF5, or it is damaged"
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("a.h5", None, damaged),
        ("b.h5", None, damaged),
        ("c.h5", None, "the file is truncated"),
    ]


def test_a_damaged_chunk_loses_its_rows(path):
    write_arrays(path, {"v": np.arange(3000)}, chunks=(1000,), compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["v"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + 5] ^= 0xFF
    path.write_bytes(data)
    read = read_file(path, 1000 * 8)
    assert read.column("v") == [*range(1000), *range(2000, 3000)]
    assert read.reasons() == [(i + 1, "its values cannot be read") for i in range(1000, 2000)]
