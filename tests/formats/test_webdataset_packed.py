"""Tar shards compressed by gzip and by xz: what stock readers see in them, and where units lie."""

import gzip
import io
import json
import lzma
import shutil
import subprocess
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from conformance import Conformance
from records import assert_same, digest, mixed
from webdataset_shards import stock

from geodata.formats import get_format
from geodata.formats.mapping import map_file
from geodata.formats.webdataset import gzipped, reader
from geodata.formats.webdataset.scan import scan
from geodata.formats.webdataset.segments import unpacked
from geodata.schema import KEY, dataset_schema, media_field, tensor_field

GZIP, XZ = "webdataset+gzip", "webdataset+xz"
UNPACK = {GZIP: gzip.decompress, XZ: lzma.decompress}
TOOL = {GZIP: "gzip", XZ: "xz"}
both = pytest.mark.parametrize("name", UNPACK)
WORDS = ["shard", "region", "lane", "unit", "epoch", "Übung", "слово", "言葉", "\n", "the", "of"]


class TestWebDatasetGzip(Conformance):
    name = GZIP


class TestWebDatasetXz(Conformance):
    name = XZ


class TestWebDatasetGzipWithoutIndex(Conformance):
    name = GZIP
    indexed = False


def write(folder, name, batch, unit_bytes=20_000, **more):
    """Write a shard and its index; return their paths."""
    form = get_format(name)
    path = folder / f"shard{form.suffix}"
    writer = form.create(path, batch.schema, unit_bytes=unit_bytes, metadata={}, **more)
    writer.write(batch)
    writer.close()
    index = folder / f"{path.name}.index"
    form.write_index(path, index)
    return path, index


def texts(count):
    """Return records of text."""
    rng = np.random.default_rng(7)
    values = [" ".join(rng.choice(WORDS, rng.integers(0, 400))) for _ in range(count)]
    schema = dataset_schema(pa.schema([media_field("text", "text")]))
    keys = pa.array([f"text/{i:05}.txt" for i in range(count)])
    arrays = [keys, pa.nulls(count, pa.string()), pa.array(values)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# what other readers see


@both
def test_it_is_the_tar_that_is_not_compressed(tmp_path, name):
    batch = mixed(300)
    plain, _index = write(tmp_path, "webdataset", batch)
    path, _index = write(tmp_path, name, batch)
    assert UNPACK[name](path.read_bytes()) == plain.read_bytes()
    assert path.stat().st_size < plain.stat().st_size / 2


@both
@pytest.mark.parametrize("url", ["{}", "file:{}", "pipe:cat {}"])
def test_stock_webdataset_reads_all_units(tmp_path, name, url):
    plain, _index = write(tmp_path, "webdataset", mixed(300))
    path, index = write(tmp_path, name, mixed(300))
    assert len(get_format(name).open(path, index).unit_slots) > 3
    wanted, found = stock(plain), stock(url.format(path))
    assert len(found) == len(wanted) > 200
    for one, other in zip(found, wanted, strict=True):
        hidden = ("__url__", "__local_path__")
        assert all(one[key] == other[key] for key in other if key not in hidden)


@both
@pytest.mark.parametrize("mode", ["r:*", "r|*"])
def test_stock_tarfile_reads_all_units(tmp_path, name, mode):
    plain, _index = write(tmp_path, "webdataset", mixed(300))
    path, _index = write(tmp_path, name, mixed(300))
    with tarfile.open(plain) as tar:
        wanted = [(m.name, tar.extractfile(m).read()) for m in tar]
    with tarfile.open(path, mode) as tar:
        assert [(m.name, tar.extractfile(m).read()) for m in tar] == wanted


@both
@pytest.mark.parametrize("command", [["tar", "-tf"], ["{}", "-t"]], ids=["tar", "test"])
def test_stock_tools_take_it(tmp_path, name, command):
    command = [part.format(TOOL[name]) for part in command]
    if not all(map(shutil.which, (command[0], TOOL[name]))):
        pytest.skip("the tool is not installed")
    path, _index = write(tmp_path, name, mixed(300))
    ended = subprocess.run([*command, path], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@both
def test_text_takes_what_the_codec_makes_of_it(tmp_path, name):
    batch = texts(1_000)
    path, index = write(tmp_path, name, batch, unit_bytes=4 << 20)
    text = "".join(batch.column("text").to_pylist()).encode()
    alone = len(gzip.compress(text) if name == GZIP else lzma.compress(text))
    assert path.stat().st_size < alone + 100 * 1_000
    assert index.stat().st_size < 20 * 1_000


def test_more_segments_than_one_table_holds_are_found(tmp_path, monkeypatch):
    whole, _index = write(tmp_path, GZIP, mixed(100))
    assert whole.read_bytes().count(gzipped._START_TABLE) == 1
    monkeypatch.setattr(gzipped, "_ROWS", 3)
    path, index = write(tmp_path, GZIP, mixed(100), unit_slots=[1] * 100)
    assert path.read_bytes().count(gzipped._START_TABLE) == 34
    assert len(get_format(GZIP).units(path)) == 100
    assert_same(get_format(GZIP).open(path, index).take(range(100)), mixed(100))
    assert len(gzip.decompress(path.read_bytes())) > 100_000


# where a unit lies


@both
def test_a_range_of_bytes_is_a_unit(tmp_path, name):
    batch = mixed(300)
    path, index = write(tmp_path, name, batch)
    form, data, first = get_format(name), path.read_bytes(), 0
    ranges = form.units(path, index)
    start, stop = ranges[0].offset, ranges[-1].offset + ranges[-1].length
    for number, unit in enumerate(ranges):
        hollow = bytearray(data[:start]) + bytes(stop - start) + data[stop:]
        if name == XZ:  # whose blocks are checked at once
            for other in ranges:
                end = other.offset + other.length
                hollow[end - 4 : end] = data[end - 4 : end]
        piece = slice(unit.offset, unit.offset + unit.length)
        hollow[piece] = data[piece]
        path.write_bytes(hollow)
        found = form.open(path, index).read_unit(number)
        assert_same(found, batch.slice(first, unit.slots))
        first += unit.slots
    assert first == 300


@both
def test_a_unit_is_a_run_of_members(tmp_path, name):
    batch = mixed(60)
    path, _index = write(tmp_path, name, batch)
    codec, data = get_format(name).codec, memoryview(path.read_bytes())
    segments = codec.segments(data)
    keys = []
    for number in range(1, len(segments) - 1):
        run = unpacked(codec, data, segments, number, path.name)
        with tarfile.open(fileobj=io.BytesIO(run + bytes(1024))) as tar:
            keys += [json.load(tar.extractfile(m))[KEY] for m in tar if m.name.endswith(".json")]
    assert keys == [key for key in batch[KEY].to_pylist() if key is not None]


@both
def test_rows_are_taken_by_unpacking_each_unit_once(tmp_path, name, monkeypatch):
    path, index = write(tmp_path, name, mixed(300))
    shard, counted = get_format(name).open(path, index), []

    def counting(codec, data, segments, number, shard):
        counted.append(number)
        return unpacked(codec, data, segments, number, shard)

    monkeypatch.setattr(reader, "unpacked", counting)
    first, second = shard.unit_slots[:2]
    wanted = [first + 1, 0, 3, first, 3, first + second - 1]
    assert_same(shard.take(wanted, [KEY, "image"]), mixed(300).select([KEY, "image"]).take(wanted))
    assert counted == [1, 2]
    assert shard.take(range(300), [KEY]).column(0).equals(mixed(300).column(KEY))
    assert counted == [1, 2]


@both
def test_the_index_is_a_plain_arrow_file(tmp_path, name):
    batch = mixed(60)
    path, index = write(tmp_path, name, batch)
    table = pa.ipc.open_file(index).read_all()
    codec, data = get_format(name).codec, memoryview(path.read_bytes())
    about = json.loads(table.schema.metadata[b"geodata.index"])
    segments = codec.segments(data)
    assert [s[:2] for s in about["segments"][1:-1]] == [unit[:2] for unit in about["units"]]
    assert table["key"].to_pylist() == batch[KEY].to_pylist()
    run = unpacked(codec, data, segments, 1, path.name)
    slots = about["units"][0][2]
    images = batch["image"].to_pylist()[:slots]
    for place, image in zip(table["image"].to_pylist()[:slots], images, strict=True):
        start, size = place["offset"], place["size"]
        assert (run[start : start + size] if size >= 0 else None) == image


@both
def test_an_index_is_made_anew_from_the_shard(tmp_path, name):
    path, index = write(tmp_path, name, mixed(300))
    whole = index.read_bytes()
    index.unlink()
    form = get_format(name)
    form.write_index(path, index)
    assert index.read_bytes() == whole
    assert form.units(path) == form.units(path, index)
    found = scan(map_file(path), path.name, form.codec)
    assert sum(segment.nbytes for segment in found.segments) == len(UNPACK[name](path.read_bytes()))


@both
def test_packed_tokens_come_back(tmp_path, name):
    tokens = [{"data": list(range(i, i + 64)), "shape": [64]} for i in range(50)]
    schema = dataset_schema(pa.schema([tensor_field("tokens", pa.int32())]))
    arrays = [pa.array([f"k{i}" for i in range(50)]), pa.nulls(50, pa.string())]
    arrays.append(pa.array(tokens, schema.field("tokens").type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    path, index = write(tmp_path, name, batch)
    shard = get_format(name).open(path, index)
    assert digest(*map(shard.read_unit, range(len(shard.unit_slots)))) == digest(batch)
