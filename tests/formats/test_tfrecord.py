"""The conformance of TFRecord shards, and what stock readers see in them."""

import struct
import subprocess
import sys

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
import tfrecord
from conformance import Conformance
from records import JPG, ODD_KEYS, PNG, assert_same, mixed, rows
from tfrecord import example_pb2

from geodata.errors import SchemaError
from geodata.formats import get_format
from geodata.schema import KEY, SUBJECT, dataset_schema, label_field, media_field, tensor_field

FORM = get_format("tfrecord")


class TestTfRecord(Conformance):
    name = "tfrecord"


class TestTfRecordWithoutIndex(Conformance):
    name = "tfrecord"
    indexed = False


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.tfrecord"


def write(path, batch, unit_bytes=1 << 20, **more):
    writer = FORM.create(path, batch.schema, unit_bytes=unit_bytes, metadata={}, **more)
    writer.write(batch)
    writer.close()
    return path


def read(path):
    reader = FORM.open(path)
    units = [reader.read_unit(unit) for unit in range(len(reader.unit_slots))]
    return pa.Table.from_batches(units).combine_chunks().to_batches()[0]


def records(fields, *columns):
    """Return records with these columns, keys k0, k1 and so on."""
    schema = dataset_schema(pa.schema(fields))
    count = len(columns[0])
    keys = [pa.array([f"k{i}" for i in range(count)]), pa.nulls(count, pa.string())]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays([*keys, *arrays], schema=schema)


# stock readers


def frames(path):
    """Return the data of each frame, all checksums verified."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
        found.append(body)
        at += 16 + length
    return found


def masked(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15) + (crc << 17) + 0xA282EAD8) % 2**32


def parsed(path):
    """Return the features of each record as Protocol Buffers parse them: name to list."""
    messages = [example_pb2.Example.FromString(data) for data in frames(path)]
    return [
        {
            name: list(getattr(feature, feature.WhichOneof("kind")).value)
            for name, feature in message.features.feature.items()
        }
        for message in messages
    ]


def natural(features):
    return {name: v for name, v in features.items() if not name.startswith("__geodata__/")}


def test_stock_tfrecord_reads_images_and_labels(path):
    images = [PNG, JPG, b"\0" * 300_000]
    fields = [media_field("image", "image"), label_field("label")]
    write(path, records(fields, images, [3, -1, 2**40]))
    found = list(tfrecord.tfrecord_loader(str(path), None, {"image": "byte", "label": "int"}))
    assert [sample["image"] for sample in found] == images
    assert [sample["label"].tolist() for sample in found] == [[3], [-1], [2**40]]


def test_stock_tfrecord_reads_floats_and_text(path):
    fields = [
        media_field("caption", "text"),
        tensor_field("embedding", pa.float32()),
        pa.field("half", pa.float16()),
        pa.field("score", pa.float64()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("tags", pa.list_(pa.string())),
    ]
    tensor = {"data": [0.5, -1.5, 3.0, 4.0], "shape": [2, 2]}
    write(
        path,
        records(
            fields, ["é\0"], [tensor], [np.float16(0.5)], [1 / 3], [[1, -2, 300]], [["a", "é"]]
        ),
    )
    description = {
        "caption": "byte", "embedding": "float", "__geodata__/shape/embedding": "int",
        "half": "float", "score": "float", "tokens": "int", "tags": "byte", KEY: "byte",
    }  # fmt: skip
    (sample,) = tfrecord.tfrecord_loader(str(path), None, description)
    assert sample["caption"] == "é\0".encode()
    assert sample["embedding"].dtype == np.float32
    assert sample["embedding"].tolist() == [0.5, -1.5, 3.0, 4.0]
    assert sample["__geodata__/shape/embedding"].tolist() == [2, 2]
    assert sample["half"].tolist() == [0.5]
    assert sample["score"].tolist() == [np.float32(1 / 3)]
    assert sample["tokens"].tolist() == [1, -2, 300]
    assert sample["tags"].tolist() == [b"a", "é".encode()]
    assert sample[KEY] == b"k0"


def test_stock_readers_see_the_live_records_and_nothing_else(path):
    batch = mixed(60)
    write(path, batch, unit_bytes=5_000)
    live = [row for row in batch.to_pylist() if row[KEY] is not None]
    found = parsed(path)
    assert len(found) == len(live) < 60
    assert len(list(tfrecord.tfrecord_loader(str(path), None))) == len(live)
    for features, row in zip(found, live, strict=True):
        expected = {KEY: [row[KEY].encode()]}
        if row[SUBJECT] is not None:
            expected[SUBJECT] = [row[SUBJECT].encode()]
        if row["image"] is not None:
            expected["image"] = [row["image"]]
        if row["caption"] is not None:
            expected["caption"] = [row["caption"].encode()]
        if row["class"] is not None:
            expected["class"] = [row["class"]]
        if row["embedding"] is not None:
            expected["embedding"] = row["embedding"]["data"]
        if row["score"] is not None:
            expected["score"] = [float(np.float32(row["score"]))]
        if row["tags"] == []:
            expected["tags"] = []
        assert natural(features) == expected


def test_only_the_last_record_says_what_the_shard_is(path):
    write(path, mixed(60), unit_bytes=5_000)
    *others, last = parsed(path)
    assert "__geodata__/shard" in last
    assert not any("__geodata__/shard" in features for features in others)


@pytest.mark.parametrize("slots", [[], [3], [0, 2, 1]], ids=str)
def test_a_shard_without_live_records_has_one_that_says_so(path, slots):
    schema = mixed(1).schema
    count = sum(slots)
    dead = pa.RecordBatch.from_arrays([pa.nulls(count, f.type) for f in schema], schema=schema)
    write(path, dead, unit_slots=[s for s in slots if s])
    assert [list(features) for features in parsed(path)] == [["__geodata__/shard"]]
    assert FORM.open(path).num_rows == count
    assert all(unit.length == 0 for unit in FORM.units(path))


def test_units_of_tombstones_take_no_bytes(path):
    batch = rows(pa.array([1, 2, 3, 4, 5, 6]))
    kept = pa.array([False, True, False, False, True, False])
    arrays = [pa.compute.if_else(kept, column, None) for column in batch.columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
    write(path, batch, unit_slots=[1, 1, 2, 2])
    size = path.stat().st_size
    first, second, third, fourth = FORM.units(path)
    assert (first.offset, first.length, third.length) == (0, 0, 0)
    assert second.offset == 0
    assert third.offset == fourth.offset == second.length
    assert fourth.offset + fourth.length == size
    assert_same(read(path), batch)


def test_no_unit_starts_inside_a_frame(path):
    write(path, mixed(60), unit_bytes=5_000)
    sizes = [len(data) + 16 for data in frames(path)]
    starts = {0, *np.cumsum(sizes).tolist()}
    assert {unit.offset for unit in FORM.units(path)} <= starts


def test_odd_keys_are_features(path):
    images = pa.array([PNG] * len(ODD_KEYS))
    batch = records([media_field("image", "image")], images)
    write(path, batch.set_column(0, batch.schema.field(0), pa.array(ODD_KEYS)))
    assert [features[KEY] for features in parsed(path)] == [[key.encode()] for key in ODD_KEYS]


# how values stand in features


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([True, False]), [[1], [0]]),
        (pa.array([-1, 127], pa.int8()), [[-1], [127]]),
        (pa.array([2**64 - 1, 5], pa.uint64()), [[-1], [5]]),
        (pa.array([7], pa.timestamp("us", "UTC")), [[7]]),
        (pa.array([-7], pa.date32()), [[-7]]),
        (pa.array([7], pa.time32("s")), [[7]]),
        (pa.array([7], pa.duration("ns")), [[7]]),
        (pa.array([b"ab", b""]), [[b"ab"], [b""]]),
        (pa.array([b"ab"], pa.binary(2)), [[b"ab"]]),
        (pa.array([[1, 2], []], pa.list_(pa.int64())), [[1, 2], []]),
        (pa.array([[1, 2]], pa.list_(pa.uint8(), 2)), [[1, 2]]),
        (pa.array([["a"], [""], []], pa.large_list(pa.string())), [[b"a"], [b""], []]),
        (pa.array([[0.5], [-0.0]], pa.list_(pa.float32())), [[0.5], [-0.0]]),
        (pa.array([1.5, 2.0**200, -0.0]), [[1.5], [float("inf")], [-0.0]]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_plain_values_stand_under_their_own_name(path, array, expected):
    write(path, rows(array))
    assert [features["value"] for features in parsed(path)] == expected
    assert_same(read(path), rows(array))


def test_values_that_would_lose_something_stand_exact(path):
    lists = [[1, None], [2], None, []]
    fields = [pa.field("score", pa.float64()), pa.field("list", pa.list_(pa.int8()))]
    write(path, records(fields, [0.1, 0.5, float("nan"), None], lists))
    exact = [
        {name for name in features if name.startswith("__geodata__/exact/")}
        for features in parsed(path)
    ]
    both = {"__geodata__/exact/score", "__geodata__/exact/list"}
    assert exact == [both, set(), set(), set()]
    first = parsed(path)[0]
    assert first["__geodata__/exact/score"] == [struct.pack("<d", 0.1)]
    assert first["__geodata__/exact/list"] == [struct.pack("<I??bb", 2, True, False, 1, 0)]
    assert "list" not in first
    assert [features.get("list") for features in parsed(path)] == [None, [2], None, []]


def test_a_tensor_without_its_shape_stands_exact(path):
    field = tensor_field("t", pa.int8())
    tensors = [
        {"data": [1, 2], "shape": [2]},
        {"data": [1], "shape": None},
        {"data": None, "shape": [0]},
        {"data": [1], "shape": [None]},
        {"data": [1, 2], "shape": [3]},
        None,
    ]
    batch = records([field], tensors)
    write(path, batch)
    assert_same(read(path), batch)
    found = parsed(path)
    assert [features.get("t") for features in found] == [[1, 2], None, None, None, [1, 2], None]
    assert ["__geodata__/exact/t" in f for f in found] == [False, True, True, True, False, False]


@pytest.mark.parametrize(
    "name", ["__geodata__/shard", "__geodata__/exact/a", "__geodata__/column/a", "__geodata__/"]
)
def test_columns_with_reserved_names_keep_apart(path, name):
    fields = [pa.field("a", pa.float64()), pa.field(name, pa.binary())]
    batch = records(fields, [0.1, None], [b"x", b"y"])
    write(path, batch)
    assert_same(read(path), batch)
    found = [features[f"__geodata__/column/{name}"] for features in parsed(path)]
    assert found == [[b"x"], [b"y"]]


def test_a_schema_without_keys_has_no_tombstones(path):
    batch = pa.RecordBatch.from_pydict({"a": pa.array([None, 1, None], pa.int8())})
    write(path, batch)
    assert_same(read(path), batch)
    assert [natural(features) for features in parsed(path)] == [{}, {"a": [1]}, {}]


def test_text_that_is_not_utf8_is_refused(path):
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")]
    )
    with pytest.raises(SchemaError, match="UTF-8") as caught:
        write(path, rows(text))
    assert caught.value.fields == {"column": "value"}


def test_a_missing_package_is_named():
    code = (
        "import sys; sys.modules['google_crc32c'] = None\n"
        "from geodata.errors import MissingExtra\n"
        "from geodata.formats import get_format\n"
        "try:\n    get_format('tfrecord')\n"
        "except MissingExtra as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == (
        'google-crc32c is not installed. pip install "geodata-train[tfrecord]"\n'
    )


# reading only what is asked for


def test_features_not_asked_for_are_not_touched(path):
    batch = records([media_field("image", "image"), pa.field("n", pa.int64())], [PNG], [5])
    write(path, batch)
    index = path.with_suffix(".index")
    FORM.write_index(path, index)
    data = path.read_bytes()
    path.write_bytes(data.replace(PNG, b"\xff" * len(PNG)))
    assert FORM.open(path, index).read_unit(0, [KEY, "n"]).to_pylist() == [{KEY: "k0", "n": 5}]
    start = data.index(b"\x0a\x01n\x12") + 4
    path.write_bytes(data[:start] + b"\xff" * 5 + data[start + 5 :])
    reader = FORM.open(path, index)
    assert reader.read_unit(0, [KEY, "image"]).to_pylist() == [{KEY: "k0", "image": PNG}]


def test_records_not_asked_for_are_not_touched(path):
    write(path, rows(pa.array([b"a" * 50, b"b" * 50, b"c" * 50])))
    index = path.with_suffix(".index")
    FORM.write_index(path, index)
    data = bytearray(path.read_bytes())
    start = data.index(b"a" * 50)
    data[start - 40 : start + 60] = bytes(100)
    path.write_bytes(data)
    assert FORM.open(path, index).take([1], ["value"])[0].to_pylist() == [b"b" * 50]
