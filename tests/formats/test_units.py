"""Units are cut greedily, and the same however rows are batched: property tests."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import rows

from geodata.errors import SchemaError
from geodata.formats.units import (
    UnitCutter,
    check_batch_bytes,
    check_rows,
    select,
    starts_of,
    take_by_unit,
)

SIZES = st.lists(st.integers(1, 40), max_size=60)


def values_of(batch):
    return batch.column("value").to_numpy()


def cut(sizes, bounds, unit_bytes=50, unit_slots=None):
    """Return the sizes of the rows of each unit; a row's value is its size."""
    batch = rows(pa.array(sizes, pa.int64()))
    cutter = UnitCutter(batch.schema, values_of, unit_bytes, unit_slots)
    units = []
    for start, stop in pairwise([0, *sorted(bounds), len(sizes)]):
        units += cutter.push(batch.slice(start, stop - start))
    units += cutter.flush()
    return [[int(size) for part in unit for size in values_of(part)] for unit in units]


def greedy(sizes, unit_bytes):
    units = []
    for size in sizes:
        if units and sum(units[-1]) + size <= unit_bytes:
            units[-1].append(size)
        else:
            units.append([size])
    return units


@settings(deadline=None)
@given(SIZES, st.data(), st.integers(1, 100))
def test_units_are_greedy_whatever_the_batches(sizes, data, unit_bytes):
    bounds = data.draw(st.lists(st.integers(0, len(sizes))))
    assert cut(sizes, bounds, unit_bytes) == greedy(sizes, unit_bytes)


@settings(deadline=None)
@given(SIZES, st.data())
def test_units_can_be_given(sizes, data):
    bounds = data.draw(st.lists(st.integers(0, len(sizes))))
    slots = [len(unit) for unit in greedy(sizes, 30)]
    assert cut(sizes, bounds, 1, slots) == greedy(sizes, 30)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_rows_are_taken_from_their_units(slots, data):
    starts = starts_of(slots)
    wanted = data.draw(st.lists(st.integers(0, int(starts[-1]) - 1), min_size=1))
    read = []

    def read_unit(unit):
        read.append(unit)
        return rows(pa.array(range(starts[unit], starts[unit + 1])))

    assert values_of(take_by_unit(read_unit, starts, wanted)).tolist() == wanted
    assert len(read) == len(set(read))


def test_rows_outside_are_refused():
    assert check_rows([0, 4], 5).tolist() == [0, 4]
    assert check_rows([], 0).dtype == np.int64
    for wrong in ([5], [-1], [0, 2**40]):
        with pytest.raises(IndexError):
            check_rows(wrong, 5)


def test_columns_are_selected_in_schema_order():
    schema = pa.schema([("a", pa.int8()), ("a.b", pa.int8()), ("c", pa.int8())], {"k": "v"})
    assert select(schema, ["c", "a"]).names == ["a", "c"]
    assert select(schema, ["a.b"]).metadata == {b"k": b"v"}
    assert select(schema, None) is schema


def test_a_batch_of_two_gigabytes_is_refused():
    check_batch_bytes(2**31 - 1)
    with pytest.raises(SchemaError, match="2 GiB"):
        check_batch_bytes(2**31)
