"""The conformance of tar shards, what stock readers see in them, and what is refused."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from conformance import Conformance
from records import JPG, ODD_KEYS, PNG, mixed
from webdataset_shards import stock

from geodata.errors import CorruptShard, SchemaError
from geodata.formats import get_format
from geodata.formats.webdataset.tarball import END
from geodata.schema import KEY, dataset_schema, label_field, media_field, tensor_field

FORM = get_format("webdataset")


class TestWebDataset(Conformance):
    name = "webdataset"


class TestWebDatasetWithoutIndex(Conformance):
    name = "webdataset"
    indexed = False


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.tar"


def write(path, batch, unit_bytes=1 << 20):
    writer = FORM.create(path, batch.schema, unit_bytes=unit_bytes, metadata={})
    writer.write(batch)
    writer.close()
    FORM.write_index(path, path.with_suffix(".index"))
    return path


def open_shard(path):
    return FORM.open(path, path.with_suffix(".index"))


def record(fields, *values, key="a/b.c"):
    """Return one record as a batch."""
    schema = dataset_schema(pa.schema(fields))
    arrays = [pa.array([v], f.type) for f, v in zip(schema, (key, None, *values), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def names(path):
    with tarfile.open(path) as tar:
        return tar.getnames()


# stock readers


def test_stock_webdataset_reads_records(path):
    write(path, mixed(60), unit_bytes=5_000)
    batch = mixed(60)
    live = [row for row in batch.to_pylist() if row[KEY] is not None]
    found = stock(path)
    assert len(found) == len(live) < 60
    for sample, row in zip(found, live, strict=True):
        document = json.loads(sample["json"])
        assert document["__key__"] == row[KEY]
        assert document.get("__subject__") == row["__subject__"]
        assert document.get("tags") == row["tags"]
        assert document.get("score") == row["score"]
        assert sample["__key__"] == row[KEY].replace("/", "%2F").replace(".", "%2E")
        assert sample.get("png") == row["image"]
        assert (sample["txt"].decode() if "txt" in sample else None) == row["caption"]
        assert (int(sample["cls"]) if "cls" in sample else None) == row["class"]
        assert ("npy" in sample) == (row["embedding"] is not None)


def test_stock_webdataset_decodes(path):
    fields = [
        label_field("class"),
        media_field("caption", "text"),
        tensor_field("embedding", pa.float32()),
        pa.field("n", pa.int64()),
    ]
    write(path, record(fields, -3, "é\0", {"data": [1, 2, 3, 4], "shape": [2, 2]}, 2**60))
    (sample,) = stock(path, decode=True)
    assert sample["cls"] == -3
    assert sample["txt"] == "é\0"
    assert sample["npy"].dtype == np.float32
    assert sample["npy"].tolist() == [[1, 2], [3, 4]]
    assert sample["json"] == {"__key__": "a/b.c", "n": 2**60}


def test_stock_webdataset_finds_every_odd_key_once(path):
    arrays = [pa.array(ODD_KEYS), pa.nulls(len(ODD_KEYS), pa.string())]
    schema = dataset_schema(pa.schema([media_field("image", "image")]))
    images = pa.array([PNG + bytes([i]) for i in range(len(ODD_KEYS))])
    write(path, pa.RecordBatch.from_arrays([*arrays, images], schema=schema))
    found = stock(path)
    assert [json.loads(sample["json"])["__key__"] for sample in found] == ODD_KEYS
    assert [sample["png"][-1] for sample in found] == list(range(len(ODD_KEYS)))
    assert len({sample["__key__"] for sample in found}) == len(ODD_KEYS)


def test_stock_tarfile_reads_members_with_fixed_headers(path):
    write(path, record([media_field("image", "image")], JPG, key="é" * 200))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert [m.name for m in members] == [
            "__geodata__/shard.json",
            "%C3%A9" * 200 + ".json",
            "%C3%A9" * 200 + ".jpg",
            "__geodata__/end.json",
        ]
        assert {(m.mode, m.uid, m.gid, m.mtime, m.type) for m in members} == {
            (0o644, 0, 0, 0, tarfile.REGTYPE)
        }
        assert tar.extractfile(members[2]).read() == JPG
        about = json.load(tar.extractfile(members[0]))
    assert about["format_version"] == 1
    assert [field["name"] for field in about["schema"]["fields"]] == [KEY, "__subject__", "image"]


def test_the_bytes_of_a_unit_are_a_tar_of_its_records(path):
    batch = mixed(60)
    write(path, batch, unit_bytes=20_000)
    units, data, start = FORM.units(path), path.read_bytes(), 0
    for unit in units:
        assert unit.offset % 512 == unit.length % 512 == 0
        part = data[unit.offset : unit.offset + unit.length] + END
        with tarfile.open(fileobj=io.BytesIO(part)) as tar:
            keys = [json.load(tar.extractfile(m))[KEY] for m in tar if m.name.endswith(".json")]
        expected = batch[KEY].to_pylist()[start : start + unit.slots]
        assert keys == [key for key in expected if key is not None]
        start += unit.slots
    assert start == 60


# which member a column becomes


@pytest.mark.parametrize(
    ("data", "extension"),
    [
        (JPG, "jpg"), (PNG, "png"), (b"GIF89a", "gif"), (b"RIFF1234WEBP", "webp"), (b"BM..", "bmp"),
        (b"II*\0", "tif"), (b"MM\0*", "tif"), (b"RIFF1234WAVE", "wav"), (b"fLaC", "flac"),
        (b"OggS", "ogg"), (b"ID3", "mp3"), (b"<svg", "bin"), (b"", "bin"),
    ],
)  # fmt: skip
def test_media_are_named_by_their_first_bytes(path, data, extension):
    write(path, record([media_field("photo", "image")], data))
    assert f"a%2Fb%2Ec.{extension}" in names(path)
    write(path, record([media_field("A b", "image"), media_field("c", "audio")], data, b"OggS"))
    assert {f"a%2Fb%2Ec.a%20b.{extension}", "a%2Fb%2Ec.c.ogg"} < set(names(path))


def test_the_schema_decides_which_columns_are_members(path):
    tensor = {"data": [1], "shape": [1]}
    fields = [
        media_field("t1", "text"), media_field("t2", "text"), label_field("l1"), label_field("l2"),
        tensor_field("n1", pa.int8()), tensor_field("n2", pa.int8()), pa.field("B", pa.binary()),
        tensor_field("s", pa.string()), pa.field("plain", pa.string()),
    ]  # fmt: skip
    strings = {"data": ["x"], "shape": [1]}
    write(path, record(fields, "a", "b", 1, 2, tensor, tensor, b"b", strings, "p", key="k"))
    assert names(path)[1:-1] == [
        "k.json",
        "k.t1.txt",
        "k.t2.txt",
        "k.n1.npy",
        "k.n2.npy",
        "k.b.bin",
    ]
    with tarfile.open(path) as tar:
        document = json.load(tar.extractfile("k.json"))
    assert document == {"__key__": "k", "l1": 1, "l2": 2, "s": strings, "plain": "p"}


def test_columns_that_differ_in_case_keep_apart(path):
    fields = [pa.field(name, pa.binary()) for name in ("Aa", "aA", "Ä", "ä", "B")]
    write(path, record(fields, b"1", b"2", b"3", b"4", b"5", key="k"))
    found = ["k.%41a.bin", "k.a%41.bin", "k.%c3%84.bin", "k.%c3%a4.bin", "k.b.bin"]
    assert names(path)[2:-1] == found
    (sample,) = stock(path)
    assert [sample[name[2:]] for name in found] == [b"1", b"2", b"3", b"4", b"5"]


def test_numpy_loads_every_tensor_dtype(path):
    kinds = [pa.bool_(), pa.uint8(), pa.int64(), pa.float16(), pa.float64()]
    fields = [tensor_field(str(kind), kind) for kind in kinds]
    tensor = {"data": [1, 0, 1, 1, 0, 1], "shape": [3, 1, 2]}
    values = [{**tensor, "data": pa.array(tensor["data"]).cast(k).to_pylist()} for k in kinds]
    write(path, record(fields, *values, key="k"))
    with tarfile.open(path) as tar:
        for kind in kinds:
            file = tar.extractfile(f"k.{str(kind).lower()}.npy")
            found = np.load(io.BytesIO(file.read()), allow_pickle=False)
            assert found.dtype == pa.array([], kind).to_numpy(zero_copy_only=False).dtype
            assert found.tolist() == np.array(tensor["data"]).reshape(3, 1, 2).tolist()


@pytest.mark.parametrize(
    "tensor",
    [
        {"data": [1, 2], "shape": [3]},
        {"data": [1, None], "shape": [2]},
        {"data": [1], "shape": [None]},
        {"data": [1], "shape": None},
        {"data": None, "shape": [0]},
        {"data": [1, 2], "shape": [-1, -2]},
    ],
    ids=str,
)
def test_a_tensor_that_contradicts_itself_is_refused(path, tensor):
    with pytest.raises(SchemaError, match="tensor") as caught:
        write(path, record([tensor_field("t", pa.int8())], tensor))
    assert caught.value.fields == {"column": "t"}


# reading only what is asked for


def damage(path, member, data=None):
    """Overwrite the content of a member in place."""
    with tarfile.open(path) as tar:
        info = tar.getmember(member)
    with path.open("r+b") as file:
        file.seek(info.offset_data)
        file.write((data or b"\xff" * info.size).ljust(info.size)[: info.size])


def test_members_not_asked_for_are_not_touched(path):
    write(path, record([media_field("image", "image"), pa.field("n", pa.int64())], PNG, 5, key="k"))
    damage(path, "k.json")
    reader = open_shard(path)
    assert reader.read_unit(0, [KEY, "image"]).to_pylist() == [{KEY: "k", "image": PNG}]
    with pytest.raises(CorruptShard):
        reader.read_unit(0, ["n"])
    write(path, record([media_field("image", "image"), pa.field("n", pa.int64())], PNG, 5, key="k"))
    damage(path, "k.png")
    assert open_shard(path).read_unit(0, [KEY, "n"]).to_pylist() == [{KEY: "k", "n": 5}]


@pytest.mark.parametrize(
    ("field", "value", "member", "data"),
    [
        (pa.field("x", pa.int64()), 1, "k.json", b'{"x":"no"'),
        (pa.field("x", pa.int64()), 1, "k.json", b'{"x":"a"}'),
        (pa.field("x", pa.int64()), 1, "k.json", b"[1,2,3]"),
        (pa.field("x", pa.binary(2)), b"ab", "k.json", b'{"x":"!!!!"}'),
        (pa.field("x", pa.timestamp("s")), 1, "k.json", b'{"x":"then"}'),
        (pa.field("x", pa.float64()), 1.5, "k.json", b'{"x":"NAN"}'),
        (label_field("x"), 123, "k.cls", b"12x"),
        (media_field("x", "text"), "abc", "k.txt", b"\xff\xfe\xfd"),
        (tensor_field("x", pa.int8()), {"data": [1], "shape": [1]}, "k.npy", b"\x93NUMPY\x02\x00"),
        (tensor_field("x", pa.int8()), {"data": [1], "shape": [1]}, "k.npy", b"\x80\x04\x95."),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_damaged_member_is_refused(path, field, value, member, data):
    write(path, record([field], value, key="k"))
    damage(path, member, data)
    with pytest.raises(CorruptShard) as caught:
        open_shard(path).read_unit(0, ["x"])
    assert caught.value.fields["shard"] == path.name
    assert caught.value.__cause__ is None
