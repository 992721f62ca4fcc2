"""TFRecord: frames, their checksums, and our own shards."""

import bz2
import gzip
import struct
import zlib

import pyarrow as pa
import pytest
from formats.records import assert_same, mixed
from formats.typematrix import COLUMNS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_shards import batches_of, typed, write_own
from tfrecord_files import example, frames, read, write

from geodata.formats.tfrecord.frames import checksum
from geodata.schema import KEY, dataset_schema, origin_field
from geodata.sources import open_source


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.tfrecord"


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
