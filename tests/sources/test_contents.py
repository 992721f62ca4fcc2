"""Contents of files in one buffer."""

import pyarrow as pa
import pytest

from geodata.sources.batches import Origin
from geodata.sources.contents import Contents

SCHEMA = pa.schema(
    [("__key__", pa.string()), ("__subject__", pa.string()), ("a", pa.binary()), ("n", pa.int64())]
)


@pytest.fixture
def files(tmp_path):
    for name, data in {"one": b"1", "empty": b"", "three": b"333"}.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def modified(path):
    return path.stat().st_mtime_ns


def test_what_is_kept_becomes_a_column(files):
    found = Contents(8)
    for name, nbytes in (("one", 1), ("three", 3), ("empty", 0)):
        content = found.read(str(files / name), nbytes, modified(files / name))
        assert bytes(content) == (files / name).read_bytes()
        if name != "three":
            found.keep(name, (len(name),), nbytes)
    found.put(b"put")
    found.keep("put", (None,), 3)
    assert found.array().to_pylist() == [b"1", b"", b"put"]
    batch = found.batch("a", ["n"], SCHEMA, Origin("f"))
    assert batch.to_pylist() == [
        {"__key__": key, "__subject__": None, "a": a, "n": n}
        for key, a, n in (("one", b"1", 3), ("empty", b"", 5), ("put", b"put", None))
    ]


@pytest.mark.parametrize(("nbytes", "later"), [(2, 0), (4, 0), (3, 1)])
def test_a_file_that_changed_is_not_read(files, nbytes, later):
    path = files / "three"
    assert Contents(8).read(str(path), nbytes, modified(path) + later) is None


def test_there_is_room_for_what_was_said():
    found = Contents(4)
    assert (found.fits(4), found.fits(5)) == (True, False)
    found.put(b"1234")
    assert found.fits(4)
    found.keep("k", (), 4)
    assert (found.fits(0), found.fits(1)) == (True, False)
