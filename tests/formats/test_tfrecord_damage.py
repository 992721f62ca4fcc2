"""TFRecord shards that are damaged, or contradict themselves or their index."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
import tfrecord
from records import PNG, digest, mixed, rows
from tfrecord.writer import TFRecordWriter

from geodata.errors import CorruptShard, FormatVersionError
from geodata.formats import get_format
from geodata.formats.mapping import map_file
from geodata.formats.tfrecord import index as tfindex
from geodata.formats.tfrecord.example import entries_of, example_of
from geodata.formats.tfrecord.frames import Frames, framed, scan
from geodata.schema import KEY, dataset_schema, media_field

FORM = get_format("tfrecord")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.tfrecord"


def write(path, batch, unit_bytes=1 << 20):
    writer = FORM.create(path, batch.schema, unit_bytes=unit_bytes, metadata={})
    writer.write(batch)
    writer.close()
    FORM.write_index(path, path.with_suffix(".index"))
    return path


def shard_of(keys):
    schema = dataset_schema(pa.schema([media_field("image", "image")]))
    arrays = [pa.array(keys), pa.nulls(len(keys), pa.string()), pa.array([PNG] * len(keys))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def small():
    """Return records with a list that is plain, one that is not, and a tombstone."""
    batch = rows(pa.array([["a"], None, ["b", None]]))
    return batch.set_column(0, batch.schema.field(0), pa.array(["k0", None, "k1"]))


def places(path):
    return scan(memoryview(path.read_bytes()), path.name)


def reframe(path, change):
    """Write the file anew with other Examples; `change` maps a list of them."""
    data = path.read_bytes()
    found = [
        data[at : at + size] for at, size in zip(*map(np.ndarray.tolist, places(path)), strict=True)
    ]
    path.write_bytes(b"".join(framed(change(found))))


# what is lost, added or moved


@pytest.mark.parametrize("indexed", [True, False])
def test_every_truncation_is_refused(path, indexed):
    index = write(path, small()).with_suffix(".index") if indexed else None
    if not indexed:
        write(path, small())
    for left in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, left)
        with pytest.raises(CorruptShard) as caught:
            FORM.open(path, index)
        assert caught.value.fields["shard"] == path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e[:-1], "no shard of geodata, or one that was cut off"),
        (lambda e: e[1:], "not readable|added, lost or changed"),
        (lambda e: [e[1], e[0], *e[2:]], "added, lost or changed"),
        (lambda e: [e[0], *e], "added, lost or changed"),
        (lambda e: [*e, e[0]], "no shard of geodata, or one that was cut off"),
        (lambda e: [e[0] + b"\0", *e[1:]], "added, lost or changed"),
        (lambda e: e * 2, "added, lost or changed"),
        (lambda e: [*e[:-1], e[-1].replace(b"k2", b"k3")], "added, lost or changed"),
        (lambda e: [*e[:-1], e[-1].replace(b'"runs": [3]', b'"runs": [4]')], "added, lost"),
        (lambda e: [example_of(entries_of(e[-1]) + entries_of(e[0]))], "no shard of geodata"),
    ],
)
def test_lost_moved_and_changed_records_are_noticed(path, change, message):
    write(path, shard_of(["k0", "k1", "k2"]))
    reframe(path, lambda examples: examples)
    assert FORM.open(path).num_rows == 3
    reframe(path, change)
    with pytest.raises(CorruptShard, match=message) as caught:
        FORM.open(path)
    assert caught.value.fields == {"shard": path.name}


def test_a_foreign_file_is_no_shard(path):
    writer = TFRecordWriter(str(path))
    writer.write({"image": (PNG, "byte"), "label": (3, "int")})
    writer.close()
    with pytest.raises(CorruptShard, match="no shard of geodata"):
        FORM.open(path)


def test_shards_one_after_another_are_no_shard(path, tmp_path):
    write(path, shard_of(["k0", "k1"]))
    other = write(tmp_path / "other.tfrecord", shard_of(["k2"]))
    path.write_bytes(path.read_bytes() + other.read_bytes())
    assert len(list(tfrecord.tfrecord_loader(str(path), None))) == 3
    with pytest.raises(CorruptShard, match="not readable|added, lost or changed"):
        FORM.open(path)


# damaged bytes


def damaged(data, places, seed):
    """Yield the data with another byte at each of these places."""
    rng = np.random.default_rng(seed)
    for at in places:
        value = int(rng.choice([data[at] ^ (1 << int(rng.integers(8))), data[at] ^ 255, 10]))
        yield data[:at] + bytes([value if value != data[at] else 11]) + data[at + 1 :]


def outcome(path, index):
    """Return the digest of a shard's values, or None where it is refused."""
    try:
        reader = FORM.open(path, index)
        return digest(*(reader.read_unit(unit) for unit in range(len(reader.unit_slots))))
    except (CorruptShard, FormatVersionError):
        return None


@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_byte_is_refused_or_gives_values(path, indexed):
    index = write(path, small()).with_suffix(".index")
    truth, data = outcome(path, index), path.read_bytes()
    found = []
    for change in damaged(data, range(len(data)), seed=1):
        path.write_bytes(change)
        found.append(outcome(path, index if indexed else None))
    assert truth is not None
    assert {None, truth} < set(found)


def test_a_damaged_frame_is_refused(path):
    write(path, small())
    data, (offsets, sizes) = path.read_bytes(), places(path)
    heads = [at - 12 + i for at in offsets for i in range(12)]
    tails = [
        at + size + i for at, size in zip(offsets[:-1], sizes[:-1], strict=True) for i in range(4)
    ]
    for change in damaged(data, [*heads, *tails], seed=2):
        path.write_bytes(change)
        with pytest.raises(CorruptShard) as caught:
            FORM.open(path)
        assert caught.value.fields == {"shard": path.name}


def test_a_damaged_index_is_refused_or_gives_values(path):
    index = write(path, small()).with_suffix(".index")
    truth, data = outcome(path, index), index.read_bytes()
    found = []
    for change in damaged(data, range(len(data)), seed=3):
        index.write_bytes(change)
        found.append(outcome(path, index))
    assert {None, truth} < set(found)


def test_damage_is_named_by_column(path):
    write(path, rows(pa.array(["text"])))
    index = path.with_suffix(".index")
    path.write_bytes(path.read_bytes().replace(b"text", b"te\xfft"))
    with pytest.raises(CorruptShard, match="cannot be decoded") as caught:
        FORM.open(path, index).read_unit(0)
    assert caught.value.fields == {"shard": path.name, "column": "value"}
    assert caught.value.__cause__ is None


# the index


def test_an_index_of_another_shard_is_refused(path, tmp_path):
    write(path, shard_of(["k0", "k1"]))
    other = write(tmp_path / "other.tfrecord", shard_of(["k0", "k2"]))
    assert other.stat().st_size == path.stat().st_size
    with pytest.raises(CorruptShard, match=r"not the shard of other\.index") as caught:
        FORM.open(path, other.with_suffix(".index"))
    assert caught.value.fields == {"shard": path.name}


@pytest.mark.parametrize("left", [0, 1, 100, 1000, -100, -1])
def test_a_truncated_index_is_refused_and_can_be_rebuilt(path, left):
    index = write(path, mixed(20)).with_suffix(".index")
    whole = index.read_bytes()
    index.write_bytes(whole[:left])
    with pytest.raises(CorruptShard) as caught:
        FORM.open(path, index)
    assert caught.value.fields == {"shard": index.name}
    FORM.write_index(path, index)
    assert index.read_bytes() == whole


def test_an_index_of_a_newer_version_is_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tfindex, "FORMAT_VERSION", 2)
        write(path, mixed(3))
    with pytest.raises(FormatVersionError, match="version 2"):
        FORM.open(path, path.with_suffix(".index"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frames: Frames(frames.offsets + (1 << 40), frames.sizes), "outside"),
        (lambda frames: Frames(frames.offsets - 1000, frames.sizes), "outside"),
        (lambda frames: Frames(frames.offsets, -frames.sizes), "outside"),
        (lambda frames: Frames(frames.offsets[::-1], frames.sizes[::-1]), "out of order"),
        (lambda frames: Frames(frames.offsets, frames.sizes - 1), "cannot be decoded"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(path, change, message):
    write(path, shard_of(["k0", "k1"]))
    index = tfindex.scan(map_file(path), path.name)
    frames = Frames(*map(np.ascontiguousarray, change(index.frames)))
    fields = {name: getattr(index, name) for name in index.__slots__}
    tfindex.save(tfindex.TfIndex(**{**fields, "frames": frames}), path.with_suffix(".index"))
    with pytest.raises(CorruptShard, match=message):
        FORM.open(path, path.with_suffix(".index")).read_unit(0, ["image"])


def test_the_index_is_a_plain_arrow_file(path):
    batch = mixed(20)
    write(path, batch, unit_bytes=2_000)
    table = pa.ipc.open_file(path.with_suffix(".index")).read_all()
    assert table.schema.names == ["row", "offset", "size"]
    live = np.flatnonzero(batch[KEY].is_valid().to_numpy(zero_copy_only=False))
    assert table["row"].to_pylist() == live.tolist()
    offsets, sizes = places(path)
    assert table["offset"].to_pylist() == offsets.tolist()
    assert table["size"].to_pylist() == sizes.tolist()
    about = json.loads(table.schema.metadata[b"geodata.index"])
    assert [unit[2] for unit in about["units"]] == list(FORM.open(path).unit_slots)


def test_a_unit_claims_no_more_rows_than_can_be():
    assert tfindex._unit_ranges([[0, 0, 1 << 24]], np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="contradicts"):
        tfindex._unit_ranges([[0, 0, (1 << 24) + 1]], np.zeros(0, np.int64))
