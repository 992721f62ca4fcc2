"""HDF5 shards that are broken, that lie, or whose writer does not end well."""

import json

import h5py
import numpy as np
import pytest
from hdf5_shards import HEAD, both, open_shard, read, rewrite, run, write
from records import digest, mixed

from geodata.errors import CorruptShard, FormatVersionError
from geodata.formats import get_format
from geodata.formats.layout import Layout


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.h5"


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


START = """
import resource, signal, os, sys
from pathlib import Path
from hdf5_shards import get_format
from records import mixed
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
