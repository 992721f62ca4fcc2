"""Messages written and read many at once, against Protocol Buffers reading one."""

import numpy as np
import pyarrow as pa
import pytest
from records import shown
from tfrecord import example_pb2
from typematrix import COLUMNS

from geodata.canonical import ragged
from geodata.formats.slices import Slices
from geodata.formats.tfrecord import values as tfvalues
from geodata.formats.tfrecord import wire as tfwire
from geodata.formats.tfrecord.columns import Column
from geodata.formats.tfrecord.exact import ExactColumn
from geodata.formats.tfrecord.example import BYTES, FIRST, INTEGERS, Feature, examples, split

INTS = [0, 1, 127, 128, 300, 16383, 16384, 2**31, 2**56, 2**63 - 1, -1, -(2**63)]


def slices(values):
    """Return runs of bytes, one after another, with something before and after."""
    sizes = np.array([len(value) for value in values], np.int64)
    data = pa.py_buffer(b"\x0a\x00" + b"".join(values) + b"\xff" * 7)
    return Slices(data, np.cumsum([2, *sizes[:-1]]) if len(sizes) else sizes, sizes)


def lists_of(array, counts):
    """Return the bytes of each of the lists of so many values."""
    return tfvalues.encode(array, tfwire.sums(np.array(counts))).join().to_pylist()


# varints


def test_varints_come_back():
    values = np.array(INTS, np.int64)
    data, offsets = tfwire.packed(values)
    found, counts = tfwire.unpacked(data, offsets)
    assert found.tolist() == INTS
    assert counts.tolist() == [1] * len(INTS)
    assert np.diff(offsets).tolist() == tfwire.varint_nbytes(values).tolist()


@pytest.mark.parametrize("values", [INTS, [5], [], [300] * 50], ids=len)
def test_integers_are_those_of_protocol_buffers(values):
    expected = example_pb2.Int64List(value=values).SerializeToString()
    assert lists_of(pa.array(values, pa.int64()), [len(values)]) == [expected]


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        (b"\x80", [0, 1]),
        (b"\x01\x80", [0, 2]),
        (b"\x80\x01", [0, 1, 2]),
        (b"\x80" * 10 + b"\x01", [0, 11]),
    ],
)
def test_varints_that_do_not_end_are_refused(data, offsets):
    with pytest.raises(ValueError, match="varint"):
        tfwire.unpacked(np.frombuffer(data, np.uint8), np.array(offsets))


# lists


@pytest.mark.parametrize(
    "values",
    [[], [b""], [b"", b""], [b"\n"], [b"\n" * 10] * 10, [b"\n\x01a", b"\n\x00"], [b"x" * 20_000]],
    ids=lambda values: str(len(values)),
)
def test_lists_of_bytes_are_those_of_protocol_buffers(values):
    expected = example_pb2.BytesList(value=values).SerializeToString()
    array = pa.array(values, pa.binary())
    assert lists_of(array, [len(values)]) == [expected]
    found, counts = tfvalues.decode(slices([expected]), pa.binary())
    assert found.to_pylist() == values
    assert counts.tolist() == [len(values)]


def test_lists_of_many_lengths_come_back():
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 40, 200)
    values = [bytes(rng.choice([10, 10, 1, 0, 200], rng.integers(0, 200))) for _ in range(5000)]
    values = values[: counts.sum()]
    lists = lists_of(pa.array(values, pa.binary()), counts)
    found, sizes = tfvalues.decode(slices(lists), pa.binary())
    assert found.to_pylist() == values
    assert sizes.tolist() == counts.tolist()


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x02a", b"\x0a\x00\x0a", b"\x12\x01a", b"\x0a\x01a\x12\x00", b"\x0a\xff\xff"],
)
@pytest.mark.parametrize("before", [[], [b"\x0a\x01b"]], ids=len)
def test_malformed_lists_of_bytes_are_refused(data, before):
    with pytest.raises(ValueError, match="field"):
        tfvalues.decode(slices([*before, data]), pa.binary())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x0a\x04\0\0\0", pa.float32()),
        (b"\x0a\x03\0\0\0", pa.float32()),
        (b"\x08\x01", pa.int64()),
        (b"\x0a\x01\x80", pa.int64()),
        (b"\x0a\x02\x80\x01", pa.int8()),
        (b"\x0a\x01\x02", pa.bool_()),
        (b"\x0a\x01\xff", pa.string()),
        (b"\x0a\x01a", pa.binary(2)),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(data, kind):
    with pytest.raises((ValueError, pa.ArrowInvalid)):
        tfvalues.decode(slices([data]), kind)


# Examples

IMAGE, LABEL = Feature.of("image", BYTES), Feature.of("l" * 200, INTEGERS)


def made(images, labels):
    """Return Examples as Protocol Buffers serialize them, None being no feature."""
    found = []
    for image, label in zip(images, labels, strict=True):
        parts = []
        for name, value in (("image", image), ("l" * 200, label)):
            message = example_pb2.Example()
            if value is None:
                continue
            if name == "image":
                message.features.feature[name].bytes_list.value.append(value)
            else:
                message.features.feature[name].int64_list.value.append(value)
            parts.append(message.features.SerializeToString())
        features = example_pb2.Features.FromString(b"".join(parts)).SerializeToString(
            deterministic=True
        )
        found.append(tfwire.field(FIRST, features))
    return found


IMAGES = [b"", b"\n", None, b"x" * 130, b"y" * 17_000, None, b"z" * 2_100_000]
LABELS = [0, None, 5, -1, 300, None, 2**40]


def test_examples_are_those_of_protocol_buffers():
    live = np.ones(len(IMAGES), bool)
    columns = [
        Column(pa.field("image", pa.binary())).encode(pa.array(IMAGES, pa.binary()), live),
        Column(pa.field("l" * 200, pa.int64())).encode(pa.array(LABELS, pa.int64()), live),
    ]
    found = examples([entry for entries in columns for entry in entries], len(IMAGES))
    assert found.to_pylist() == made(IMAGES, LABELS)


def test_features_of_examples_are_found():
    messages = slices(made(IMAGES, LABELS))
    data = np.frombuffer(messages.data, np.uint8)
    found = split(data, messages, [IMAGE, LABEL], {IMAGE, LABEL})
    images = Column(pa.field("image", pa.binary())).decode(found, len(IMAGES))
    labels = Column(pa.field("l" * 200, pa.int64())).decode(found, len(IMAGES))
    assert images.to_pylist() == IMAGES
    assert labels.to_pylist() == LABELS
    assert list(split(data, messages, [IMAGE, LABEL], {LABEL})) == [LABEL]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data.replace(b"image", b"imagf"),
        lambda data: tfwire.field(FIRST, data[2:] + data[2:]),
        lambda data: b"\x12" + data[1:],
        lambda data: data[:2] + b"\x12" + data[3:],
        lambda data: b"",
    ],
)
def test_malformed_examples_are_refused(change):
    first, second = made([b"abc", b"defg"], [None, None])
    for values in ([change(first), second], [first, change(second)]):
        messages = slices(values)
        with pytest.raises(ValueError, match="field|feature"):
            split(np.frombuffer(messages.data, np.uint8), messages, [IMAGE, LABEL], {IMAGE})


# exact values


@pytest.mark.parametrize("kind", [kind for kind in COLUMNS if kind != "null"])
def test_exact_values_follow_from_each_value_alone(kind):
    array = COLUMNS[kind]
    array = pa.concat_arrays(
        [array.slice(i, 1) for i, v in enumerate(array.is_valid().to_pylist()) if v]
    )
    codec = ExactColumn(pa.field("value", array.type))
    encoded = codec.encode(array)
    alone = [codec.encode(array.slice(i, 1))[0].as_py() for i in range(len(array))]
    assert encoded.to_pylist() == alone
    assert codec.nbytes(array).tolist() == [len(value) for value in alone]
    offsets, data = ragged(encoded)
    buffer = pa.py_buffer(np.append(data, np.zeros(8, np.uint8)))
    found = codec.decode(Slices(buffer, offsets[:-1], np.diff(offsets)))
    found.validate(full=True)
    assert found.equals(array) or shown(found) == shown(array)


@pytest.mark.parametrize("kind", ["list<item: list<item: int32>>", "list<item: string>"])
def test_exact_values_of_another_length_are_refused(kind):
    array = COLUMNS[kind].drop_null()
    codec = ExactColumn(pa.field("value", array.type))
    values = codec.encode(array).to_pylist()
    assert codec.decode(slices(values)).equals(array)
    for change in (lambda v: v[:-1], lambda v: v + b"\0", lambda v: b"\xff" * len(v)):
        with pytest.raises(ValueError, match="content|bytes"):
            codec.decode(slices([change(values[0]), *values[1:]]))
