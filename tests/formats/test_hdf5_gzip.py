"""HDF5 shards whose text, numbers and offsets are deflated."""

import hashlib
import json
import tracemalloc
import zlib
from collections import Counter
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from conformance import Conformance
from hdf5_shards import HEAD, open_shard, read, records, rewrite, write
from records import JPG, PNG, assert_same, digest, mixed, rows

from geodata.errors import CorruptShard, FormatVersionError
from geodata.formats import base, get_format
from geodata.formats.hdf5 import directory
from geodata.formats.hdf5.deflate import RATIO, deflate, inflate
from geodata.formats.hdf5.sink import Sink
from geodata.formats.hdf5.writer import _Content
from geodata.formats.layout import Layout
from geodata.formats.mapping import map_file
from geodata.schema import KEY, label_field, media_field

NAME = "hdf5+gzip"
WORDS = ["shard", "region", "lane", "unit", "epoch", "Übung", "слово", "言葉", "\n", "the", "of"]


class TestHdf5Gzip(Conformance):
    name = NAME
    version = directory.DEFLATED_VERSION


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.h5"


def table(count):
    """Return records of text, a label and numbers."""
    rng = np.random.default_rng(7)
    texts = [" ".join(rng.choice(WORDS, rng.integers(0, 400))) for _ in range(count)]
    fields = [media_field("text", "text"), label_field("label"), pa.field("score", pa.float64())]
    labels, scores = [i % 5 if i % 7 else None for i in range(count)], range(count)
    return records(fields, texts, labels, [float(i) for i in scores])


def stored(path):
    """Return offset, bytes and bytes of the values for each part of each unit, by name."""
    found = directory.load(map_file(path), path.name)
    parts = [part for layout, _first in found.columns.values() for part in layout.parts]
    return {
        (unit, part.name): (offset, nbytes, max(count, 0) * part.nbytes)
        for unit, places in enumerate(found.places.tolist())
        for part, (offset, count, nbytes) in zip(parts, places, strict=True)
    }


# what is deflated, and what is not


def test_stock_h5py_reads_a_table(path):
    batch = table(300)
    write(path, batch, unit_bytes=50_000, name=NAME)
    assert len(open_shard(path).unit_slots) > 5
    expected = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        expected |= Layout(field).flatten(column)
    with h5py.File(path) as file:
        assert {name for name in expected if file[name].shape != expected[name].shape} == set()
        for name, array in expected.items():
            assert file[name][:].tobytes() == array.tobytes()
        offsets, text = file["text/offsets"], file["text/data"]
        found = text[offsets[123] : offsets[124]].tobytes().decode()
        assert found == batch.column("text")[123].as_py()


def test_the_filters_are_those_of_hdf5_itself(path):
    write(path, table(300), name=NAME)
    parts = [part.name for field in table(1).schema for part in Layout(field).parts]
    with h5py.File(path) as file:
        for name in ("text/data", "text/offsets", f"{KEY}/data", "score", "label", "label:valid"):
            dataset = file[f"__geodata__/0.{parts.index(name)}"]
            assert (dataset.compression, dataset.chunks) == ("gzip", dataset.shape)
            assert dataset.shuffle == (dataset.dtype.itemsize > 1)


def test_media_lie_plain_beside_text_that_does_not(path):
    images, texts = [PNG, JPG, None, b"", b"\0" * 5_000], ["a" * 4_000, "", None, "b", "c" * 900]
    fields = [media_field("image", "image"), media_field("caption", "text")]
    write(path, records(fields, images, texts), name=NAME)
    data = path.read_bytes()
    assert PNG + JPG + b"\0" * 5_000 in data
    assert b"a" * 40 not in data
    reader = open_shard(path)
    assert list(reader.runs(0, ["image", "caption"])) == ["image"]
    one, other = (reader.read_unit(0, ["image"]).column("image").buffers() for _ in range(2))
    assert one[2].address == other[2].address
    with h5py.File(path) as file:
        assert file["image/data"][:].tobytes() == PNG + JPG + b"\0" * 5_000


def test_what_does_not_shrink_is_read_in_place(path):
    noise = np.random.default_rng(1).bytes(20_000)
    write(
        path, records([pa.field("noise", pa.binary())], [noise[:9_000], noise[9_000:]]), name=NAME
    )
    assert noise in path.read_bytes()
    place = stored(path)[0, "noise/data"]
    assert place[1] == place[2] == 20_000
    assert open_shard(path).read_unit(0).column("noise").to_pylist() == [
        noise[:9_000],
        noise[9_000:],
    ]


def test_text_takes_what_deflate_makes_of_it(path):
    batch = table(1_000)
    write(path, batch, unit_bytes=4 << 20, name=NAME)
    text = "".join(batch.column("text").to_pylist()).encode()
    assert len(text) > 800_000
    assert stored(path)[0, "text/data"][1] == len(zlib.compress(text, 9))
    assert path.stat().st_size < 0.3 * len(text)
    assert path.stat().st_size < len(zlib.compress(text, 9)) + 25_000


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<f4", "<i8"])
@pytest.mark.parametrize("shape", [(1_000,), (10, 25, 4)], ids=str)
def test_values_come_back_from_deflation(dtype, shape):
    array = (np.arange(1_000) // 50).astype(dtype).reshape(shape)
    packed = deflate(array)
    assert len(packed) < array.nbytes / 4
    found = inflate(np.frombuffer(packed, np.uint8), array.nbytes, array.dtype.itemsize)
    assert found.tobytes() == array.tobytes()


# either name, and both versions


def test_a_file_says_itself_what_it_is(path):
    batch = mixed(100)
    for name in ("hdf5", NAME):
        write(path, batch, unit_bytes=10_000, name=name)
        for other in ("hdf5", NAME):
            reader = get_format(other).open(path)
            assert digest(*map(reader.read_unit, range(len(reader.unit_slots)))) == digest(batch)
            assert get_format(other).units(path) == get_format(name).units(path)


def test_plain_files_stay_at_the_version_that_all_releases_read(path):
    for name, version in (("hdf5", "1"), (NAME, "2")):
        write(path, mixed(5), name=name)
        assert json.loads(path.read_bytes()[:HEAD])[base.VERSION_KEY] == version
        assert open_shard(path).metadata[base.VERSION_KEY] == version


def test_a_release_of_the_first_version_refuses_a_deflated_shard(path, monkeypatch):
    write(path, mixed(5), name=NAME)
    monkeypatch.setattr(directory, "DEFLATED_VERSION", 1)
    with pytest.raises(FormatVersionError, match="version 2 is newer than 1"):
        open_shard(path)


@pytest.mark.parametrize("told", [0, HEAD], ids=["HDF5 2.0", "HDF5 1.14"])
def test_a_chunk_is_found_from_whichever_byte_hdf5_counts(path, told):
    sink, chunk = Sink(path), deflate(np.zeros(1_000, np.uint8))
    sink.write(memoryview(bytes(3_000) + chunk))
    info = SimpleNamespace(byte_offset=3_000 - told)
    dataset = SimpleNamespace(get_chunk_info=lambda number: info)
    content = _Content(np.zeros(1_000, np.uint8), chunk)
    assert content.extent(dataset, sink) == (3_000, len(chunk))
    sink.close()


# what is broken


def test_no_flipped_bit_of_deflated_bytes_gives_other_values(path):
    """A few bits mean nothing: those that fill the last byte before the checksum."""
    batch = table(100)
    write(path, batch, unit_bytes=30_000, name=NAME)
    data, rng = path.read_bytes(), np.random.default_rng(3)
    deflated = {name: place for name, place in stored(path).items() if place[1] < place[2]}
    assert len(deflated) > 10
    whole = [digest(unit) for unit in read(path)]
    outcomes = Counter()
    for (unit, part), (offset, nbytes, _size) in deflated.items():
        column = part.split("/")[0].split(":")[0]
        for place in {0, 1, nbytes - 1, *rng.integers(0, nbytes, 4).tolist()}:
            damaged = bytearray(data)
            damaged[offset + place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            found = outcome(path, unit, column)
            outcomes["same" if found == whole[unit] else found] += 1
            others = [name for name in batch.schema.names if name != column]
            open_shard(path).read_unit(unit, others)
    assert set(outcomes) <= {None, "same"}
    assert outcomes["same"] < 0.1 * outcomes[None]


def outcome(path, unit, column):
    """Return the digest of a unit, or the unit and column that the error names."""
    try:
        return digest(open_shard(path).read_unit(unit))
    except CorruptShard as error:
        assert error.fields == {"shard": path.name, "unit": unit, "column": column}
        return None


def test_a_unit_beside_a_damaged_one_is_read(path):
    batch = table(100)
    write(path, batch, unit_bytes=30_000, name=NAME)
    offset, data = stored(path)[0, "text/data"][0], bytearray(path.read_bytes())
    data[offset + 50] ^= 255
    path.write_bytes(data)
    reader = open_shard(path)
    first, second = reader.unit_slots[:2]
    assert_same(reader.read_unit(1), batch.slice(first, second))


def place_of(path, part):
    """Return where the table has the offset of a part; its values and bytes follow."""
    names = [name for unit, name in stored(path) if unit == 0]
    return 1 + 3 * names.index(part)


HOSTILE = {
    "more values": lambda row, at: row.__setitem__(at + 1, row[at + 1] + 1),
    "fewer values": lambda row, at: row.__setitem__(at + 1, row[at + 1] - 1),
    "values without end": lambda row, at: row.__setitem__(at + 1, 2**62),
    "values beyond what deflate can": lambda row, at: row.__setitem__(
        at + 1, row[at + 2] * RATIO + 1
    ),
    "no bytes": lambda row, at: row.__setitem__(at + 2, 0),
    "fewer bytes": lambda row, at: row.__setitem__(at + 2, row[at + 2] - 1),
    "more bytes": lambda row, at: row.__setitem__(at + 2, row[at + 2] + 1),
    "as many bytes as values": lambda row, at: row.__setitem__(at + 2, row[at + 1]),
    "bytes without end": lambda row, at: row.__setitem__(at + 2, 2**62),
    "bytes before the start": lambda row, at: row.__setitem__(at + 2, -1),
    "another place": lambda row, at: row.__setitem__(at, row[at] + 8),
    "a place behind the end": lambda row, at: row.__setitem__(at, 2**40),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_table_that_lies_is_refused(path, change):
    write(path, table(100), unit_bytes=30_000, name=NAME)
    at = place_of(path, "text/data")
    rewrite(path, lambda table, size: None)
    assert digest(*read(path)) == digest(table(100))
    rewrite(path, lambda table, size: HOSTILE[change](table[1], at))
    with pytest.raises(CorruptShard) as caught:
        read(path)
    assert caught.value.fields["shard"] == path.name


def test_an_unknown_codec_is_refused(path):
    write(path, table(10), name=NAME)
    data = path.read_bytes()
    at = data.index(b'"codec": "deflate"')
    path.write_bytes(data[:at] + b'"codec": "inflate"' + data[at + 18 :])
    head = json.loads(data[:HEAD])
    content = b"".join(path.read_bytes()[a : a + n] for a, n in (head["about"], head["table"]))
    head["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_bytes(json.dumps(head).encode().ljust(HEAD) + path.read_bytes()[HEAD:])
    with pytest.raises(CorruptShard, match="ValueError"):
        open_shard(path)


def test_a_bomb_takes_no_more_than_it_was_told_to(path):
    bomb = np.frombuffer(zlib.compress(bytes(200 << 20), 9), np.uint8)
    assert len(bomb) < 1 << 18
    tracemalloc.start()
    try:
        for nbytes in (100, 1 << 20):
            with pytest.raises(ValueError, match="another length"):
                inflate(bomb, nbytes, 1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[:1], lambda data: b""],
    ids=["cut", "added to", "one byte", "nothing"],
)
def test_deflated_bytes_end_where_they_must(change):
    array = np.arange(1_000, dtype="<i8")
    data = np.frombuffer(change(deflate(array)), np.uint8)
    with pytest.raises(ValueError, match="another length"):
        inflate(data, array.nbytes, 8)


def test_a_row_of_many_units_bytes_comes_back(path):
    batch = rows(pa.array(["ab" * 3_000_000, "c"]))
    write(path, batch, name=NAME)
    assert path.stat().st_size < 60_000
    assert digest(*read(path)) == digest(batch)
