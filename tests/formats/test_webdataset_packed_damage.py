"""Compressed tar shards that are damaged, that lie, or that others have compressed."""

import gzip
import lzma
import tracemalloc
import zlib
from collections import Counter

import numpy as np
import pytest
from records import digest, mixed
from test_webdataset_packed import GZIP, UNPACK, XZ, both, texts, write

from geodata.errors import CorruptShard, SchemaError
from geodata.formats import get_format, units
from geodata.formats.mapping import map_file
from geodata.formats.webdataset import index as tarindex
from geodata.formats.webdataset.gzipped import Gzip
from geodata.formats.webdataset.index import HEAD, TAIL
from geodata.formats.webdataset.segments import Segment, unpacked
from geodata.formats.webdataset.shard import packed_format
from geodata.formats.webdataset.tarball import END, header, padded
from geodata.formats.webdataset.xz import Xz

CODECS = {GZIP: Gzip(), XZ: Xz()}


def read(form, path, index):
    shard = form.open(path, index)
    return digest(*map(shard.read_unit, range(len(shard.unit_slots))))


@both
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "scan"])
def test_no_flipped_bit_gives_other_records(tmp_path, name, indexed):
    """A few mean nothing: those that fill the last byte of deflate's blocks.

    What the first segment says stands in the index, too, and is not read where there is one.
    """
    batch, form, rng = mixed(60), get_format(name), np.random.default_rng(3)
    path, index = write(tmp_path, name, batch, unit_bytes=10_000)
    data, ranges = path.read_bytes(), form.units(path)
    edges = [place for unit in ranges for place in (unit.offset, unit.offset + unit.length - 1)]
    places = {*edges, *rng.integers(0, len(data), 150).tolist(), *range(len(data))[-90:]}
    expected, outcomes = digest(batch), Counter()
    for place in places - set(range(12, ranges[0].offset) if indexed else ()):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            outcomes[read(form, path, index if indexed else None) == expected] += 1
        except CorruptShard as error:
            assert error.fields["shard"] == path.name
            outcomes["refused"] += 1
    assert outcomes[False] == 0
    assert outcomes[True] <= 5
    assert outcomes["refused"] > 150


@both
def test_a_damaged_unit_is_named_and_the_others_are_read(tmp_path, name):
    batch, form = mixed(100), get_format(name)
    path, index = write(tmp_path, name, batch)
    unit, data = form.units(path)[1], bytearray(path.read_bytes())
    data[unit.offset + unit.length // 2] ^= 255
    path.write_bytes(data)
    shard = form.open(path, index)
    with pytest.raises(CorruptShard) as caught:
        shard.read_unit(1)
    assert caught.value.fields == {"shard": path.name, "unit": 1}
    first = shard.unit_slots[0]
    assert digest(shard.read_unit(0)) == digest(batch.slice(0, first))
    with pytest.raises(CorruptShard) as caught:
        form.write_index(path, index)
    assert caught.value.fields == {"shard": path.name, "unit": 1}


@both
@pytest.mark.parametrize("nbytes", [100, 1 << 20])
def test_a_bomb_takes_no_more_than_it_was_told_to(name, nbytes):
    packer = CODECS[name].packer()
    bomb = packer.add(bytes(200 << 20))
    assert len(bomb) < 1 << 18
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShard, match="compressed bytes"):
            told = [Segment(0, len(bomb), nbytes, zlib.crc32(bytes(nbytes)))]
            unpacked(CODECS[name], memoryview(bomb), told, 0, "shard")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda s: Segment(s.offset, s.length, s.nbytes + 1, s.crc32),
        lambda s: Segment(s.offset, s.length, s.nbytes - 1, s.crc32),
        lambda s: Segment(s.offset, s.length, 0, s.crc32),
        lambda s: Segment(s.offset, s.length, -1, s.crc32),
        lambda s: Segment(s.offset, s.length, 1 << 62, s.crc32),
        lambda s: Segment(s.offset, s.length, s.nbytes, s.crc32 ^ 1),
        lambda s: Segment(s.offset, s.length - 1, s.nbytes, s.crc32),
        lambda s: Segment(s.offset, s.length + 1, s.nbytes, s.crc32),
        lambda s: Segment(s.offset, 0, s.nbytes, s.crc32),
        lambda s: Segment(s.offset + 4, s.length - 4, s.nbytes, s.crc32),
        lambda s: Segment(1 << 62, s.length, s.nbytes, s.crc32),
    ],
)
def test_a_segment_that_lies_is_refused(name, change):
    codec = CODECS[name]
    packer = codec.packer()
    parts = [b"head" * 50, b"unit" * 999, b"tail" * 50]
    data = memoryview(packer.start + b"".join(map(packer.add, parts)) + packer.end())
    segments = codec.segments(data)
    assert [unpacked(codec, data, segments, i, "shard") for i in range(3)] == parts
    segments[1] = change(segments[1])
    with pytest.raises(CorruptShard) as caught:
        unpacked(codec, data, segments, 1, "shard")
    assert caught.value.fields == {"shard": "shard", "unit": 0}


@both
def test_what_others_have_compressed_is_no_shard(tmp_path, name):
    plain, _index = write(tmp_path, "webdataset", mixed(30))
    path = tmp_path / f"other{get_format(name).suffix}"
    packed = gzip.compress if name == GZIP else lzma.compress
    path.write_bytes(packed(plain.read_bytes()))
    with pytest.raises(CorruptShard) as caught:
        get_format(name).open(path)
    assert caught.value.fields == {"shard": path.name}
    assert packed_format(path) is None
    assert packed_format(write(tmp_path, name, mixed(3))[0]) == name


@both
def test_an_index_of_another_shard_is_refused(tmp_path, name):
    form, folder = get_format(name), tmp_path / "other"
    folder.mkdir()
    path, index = write(tmp_path, name, texts(20))
    _path, other = write(folder, name, texts(21))
    _path, plain = write(folder, "webdataset", texts(20))
    for wrong in (other, plain):
        with pytest.raises(CorruptShard, match="not the shard of"):
            form.open(path, wrong)
    with pytest.raises(CorruptShard, match="not the shard of"):
        get_format("webdataset").open(write(tmp_path, "webdataset", texts(20))[0], index)


@both
def test_an_index_whose_units_are_no_segments_is_refused(tmp_path, name):
    form = get_format(name)
    path, index = write(tmp_path, name, mixed(100))
    found = tarindex.load(index, map_file(path), path.name, form.codec)
    found.units[0] = form.units(path)[1]
    tarindex.save(found, index)
    with pytest.raises(CorruptShard) as caught:
        form.open(path, index)
    assert caught.value.fields == {"shard": index.name}


MEMBERS = {
    "a record in the head": lambda runs: [runs[0] + runs[1], *runs[2:]],
    "a record in the tail": lambda runs: [*runs[:-2], runs[-2] + runs[-1]],
    "a unit in two": lambda runs: [runs[0], *halves(runs[1]), *runs[2:]],
    "two units in one": lambda runs: [runs[0], runs[1] + runs[2], *runs[3:]],
    "a record over two units": lambda runs: [
        runs[0], runs[1] + runs[2][:1024], runs[2][1024:], *runs[3:],
    ],
    "no units": lambda runs: [b"".join(runs)],
    "no tail": lambda runs: runs[:-1],
    "an end before the last": lambda runs: [*runs[:-1], END, runs[-1]],
}  # fmt: skip


def halves(run):
    """Return a run of members of one block of content each, in two."""
    half = len(run) // 4096 * 2048
    return run[:half], run[half:]


@both
@pytest.mark.parametrize("change", MEMBERS)
def test_units_that_are_no_segments_are_refused(tmp_path, name, change):
    form = get_format(name)
    path, _index = write(tmp_path, name, texts(40), unit_bytes=30_000)
    codec, data = form.codec, memoryview(path.read_bytes())
    segments = codec.segments(data)
    runs = [unpacked(codec, data, segments, i, "shard") for i in range(len(segments))]
    assert runs[0].startswith(HEAD) and runs[-1].startswith(TAIL) and len(runs) > 4
    for made, fails in ((runs, False), (MEMBERS[change](runs), True)):
        packer = codec.packer()
        path.write_bytes(packer.start + b"".join(map(packer.add, made)) + packer.end())
        if not fails:
            assert form.open(path).num_rows == 40
            continue
        with pytest.raises(CorruptShard) as caught:
            form.open(path)
        assert caught.value.fields["shard"] == path.name


@both
def test_a_unit_of_2_gib_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr(units, "BATCH_BYTES", 10_000)
    with pytest.raises(SchemaError, match="2 GiB"):
        write(tmp_path, name, texts(40))


@both
def test_the_tar_in_it_must_be_one(tmp_path, name):
    path = tmp_path / "shard"
    packer = CODECS[name].packer()
    parts = [header(b"a.txt", 1) + padded(b"x"), header(b"b.txt", 1) + padded(b"y") + END]
    path.write_bytes(packer.start + b"".join(map(packer.add, parts)) + packer.end())
    assert UNPACK[name](path.read_bytes()) == b"".join(parts)
    with pytest.raises(CorruptShard, match="no shard of geodata"):
        get_format(name).open(path)
