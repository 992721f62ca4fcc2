"""TFRecord: features are columns, and what is no Example is told."""

import struct

import numpy as np
import pyarrow as pa
import pytest
import tfrecord
from formats.records import JPG, PNG
from hypothesis import given, settings
from hypothesis import strategies as st
from tfrecord import example_pb2
from tfrecord_files import example, read, write

from geodata.errors import SchemaError
from geodata.schema import media_of
from geodata.sources.batches import Unfit
from geodata.sources.tfrecord.examples import features_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.tfrecord"


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
