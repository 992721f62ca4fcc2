"""Runs of bytes become arrays by one copy, and only where they lie in their data."""

import numpy as np
import pyarrow as pa
import pytest

from geodata.errors import SchemaError
from geodata.formats import units
from geodata.formats.slices import RAGGED, Slices, merged, runs_of


def slices(data, *runs):
    offsets, sizes = np.array(runs, np.int64).reshape(-1, 2).T
    return Slices(pa.py_buffer(data), offsets, sizes)


@pytest.mark.parametrize("kind", RAGGED, ids=str)
def test_pieces_come_to_their_places(kind):
    first = slices(b"abcdef", (4, 2), (0, 3), (1, -1))
    other = slices(b"xyz", (1, 1), (3, 0))
    found = merged([(first, np.array([3, 0, 1])), (other, np.array([2, 4]))], 5, kind)
    found.validate(full=True)
    assert found.equals(pa.array([b"abc", None, b"y", b"ef", b""], pa.binary()).cast(kind))


@pytest.mark.parametrize("kind", RAGGED, ids=str)
def test_arrays_come_back_from_their_runs(kind):
    array = pa.array(["", "ab", None, "ü", "\0"], kind)
    for part in (array, array.slice(1, 3), array.slice(5), pa.nulls(3, kind)):
        assert merged([(runs_of(part), np.arange(len(part)))], len(part), kind).equals(part)


@pytest.mark.parametrize("run", [(2, 2), (4, 1), (-1, 2), (0, 1 << 40)], ids=str)
def test_runs_outside_of_their_data_are_refused(run):
    with pytest.raises(ValueError, match="outside"):
        merged([(slices(b"abc", run), np.zeros(1, np.int64))], 1, pa.large_binary())


def test_text_that_is_not_utf8_is_refused():
    broken = slices(b"\xff", (0, 1))
    assert merged([(broken, np.zeros(1, int))], 1, pa.binary()).to_pylist() == [b"\xff"]
    for kind in (pa.string(), pa.large_string()):
        with pytest.raises(ValueError, match="UTF8"):
            merged([(broken, np.zeros(1, int))], 1, kind)


def test_what_32_bits_cannot_count_is_refused(monkeypatch):
    monkeypatch.setattr(units, "BATCH_BYTES", 4)
    pieces = [(slices(b"abcd", (0, 4)), np.zeros(1, int))]
    assert merged(pieces, 1, pa.large_binary()).to_pylist() == [b"abcd"]
    with pytest.raises(SchemaError, match="2 GiB"):
        merged(pieces, 1, pa.binary())
