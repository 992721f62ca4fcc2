"""Values of a new column: of one type, none changed; a misfit names both types and the record."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from geodata.errors import SchemaError
from geodata.jobs.newvalues import Exact, NewValues
from geodata.partition import addition

DAY, NOON = dt.date(2020, 2, 3), dt.datetime(2020, 2, 3, 12)
STRUCT = pa.struct([("a", pa.int64())])
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2])


def new(values):
    return NewValues.of(values, pa.array([f"k{n}" for n in range(len(values))]), "s", "c")


@pytest.mark.parametrize(
    ("values", "kind", "declared", "expected"),
    [
        ([1, None], pa.float64(), False, [1.0, None]),
        ([None, None], STRUCT, False, [None, None]),
        ([2.0], pa.float64(), False, [2.0]),
        (np.array([1, 2], np.int8), pa.int64(), False, [1, 2]),
        (pa.chunked_array([["x"]]).dictionary_encode(), pa.string(), False, ["x"]),
        ([{}, {"a": 2}], STRUCT, False, [{"a": None}, {"a": 2}]),
        ([1, 1 << 63], pa.uint64(), True, [1, 1 << 63]),
        (["2020-02-03"], pa.date32(), True, [DAY]),
        ([[("k", 1)]], pa.map_(pa.string(), pa.int64()), True, [[("k", 1)]]),
        ([[0.5, 1.0]], TENSOR, True, [[0.5, 1.0]]),
        (np.ones((1, 2), np.float32), TENSOR, False, [[1.0, 1.0]]),
    ],
)
def test_values_are_the_same_in_the_columns_type(values, kind, declared, expected):
    made = new(values).held(kind, declared=declared)
    assert (made.type, made.to_pylist()) == (kind, expected)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1, 2, 1.5], pa.int64(), "double"),
        (["x", "y", {"a": 3}], pa.string(), "struct<a: int64>"),
        ([1, None, "three"], pa.int64(), "string"),
        ([1, 2, 1 << 53 | 1], pa.float64(), "int64"),
        ([0, 1, 300], pa.int8(), "int64"),
        ([DAY, DAY, NOON], pa.date32(), "timestamp"),
        (["x", None, b"\xff"], pa.string(), "binary"),
        ([[1], [2], [2.5]], pa.list_(pa.int64()), "list<item: double>"),
        ([1, 2, object()], pa.int64(), "object"),
    ],
)
def test_the_first_value_that_would_be_another_is_named(values, kind, found, declared):
    with pytest.raises(SchemaError) as caught:
        new(values).held(kind, declared=declared)
    assert f"the column is {kind}, which cannot hold this record's {found}" in str(caught.value)
    assert (caught.value.fields["shard"], caught.value.fields["key"]) == ("s", "k2")


def test_a_number_is_text_and_a_double_a_float_only_where_declared():
    for values, kind in (([3], pa.string()), ([0.5], pa.float32()), (["7"], pa.int64())):
        assert len(new(values).held(kind, declared=True)) == 1
        with pytest.raises(SchemaError, match=f"the column is {kind}, which cannot hold"):
            new(values).held(kind, declared=False)
    for values in ([0.1], np.array([1e300])):
        with pytest.raises(SchemaError, match="the column is float, which cannot hold"):
            new(values).held(pa.float32(), declared=True)


def test_no_field_of_a_struct_is_dropped():
    with pytest.raises(SchemaError, match="struct<a: int64, b: int64>"):
        new([{"a": 1}, {"a": 1, "b": 2}]).held(STRUCT, declared=False)
    with pytest.raises(SchemaError, match="lacks 'b'"):
        new([{"a": 1}, {"a": 1, "b": 2}]).held(STRUCT, declared=True)


def test_the_type_found_is_the_one_that_holds_all():
    assert new([None, 1, 2.5]).found().type == pa.float64()
    assert new([1, 1 << 63]).found().type == pa.uint64()
    assert new([{"a": 1}, {"b": "x"}]).found().type == pa.struct(
        [("a", pa.int64()), ("b", pa.string())]
    )
    for values in ([1, None, "three"], [DAY, DAY, NOON], [1, 2, True], [0, -1, 1 << 63]):
        with pytest.raises(SchemaError, match=r"which cannot hold.*key k2.*--type"):
            new(values).found()


def test_what_is_not_one_value_a_record_is_refused():
    keys = pa.array(["a", "b"])
    with pytest.raises(SchemaError, match="3 values for 2 records"):
        NewValues.of([1, 2, 3], keys, "s")
    for made in (7, None, "ab", b"ab", iter([1, 2]), {"a": 1, "b": 2}):
        with pytest.raises(SchemaError, match=f"{type(made).__name__} is no list or array"):
            NewValues.of(made, keys, "s")


LONG = pa.chunked_array([pa.array(["x" * (1 << 20)])] * 2048)


class Overflowing:
    """A table whose values for some records are too long for one array."""

    def __init__(self, _path):
        self.values = self

    def find(self, keys):
        return keys

    def take(self, _places):
        return LONG.combine_chunks()


def test_what_32_bits_cannot_count_is_refused(monkeypatch):
    with pytest.raises(SchemaError, match=r"one unit take 2 GiB or more.*shard s"):
        new(LONG)
    monkeypatch.setattr(addition, "Lookup", Overflowing)
    values = Exact(addition.Joining("", "word"), "c", pa.string()).opened()
    with pytest.raises(SchemaError, match=r"one unit take 2 GiB or more.*shard s"):
        values(pa.record_batch({"word": ["k"] * 2048, "__key__": ["k"] * 2048}), "s")
