"""Shards that earlier releases wrote: every release reads them, with the same digest.

A version's shard holds a column of each type of `typematrix` and of each kind of member, in two
units of three and five rows, the last a tombstone. A new format version adds its own files.
"""

from pathlib import Path

import pytest
from records import digest

from geodata.formats import get_format
from geodata.schema import KEY

GOLDEN = Path(__file__).parent / "golden"
DIGEST = "8e118e3f86b2a7fb243041830f05cfc94670e30c08e6d57beb02ac4e14bb2c2e"
FIRST = ("parquet", "webdataset", "webdataset+gzip", "webdataset+xz", "hdf5", "tfrecord")
SHARDS = [("v1", name) for name in FIRST]


@pytest.mark.parametrize(("version", "name"), [*SHARDS, ("v2", "hdf5+gzip")])
def test_old_shards_are_read(version, name):
    form = get_format(name)
    path = GOLDEN / f"{version}{form.suffix}"
    index = path.with_name(path.name + form.index_suffix) if form.index_suffix else None
    reader = form.open(path, index)
    assert list(reader.unit_slots) == [3, 5]
    assert reader.metadata == {"geodata.format_version": version[1:], "geodata.tag": "{}"}
    units = [reader.read_unit(unit) for unit in range(2)]
    assert units[0].column(KEY).to_pylist() == ["dir/0.x", "dir/1.x", "dir/2.x"]
    assert units[1].column(KEY).to_pylist()[-1] is None
    assert digest(*units, like=DIGEST) == DIGEST
