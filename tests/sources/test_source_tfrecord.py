"""TFRecord files: values as stock readers give them, and a reason for every lost record."""

import bz2
import gzip
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
import tfrecord
from formats.records import JPG, PNG, assert_same, mixed
from formats.typematrix import COLUMNS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_shards import batches_of, typed, write_own
from source_reading import read_all
from tfrecord import example_pb2

from geodata.errors import SchemaError
from geodata.formats.tfrecord.frames import checksum, framed
from geodata.schema import KEY, dataset_schema, media_of, origin_field
from geodata.sources import open_source
from geodata.sources.batches import Unfit
from geodata.sources.tfexamples import features_of


def example(**features):
    """Return a serialized Example; a feature is a list of bytes, floats or integers, or None."""
    made = example_pb2.Example()
    for name, values in features.items():
        feature = made.features.feature[name]
        if values is None:
            continue
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        elif values:
            feature.int64_list.value.extend(values)
        else:
            feature.bytes_list.SetInParent()
    return made.SerializeToString()


def frames(*records):
    return b"".join(bytes(part) for part in framed(records))


def write(path, *records, pack=bytes):
    path.write_bytes(pack(frames(*records)))
    return path


def read(path, target=1 << 30, **options):
    return read_all(open_source(path, kind="tfrecord", source_id="s"), target, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.tfrecord"


# columns and values


def test_features_are_columns(path):
    write(
        path,
        example(id=[1], score=[0.5], name=["Zoë".encode()], raw=[b"\0\1"], tags=[b"a", b"b"]),
        example(id=[-(2**63)], score=[0.1], name=[b"x"], raw=[b"text"], boxes=[0.25, 1.0]),
        example(id=[2**63 - 1], name=[b""], tags=[], boxes=[], none=None),
    )
    found = read(path)
    assert found.rejects == []
    assert found.schema.field("id").type == pa.int64()
    assert found.schema.field("score").type == pa.float32()
    assert found.schema.field("name").type == pa.string()
    assert found.schema.field("raw").type == pa.binary()
    assert found.schema.field("tags").type == pa.list_(pa.string())
    assert found.schema.field("boxes").type == pa.list_(pa.float32())
    assert "none" not in found.schema.names
    assert list(found.records) == ["s#1", "s#2", "s#3"]
    assert found.column("id") == [1, -(2**63), 2**63 - 1]
    assert found.column("score") == [0.5, float(np.float32(0.1)), None]
    assert found.column("name") == ["Zoë", "x", ""]
    assert found.column("raw") == [b"\0\1", b"text", None]
    assert found.column("tags") == [["a", "b"], None, []]
    assert found.column("boxes") == [None, [0.25, 1.0], []]


def test_values_equal_those_of_the_stock_reader(path):
    rng = np.random.default_rng(0)
    writer = tfrecord.TFRecordWriter(str(path))
    for i in range(40):
        writer.write(
            {
                "image": (PNG + bytes(rng.bytes(i)), "byte"),
                "label": (i % 3, "int"),
                "many": (rng.integers(-(2**60), 2**60, 50).tolist(), "int"),
                "vector": (rng.random(i % 5 + 1).tolist(), "float"),
            }
        )
    writer.close()
    found = read(path, 256)
    stock = list(tfrecord.tfrecord_loader(str(path), None))
    assert found.rejects == [] and len(stock) == len(found.records) == 40
    assert media_of(found.schema.field("image")) == "image"
    for record, other in zip(found.records.values(), stock, strict=True):
        assert record["image"] == bytes(other["image"])
        assert record["label"] == other["label"][0]
        assert record["many"] == other["many"].tolist()
        assert record["vector"] == other["vector"].tolist()


def test_encoded_media_are_recognised_by_their_first_bytes(path):
    write(
        path,
        example(image=[JPG], mixed=[PNG], sound=[b"RIFF\0\0\0\0WAVE"], two=[PNG, PNG]),
        example(image=[PNG], mixed=[b"\0"], sound=[b"fLaC"], two=[PNG]),
    )
    found = read(path)
    media = {field.name: media_of(field) for field in found.schema}
    assert media == {"image": "image", "mixed": None, "sound": "audio", "two": None}
    assert found.column("image") == [JPG, PNG]
    assert found.schema.field("two").type == pa.list_(pa.binary())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"a", "é\n".encode()], pa.string()),
        ([b"a", b"\xff"], pa.binary()),
        ([b"a", b"a\0"], pa.binary()),
        ([b"", b""], pa.binary()),
    ],
)
def test_bytes_are_text_only_where_all_are(tmp_path, values, kind):
    for i, value in enumerate(values):
        write(tmp_path / f"{i}.tfrecord", example(v=[value]))
    found = read(tmp_path)
    assert found.schema.field("v").type == kind
    as_bytes = [v.encode() if isinstance(v, str) else v for v in found.column("v")]
    assert as_bytes == values


def test_scalars_widen_to_lists_over_files(tmp_path):
    write(tmp_path / "a.tfrecord", example(v=[1]), example(w=[1.0]))
    write(tmp_path / "b.tfrecord", example(v=[2, 3]), example(v=[]))
    found = read(tmp_path)
    assert found.column("v") == [[1], None, [2, 3], []]
    assert list(found.records) == [f"s/{n}.tfrecord#{i}" for n in "ab" for i in (1, 2)]


def test_integers_and_floats_unite_where_no_integer_loses(tmp_path):
    write(tmp_path / "a.tfrecord", example(v=[1]), example(v=[2**53]))
    write(tmp_path / "b.tfrecord", example(v=[0.5]))
    assert read(tmp_path).column("v") == [1.0, 2.0**53, 0.5]
    write(tmp_path / "a.tfrecord", example(v=[1]), example(v=[-(2**53) - 1]))
    with pytest.raises(SchemaError, match=r"int64 \(first in a.tfrecord row 1\) and float"):
        read(tmp_path)
    found = read(tmp_path, first_wins=True)
    assert found.column("v") == [1, -(2**53) - 1] and len(found.rejects) == 1


def test_conflicts_name_kinds_file_and_row(tmp_path):
    write(tmp_path / "a.tfrecord", example(v=[1]))
    write(tmp_path / "b.tfrecord", example(), example(v=[b"x"]))
    with pytest.raises(SchemaError) as caught:
        read(tmp_path)
    assert caught.value.message == (
        "the column holds int64 (first in a.tfrecord row 1) and bytes (first in b.tfrecord row 2)"
    )
    assert caught.value.fields == {"column": "v", "file": "b.tfrecord", "row": 2}
    found = read(tmp_path, first_wins=True)
    assert found.reasons() == [(2, "'v' is int64 here, this record holds binary")]


# messages


def message(number, content):
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def one_feature(content, name=b"v"):
    return message(1, message(1, message(1, name) + message(2, content)))


def test_numbers_that_are_not_packed():
    floats = message(2, b"".join(b"\x0d" + struct.pack("<f", x) for x in (0.5, -1.0)))
    integers = message(3, b"\x08\x05" + b"\x08" + b"\xff" * 9 + b"\x01")
    assert features_of(one_feature(floats))["v"].values.tolist() == [0.5, -1.0]
    assert features_of(one_feature(integers))["v"].values.tolist() == [5, -1]


BAD_MESSAGES = [
    b"\xff" * 20,
    b"no protocol buffer at all",
    one_feature(message(4, b"")),
    one_feature(message(1, b"\x08\x01")),
    one_feature(message(2, message(1, b"abc"))),
    one_feature(message(3, message(1, b"\xff"))),
    one_feature(message(1, b"") + message(2, b"")),
    one_feature(message(1, b""), b"\xff"),
    example(v=[1])[:-1],
]


@pytest.mark.parametrize("data", BAD_MESSAGES)
def test_what_is_no_example(path, data):
    found = read(write(path, data, example(v=[1])))
    assert found.reasons() == [(1, "the record is no tf.train.Example")]
    assert found.rejects[0].raw == data
    assert list(found.records) == ["s#2"]


def test_a_feature_twice_is_refused():
    twice = message(1, 2 * message(1, message(1, b"v") + message(2, message(3, b""))))
    with pytest.raises(Unfit, match="a feature twice"):
        features_of(twice)


def test_features_without_end_are_refused():
    with pytest.raises(Unfit, match="more than 10000 features"):
        features_of(example(**{str(n): [n] for n in range(10_001)}))


def test_a_sequence_example_is_refused(path):
    made = example_pb2.SequenceExample()
    made.feature_lists.feature_list["v"].feature.add().int64_list.value.append(1)
    found = read(write(path, made.SerializeToString()))
    assert "SequenceExample" in found.rejects[0].reason


# frames


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress, bz2.compress])
def test_compressed_files(path, pack):
    records = [example(v=[i], w=[b"w" * i]) for i in range(50)]
    found = read(write(path, *records, pack=pack), 1)
    assert found.rejects == []
    assert found.column("v") == list(range(50))


def test_pieces_are_runs_of_records(path):
    write(path, *[example(v=[i]) for i in range(100)])
    pieces = open_source(path).pieces(100)
    assert len(pieces) > 10
    cut, whole = read(path, 100), read(path)
    assert cut.records == whole.records and len(cut.records) == 100
    assert list(cut.records)[99] == "s#100"


def test_a_wrong_checksum_costs_one_record(path):
    records = [example(v=[i], w=[b"w" * 20]) for i in range(5)]
    data = bytearray(frames(*records))
    size = len(data) // 5
    data[2 * size + 20] ^= 1
    path.write_bytes(data)
    found = read(path)
    assert found.column("v") == [0, 1, 3, 4]
    assert found.reasons() == [(3, "the checksum of the record is wrong")]
    assert len(found.rejects[0].raw) == size - 16


def test_a_wrong_length_ends_the_file_with_one_reason(path):
    records = [example(v=[i], w=[b"w" * 20]) for i in range(5)]
    data = bytearray(frames(*records))
    size = len(data) // 5
    data[2 * size] ^= 1
    path.write_bytes(data)
    for target in (1, 1 << 30):
        found = read(path, target)
        assert found.column("v") == [0, 1]
        assert found.reasons() == [
            (3, f"the length of the record at byte {2 * size} is damaged: no other can be found")
        ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_cut_at_any_byte_loses_no_record_silently(path, pack):
    records = [example(v=[i]) for i in range(4)]
    data = pack(frames(*records))
    size = len(frames(records[0]))
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        found = read(path)
        assert found.column("v") == list(range(len(found.records))) if found.records else True
        whole = pack is bytes and length % size == 0
        assert len(found.rejects) == (0 if whole else 1), length


def test_an_empty_file_holds_no_record(path):
    path.write_bytes(b"")
    found = read(path)
    assert (found.records, found.rejects) == ({}, [])


def test_a_length_beyond_the_file_is_refused(path):
    length = struct.pack("<Q", 1 << 60)
    head = length + struct.pack("<I", checksum(length))
    path.write_bytes(frames(example(v=[1])) + head + b"x" * 99)
    found = read(path)
    assert found.column("v") == [1]
    assert "cut off" in found.rejects[0].reason


@given(st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_bytes_never_crash(tmp_path, data):
    whole = bytearray(frames(*[example(v=[i], w=[b"w" * i], x=[0.5] * i) for i in range(6)]))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    (tmp_path / "a.tfrecord").write_bytes(whole)
    found = read(tmp_path / "a.tfrecord", data.draw(st.sampled_from([1, 1 << 30])))
    assert all(len(record["w"]) == record["v"] for record in found.records.values())


def _kind(feature):
    return "O" if feature.kind == "bytes" else feature.values.dtype


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_an_example_or_refused(data):
    try:
        features = features_of(data)
    except Unfit:
        return
    parsed = example_pb2.Example.FromString(data)
    for name, feature in features.items():
        stock = list(getattr(parsed.features.feature[name], f"{feature.kind}_list").value)
        assert repr(list(feature.values)) == repr(list(np.array(stock, "O").astype(_kind(feature))))


def test_garbage_is_one_reject(path):
    path.write_bytes(b"garbage " * 100)
    assert read(path).reasons() == [
        (1, "the length of the record at byte 0 is damaged: no other can be found")
    ]


def test_names_of_one_of_several_files(tmp_path):
    for i in range(3):
        write(tmp_path / f"train.tfrecord-0000{i}-of-00003", example(v=[i]))
    assert open_source(tmp_path).kind == "tfrecord"
    assert list(read(tmp_path).records) == [
        f"s/train.tfrecord-0000{i}-of-00003#1" for i in range(3)
    ]
    assert read(tmp_path / "train.tfrecord-00001-of-00003").column("v") == [1]


# our own shards


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_of_our_own_shards(path, name):
    batch = typed(name)
    write_own("tfrecord", path, batch)
    assert_same(batches_of(open_source(path, source_id="s")), batch)


def test_our_own_shards_without_tombstones(path):
    batch = mixed(60)
    batch = batch.set_column(1, batch.schema.field(1), pa.nulls(60, pa.string()))
    found = read(write_own("tfrecord", path, batch))
    live = {row.pop(KEY): row for row in batch.to_pylist() if row[KEY] is not None}
    assert {k: {**v, "__subject__": None} for k, v in found.records.items()} == live


def test_a_shard_of_tombstones_only(path):
    batch = typed("int64")
    none = pa.nulls(len(batch), pa.string())
    dead = pa.RecordBatch.from_arrays(
        [none, none, pa.nulls(len(batch), pa.int64())], schema=batch.schema
    )
    found = read(write_own("tfrecord", path, dead))
    assert (found.records, found.rejects) == ({}, [])
    assert found.schema.names == ["value"]


def test_damaged_shards_of_our_own_are_one_reject(path):
    write_own("tfrecord", path, typed("string"))
    data = bytearray(path.read_bytes())
    middle = data.index(b"dir/row 1.x") + 4
    data[middle] ^= 1
    path.write_bytes(data)
    assert read(path).reasons() == [(None, "the checksum of the record is wrong")]
    data[middle] ^= 1
    path.write_bytes(data[:-20])
    assert len(read(path).rejects) == 1
    path.write_bytes(gzip.compress(data))
    assert "compressed shard of geodata" in read(path).rejects[0].reason


def test_own_and_foreign_files_in_one_folder(tmp_path):
    write_own("tfrecord", tmp_path / "a.tfrecord", typed("int64"))
    write(tmp_path / "b.tfrecord", example(value=[7]))
    found = read(tmp_path)
    assert found.records["s/b.tfrecord#1"] == {"value": 7}
    assert len(found.records) == len(COLUMNS["int64"]) + 1


def test_origins_are_file_and_row(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.tfrecord", *[example(v=[i]) for i in range(30)])
    schema = dataset_schema(read(tmp_path).schema.append(origin_field("origin")))
    found = read(tmp_path, 100, schema=schema)
    assert found.column("origin") == [
        {"file": f"{name}.tfrecord", "row": i + 1} for name in "ab" for i in range(30)
    ]
