"""The conformance of HDF5 shards, what stock h5py sees in them, and what is broken.

What holds for compressed ones too is tested for both; see test_hdf5_gzip.py for the rest.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from conformance import Conformance
from records import JPG, PNG, assert_same, digest, mixed, rows
from typematrix import COLUMNS

from geodata.errors import CorruptShard, FormatVersionError, MissingExtra
from geodata.formats import get_format
from geodata.formats.layout import Layout
from geodata.schema import KEY, dataset_schema, label_field, media_field

HEAD = 512
both = pytest.mark.parametrize("name", ["hdf5", "hdf5+gzip"])


class TestHdf5(Conformance):
    name = "hdf5"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.h5"


def write(path, batch, unit_bytes=1 << 20, name="hdf5", **more):
    form = get_format(name)
    writer = form.create(path, batch.schema, unit_bytes=unit_bytes, metadata={}, **more)
    writer.write(batch)
    writer.close()


def open_shard(path):
    return get_format("hdf5").open(path)


def read(path, columns=None):
    reader = open_shard(path)
    return [reader.read_unit(unit, columns) for unit in range(len(reader.unit_slots))]


def records(fields, *columns):
    """Return records with these columns."""
    schema = dataset_schema(pa.schema(fields))
    count = len(columns[0])
    keys = pa.array([f"k{i}" for i in range(count)])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays([keys, pa.nulls(count, pa.string()), *arrays], schema=schema)


# stock h5py


def test_stock_h5py_reads_images_and_labels(path):
    images, labels = [PNG, JPG, None, b"", b"\0a\0"], [3, None, -1, 2**40, 0]
    fields = [media_field("image", "image"), label_field("label")]
    write(path, records(fields, images, labels), unit_slots=[2, 1, 2])
    with h5py.File(path) as file:
        offsets, data = file["image/offsets"][:], file["image/data"]
        found = [data[a:b].tobytes() for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        assert found == [PNG, JPG, b"", b"", b"\0a\0"]
        assert file["image:valid"][:].tolist() == [True, True, False, True, True]
        assert file["label"][:].tolist() == [3, 0, -1, 2**40, 0]
        assert file["label:valid"][:].tolist() == [True, False, True, True, True]
        assert (file["label"].dtype, file["label:valid"].dtype) == (np.int64, np.bool_)
        offsets, data = file[f"{KEY}/offsets"], file[f"{KEY}/data"]
        assert data[offsets[3] : offsets[4]].tobytes().decode() == "k3"
        assert f"{KEY}:valid" not in file
        assert data.chunks is None
        assert data.compression is None


def test_stock_h5py_reads_tensors_lists_and_structs(path):
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    stored = pa.array([range(6), range(6, 12), [0] * 6], pa.list_(pa.float32(), 6))
    fields = [
        pa.field("tensor", tensor),
        pa.field("flags", pa.list_(pa.bool_())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("place", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
        pa.field("a/b", pa.float16()),
        pa.field("größe", pa.uint8()),
    ]
    columns = [
        pa.ExtensionArray.from_storage(tensor, stored),
        [[True], [], [False, True]],
        [1, 2, 3],
        [{"lat": 1.5, "name": "ä"}, {"lat": 2.5, "name": ""}, {"lat": 3.5, "name": "b"}],
        np.array([0.5, 1.5, 2.5], np.float16),
        [1, 2, 3],
    ]
    write(path, records(fields, *columns), unit_slots=[1, 2])
    with h5py.File(path) as file:
        assert file["tensor"].shape == (3, 2, 3)
        assert file["tensor"][1].tolist() == [[6, 7, 8], [9, 10, 11]]
        assert file["flags/offsets"][:].tolist() == [0, 1, 1, 3]
        assert file["flags/item"][:].tolist() == [True, False, True]
        assert file["at"][:].tolist() == [1, 2, 3]
        assert file["place/lat"][:].tolist() == [1.5, 2.5, 3.5]
        assert file["place/name/data"][:].tobytes().decode() == "äb"
        assert file["a%2Fb"][:].tolist() == [0.5, 1.5, 2.5]
        assert file["a%2Fb"].dtype == np.float16
        assert file["größe"][:].tolist() == [1, 2, 3]
        assert "größe" in list(file)


@both
@pytest.mark.parametrize("kind", COLUMNS)
def test_stock_h5py_reads_every_part_over_all_units(path, kind, name):
    array = COLUMNS[kind]
    several = pa.concat_arrays([array, array, pa.nulls(2, array.type), array.slice(0, 1)])
    batch = rows(several)
    slots = [1, len(array), len(several) - len(array) - 1]
    write(path, batch, name=name, unit_slots=slots)
    layout = Layout(batch.schema.field("value"))
    expected = layout.flatten(several)
    with h5py.File(path) as file:
        for part in layout.parts:
            assert (part.name in file) == (part.name in expected)
            if part.name in expected:
                found = file[part.name][:]
                assert (found.dtype, found.shape) == (part.dtype, expected[part.name].shape)
                assert found.tobytes() == expected[part.name].tobytes()


@both
def test_stock_h5py_reads_an_empty_shard(path, name):
    write(path, mixed(1).slice(0, 0), name=name)
    with h5py.File(path) as file:
        assert file["image/offsets"][:].tolist() == [0]
        assert file["image/data"].shape == file["class"].shape == (0,)
        assert "class:valid" not in file


@both
def test_a_file_is_the_same_at_another_time_in_another_process(path, name):
    code = (
        "import sys; from pathlib import Path; from test_hdf5 import write, mixed;"
        "write(Path(sys.argv[1]), mixed(300), unit_bytes=20_000, name=sys.argv[2])"
    )
    started, found = int(time.time()), set()
    for seed in ("1", "2"):
        run(code, path, name, env={"PYTHONHASHSEED": seed, "MALLOC_PERTURB_": f"{seed}7"})
        found.add(hashlib.sha256(path.read_bytes()).hexdigest())
        while int(time.time()) == started:
            time.sleep(0.05)
    assert len(found) == 1


# where the bytes lie


@both
def test_a_range_of_bytes_and_the_frame_are_a_unit(path, name):
    batch = mixed(300)
    write(path, batch, unit_bytes=20_000, name=name)
    ranges, data = get_format("hdf5").units(path), path.read_bytes()
    assert len(ranges) > 3
    start, end = ranges[0].offset, ranges[-1].offset + ranges[-1].length
    first = 0
    for number, unit in enumerate(ranges):
        hollow = bytearray(data[:start]) + bytes(end - start) + data[end:]
        piece = slice(unit.offset, unit.offset + unit.length)
        hollow[piece] = data[piece]
        path.write_bytes(hollow)
        found = open_shard(path).read_unit(number)
        assert_same(found, batch.slice(first, unit.slots))
        first += unit.slots


@both
def test_units_are_adjacent_and_their_headers_small(path, name):
    write(path, mixed(300), unit_bytes=20_000, name=name)
    ranges = get_format("hdf5").units(path)
    for one, following in zip(ranges, ranges[1:], strict=False):
        assert one.offset + one.length == following.offset
    parts = sum(len(Layout(field).parts) for field in mixed(1).schema)
    said = get_format("hdf5").row_nbytes(mixed(300)).sum()
    assert sum(unit.length for unit in ranges) < said + 600 * parts * len(ranges)


@both
def test_reading_needs_nothing_of_hdf5(path, name):
    batch = mixed(300)
    write(path, batch, unit_bytes=20_000, name=name)
    data = bytearray(path.read_bytes())
    head = json.loads(data[:HEAD])
    starts = [HEAD, *(unit.offset for unit in get_format("hdf5").units(path)[:1])]
    data[starts[0] : starts[1]] = b"\xff" * (starts[1] - starts[0])
    first, last = sorted([head["about"], head["table"]])
    assert first[0] + first[1] <= last[0]
    data[sum(last) :] = b"\xff" * (len(data) - sum(last))
    path.write_bytes(data)
    with pytest.raises(OSError, match="open"):
        h5py.File(path)
    assert digest(*read(path)) == digest(batch)


def test_a_unit_is_a_view_of_the_file(path):
    write(path, mixed(50))
    reader = open_shard(path)
    addresses = [
        [reader.read_unit(0).column(name).buffers()[place].address for _ in range(2)]
        for name, place in (("image", 2), ("score", 1), ("caption", 2))
    ]
    assert all(one == other for one, other in addresses)


def test_columns_not_asked_for_are_not_touched(path):
    batch = mixed(50)
    write(path, batch)
    offset, data = batch.column("caption").buffers()[2].to_pybytes()[:40], path.read_bytes()
    at = data.index(offset)
    path.write_bytes(data[:at] + b"\xff" * 40 + data[at + 40 :])
    names = [name for name in batch.schema.names if name != "caption"]
    assert_same(open_shard(path).read_unit(0, names), batch.select(names))
    with pytest.raises(CorruptShard) as caught:
        open_shard(path).read_unit(0)
    assert caught.value.fields == {"shard": path.name, "unit": 0, "column": "caption"}
    assert caught.value.__cause__ is None


def test_a_lock_on_the_file_does_not_matter(path):
    write(path, mixed(20))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert digest(*read(path)) == digest(mixed(20))


@both
def test_reading_works_without_h5py_and_writing_names_the_extra(path, monkeypatch, name):
    write(path, mixed(20), name=name)
    monkeypatch.delitem(sys.modules, "geodata.formats.hdf5.writer", raising=False)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert digest(*read(path)) == digest(mixed(20))
    with pytest.raises(MissingExtra, match=r"geodata-train\[hdf5\]"):
        write(path, mixed(20), name=name)


# what is broken


def test_a_foreign_hdf5_file_is_no_shard(path):
    with h5py.File(path, "w", userblock_size=HEAD) as file:
        file["a"] = [1]
    with pytest.raises(CorruptShard, match="no shard"):
        open_shard(path)


def test_a_shard_that_was_not_closed_is_refused(path):
    form, batch = get_format("hdf5"), mixed(300)
    writer = form.create(path, batch.schema, unit_bytes=20_000, metadata={})
    writer.write(batch)
    assert path.stat().st_size > 20_000
    with pytest.raises(CorruptShard, match="no shard"):
        form.open(path)
    del writer
    with pytest.raises(CorruptShard, match="no shard"):
        form.open(path)


def test_flipped_bytes_give_values_or_are_refused(path):
    batch = mixed(60)
    write(path, batch, unit_bytes=10_000)
    data, rng = path.read_bytes(), np.random.default_rng(5)
    head = json.loads(data[:HEAD])
    some = rng.integers(0, len(data), 250).tolist()
    some += [*range(0, 200, 9), *(sum(head["table"]) - i for i in range(1, 200, 9))]
    expected, outcomes = digest(batch), {"same": 0, "other": 0, "refused": 0}
    for place in [*some, *offsets_of(batch, data)]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            outcomes["same" if digest(*read(path)) == expected else "other"] += 1
        except (CorruptShard, FormatVersionError) as error:
            assert error.fields["shard"] == path.name
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10


def offsets_of(batch, data):
    """Return places in the file where the first unit has offsets of images."""
    offsets = Layout(batch.schema.field("image")).flatten(batch.column("image"))["image/offsets"]
    start = data.index(offsets[:10].tobytes())
    return range(start, start + 80)


def rewrite(path, change):
    """Change the table of a shard, and its digest too."""
    data = bytearray(path.read_bytes())
    head = json.loads(data[:HEAD])
    (start, nbytes), (about, length) = head["table"], head["about"]
    table = np.frombuffer(bytes(data[start : start + nbytes]), np.int64).copy()
    change(table.reshape(len(open_shard(path).unit_slots), -1), len(data))
    data[start : start + nbytes] = table.tobytes()
    content = data[about : about + length] + table.tobytes()
    head["sha256"] = hashlib.sha256(content).hexdigest()
    data[:HEAD] = json.dumps(head).encode().ljust(HEAD)
    path.write_bytes(data)


HOSTILE = {
    "a part behind the end": lambda t, size: t.__setitem__((1, 3), size // 8 * 8),
    "a part before the start": lambda t, size: t.__setitem__((1, 3), -8),
    "a part within the head": lambda t, size: t.__setitem__((1, 3), 0),
    "a part between words": lambda t, size: t.__setitem__((1, 3), t[1, 3] + 1),
    "a part larger than the file": lambda t, size: t.__setitem__((1, 4), size),
    "a part larger than any": lambda t, size: t.__setitem__((1, 4), 2**62),
    "a part of negative size": lambda t, size: t.__setitem__((1, 4), -2),
    "a unit over another": lambda t, size: t.__setitem__((1, slice(1, None)), t[0, 1:]),
    "a part of two units": lambda t, size: t.__setitem__((1, 3), t[0, 3]),
    "a missing part": lambda t, size: t.__setitem__((1, 4), -1),
    "fewer values": lambda t, size: t.__setitem__((1, 4), t[1, 4] - 1),
    "more rows": lambda t, size: t.__setitem__((1, 0), t[1, 0] + 1),
    "negative rows": lambda t, size: t.__setitem__((1, 0), -1),
    "rows without end": lambda t, size: t.__setitem__((1, 0), 2**62),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_table_that_lies_is_refused(path, change):
    write(path, mixed(300), unit_bytes=20_000)
    rewrite(path, lambda table, size: None)
    assert digest(*read(path)) == digest(mixed(300))
    rewrite(path, HOSTILE[change])
    with pytest.raises(CorruptShard) as caught:
        read(path)
    assert caught.value.fields["shard"] == path.name


@pytest.mark.parametrize(
    "head",
    [
        {"about": [0, 2**62]},
        {"about": [-5, 5]},
        {"about": [1.5, 3]},
        {"table": [512]},
        {"table": "x"},
        {"nbytes": None},
        {"sha256": 0},
        {"geodata.format_version": None},
        {"geodata.format_version": "x"},
    ],
    ids=str,
)
def test_a_head_that_lies_is_refused(path, head):
    write(path, mixed(20))
    data = path.read_bytes()
    told = json.dumps({**json.loads(data[:HEAD]), **head}).encode().ljust(HEAD)
    path.write_bytes(told + data[HEAD:])
    with pytest.raises(CorruptShard):
        open_shard(path)


# a writer that does not end well


def run(code, *arguments, env=None):
    """Run code in another process; return its exit code and output."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent.parent)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


START = """
import resource, signal, os, sys
from pathlib import Path
from test_hdf5 import get_format, mixed
import geodata.formats.hdf5.writer as module
path, form, batch = Path(sys.argv[1]), get_format(sys.argv[2]), mixed(300)
def begin():
    return form.create(path, batch.schema, unit_bytes=20_000, metadata={})
"""

FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        writer = begin()
        writer.write(batch)
        writer.close()
    except OSError as error:
        code = error.errno
    writer = None
    print(code, len(os.listdir("/dev/fd")))
"""


@both
def test_a_full_disk_is_an_error_and_no_crash(path, name):
    """The limit of a file's size stands for the end of the disk."""
    write(path, mixed(300), unit_bytes=20_000, name=name)
    size = path.stat().st_size
    ended = run(START + FULL, path, name, 0, 600, 1_500, size // 3, size * 2 // 3, size - 1)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.split("\n")[:-1]
    assert [line.split()[0] for line in lines] == ["27"] * 6
    assert len({line.split()[1] for line in lines}) == 1
    with pytest.raises(CorruptShard):
        open_shard(path)


INTERRUPTED = """
real = os.pwrite
for wanted in range(0, 400, 23):
    count = -1
    def pwrite(*arguments):
        global count
        count += 1
        if count == wanted:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)
    os.pwrite = pwrite
    try:
        writer = begin()
        writer.write(batch)
        writer.close()
        break
    except KeyboardInterrupt:
        pass
    writer = None
print(wanted)
"""


@both
def test_an_interrupt_in_the_midst_of_hdf5_is_only_that(path, name):
    ended = run(START + INTERRUPTED, path, name)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 100


@both
def test_a_writer_left_open_does_not_disturb_the_exit(path, name):
    ended = run(START + "writer = begin(); writer.write(batch); sys.exit(3)", path, name)
    assert (ended.returncode, ended.stderr) == (3, "")
    with pytest.raises(CorruptShard):
        open_shard(path)
