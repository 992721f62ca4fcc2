"""Arrow's layout as flat arrays: what the parts are, that they come back, and what is refused."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from records import ODD_COLUMNS, assert_same
from typematrix import COLUMNS

from geodata.errors import SchemaError
from geodata.formats.layout import Layout, escape

INT64, BYTE, BOOL = np.dtype("<i8"), np.dtype("u1"), np.dtype("?")


def layout(array):
    return Layout(pa.field("x", array.type))


def parts(array):
    return {name: part.tolist() for name, part in layout(array).flatten(array).items()}


def frozen(array):
    """Return the parts as bytes, to compare them exactly."""
    found = layout(array).flatten(array)
    return {name: (part.dtype, part.shape, part.tobytes()) for name, part in found.items()}


def same(found, expected):
    schema = pa.schema([pa.field("x", expected.type)])
    assert found.type.equals(expected.type, check_metadata=True)
    assert_same(*(pa.record_batch([array], schema=schema) for array in (found, expected)))


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_type_comes_back_from_its_listed_parts(kind):
    array = COLUMNS[kind]
    one = layout(array)
    listed = {part.name: part for part in one.parts}
    assert len(listed) == len(one.parts)
    for some in (
        array,
        array.slice(1),
        array.slice(1, 1),
        array.slice(2, 0),
        pa.nulls(3, array.type),
    ):
        found = one.flatten(some)
        for name, part in found.items():
            assert (part.dtype, part.shape[1:]) == (listed[name].dtype, listed[name].shape)
            assert part.flags.c_contiguous
            offsets = listed[name].role == "offsets"
            assert listed[name].count(found, len(some)) == len(part) - offsets
        same(one.build(found, len(some)), some)


@pytest.mark.parametrize("kind", COLUMNS)
def test_slices_and_what_nulls_hide_change_nothing(kind):
    array = COLUMNS[kind]
    padded = pa.concat_arrays([array.slice(1), array, array.slice(0, 1)])
    assert frozen(padded.slice(len(array) - 1, len(array))) == frozen(array)
    hide = [i % 2 == 0 for i in range(len(array))]
    places = pa.array([None if hidden else i for i, hidden in enumerate(hide)], pa.int64())
    for of in (array, array.take(places)):
        struct = pa.StructArray.from_arrays([of], ["a"], mask=pa.array(hide))
        lists = pa.ListArray.from_arrays(list(range(len(array) + 1)), of, mask=pa.array(hide))
        if of is array:
            expected = frozen(struct), frozen(lists)
            same(layout(lists).build(layout(lists).flatten(lists), len(array)), lists)
        assert (frozen(struct), frozen(lists)) == expected


def test_parts_have_plain_dtypes_and_natural_names():
    assert parts(pa.array([1, None])) == {"x": [1, 0], "x:valid": [True, False]}
    assert parts(pa.array([True, False])) == {"x": [True, False]}
    assert parts(pa.array([b"ab", b"", b"c"])) == {"x/offsets": [0, 2, 2, 3], "x/data": [*b"abc"]}
    assert parts(pa.array([["a", None], None], pa.list_(pa.string()))) == {
        "x:valid": [True, False],
        "x/offsets": [0, 2, 2],
        "x/item:valid": [True, False],
        "x/item/offsets": [0, 1, 1],
        "x/item/data": [*b"a"],
    }
    assert parts(pa.array([[(1, 2.5)], []], pa.map_(pa.int8(), pa.float32()))) == {
        "x/offsets": [0, 1, 1],
        "x/key": [1],
        "x/value": [2.5],
    }
    assert parts(pa.array([{"a": 1, "b": {"c": None}}])) == {"x/a": [1]}
    assert parts(pa.array([[1, None], None], pa.list_(pa.int8(), 2))) == {
        "x:valid": [True, False],
        "x:item:valid": [True, False, True, True],
        "x": [[1, 0], [0, 0]],
    }
    assert parts(pa.nulls(2)) == {}


def test_values_without_a_dtype_are_integers_or_bytes():
    assert parts(pa.array([7], pa.timestamp("us", "UTC"))) == {"x": [7]}
    assert parts(pa.array([Decimal("1.25")], pa.decimal128(5, 2))) == {"x": [[125] + [0] * 15]}
    assert parts(pa.array([pa.MonthDayNano([1, 2, 3])])) == {
        "x": [[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]]
    }
    tensor = pa.fixed_shape_tensor(pa.int16(), [2, 3])
    stored = pa.array([range(6)], pa.list_(pa.int16(), 6))
    found = layout(pa.nulls(0, tensor)).flatten(pa.ExtensionArray.from_storage(tensor, stored))
    assert found["x"].tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_names_cannot_clash():
    names = [*ODD_COLUMNS, ".", "..", "%", "x:valid", "x%3Avalid", "a\0b", "a/offsets"]
    escaped = [escape(name) for name in names]
    assert len(set(escaped)) == len(set(names))
    assert not [name for name in escaped if set(name) & set("/:\0") or name in ("", ".")]
    assert escape("größe 1.5 *") == "größe 1.5 *"
    twins = pa.struct([("a", pa.int8()), ("a", pa.int8()), ("a:1", pa.int8())])
    array = pa.StructArray.from_arrays(
        [pa.array([i], pa.int8()) for i in range(3)], fields=list(twins)
    )
    assert parts(array) == {"x/a": [0], "x/a:1": [1], "x/a%3A1": [2]}
    same(layout(array).build(layout(array).flatten(array), 1), array)


def test_nothing_is_copied_that_hides_nothing():
    values, data = pa.array([1.5, 2.5]), pa.array([b"abc", b"d"], pa.large_binary())
    for array, name, buffer in ((values, "x", 1), (data, "x/data", 2), (data, "x/offsets", 1)):
        found = layout(array).flatten(array)
        assert found[name].__array_interface__["data"][0] == array.buffers()[buffer].address
        made = layout(array).build(found, 2)
        assert made.buffers()[buffer].address == array.buffers()[buffer].address


def test_a_piece_of_a_longer_column_is_built():
    array = pa.array(["a", "bc", None, "def"])
    found = layout(array).flatten(array)
    piece = {
        "x/offsets": found["x/offsets"][1:],
        "x/data": found["x/data"][1:],
        "x:valid": found["x:valid"][1:],
    }
    same(layout(array).build(piece, 3), array.slice(1))


@pytest.mark.parametrize("kind", COLUMNS)
def test_bytes_of_a_value_follow_from_it_alone_and_sum_to_the_parts(kind):
    array = COLUMNS[kind]
    one = layout(array)
    sizes = one.nbytes(array)
    assert list(sizes) == [one.nbytes(array.slice(i, 1))[0] for i in range(len(array))]
    found = one.flatten(array)
    data = sum(part.nbytes for name, part in found.items() if ":" not in name)
    offsets = 8 * sum(name.endswith("/offsets") for name in found)
    validity = len(array) * (1 + sum(part.role == "valid" for part in one.parts))
    assert data - offsets <= sizes.sum() <= data - offsets + validity


DAMAGE = {
    "offsets missing": {"x/offsets": None},
    "data missing": {"x/item/data": None},
    "of another dtype": {"x/offsets": np.zeros(3, np.int32)},
    "of another rank": {"x/item/data": np.zeros((3, 1), np.uint8)},
    "too few": {"x/offsets": np.array([0, 2])},
    "none": {"x/offsets": np.zeros(0, np.int64)},
    "descending": {"x/offsets": np.array([0, 3, 2])},
    "descending by more than int64": {"x/offsets": np.array([2**62, -(2**63), 2**62 + 2])},
    "negative": {"x/offsets": np.array([-2, -1, 0])},
    "past the items": {"x/offsets": np.array([0, 1, 3])},
    "far past the items": {"x/offsets": np.array([0, 1, 2**62])},
    "past the data": {"x/item/offsets": np.array([0, 1, 9])},
    "short of the data": {"x/item/offsets": np.array([0, 1, 2])},
    "of 2 GiB": {"x/item/offsets": np.array([0, 1, 2**31])},
    "validity too short": {"x:valid": np.zeros(1, bool)},
    "validity of items too long": {"x/item:valid": np.zeros(3, bool)},
    "no UTF-8": {"x/item/data": np.array([0x61, 0xFF, 0xFE], np.uint8)},
    "a character cut in two": {
        "x/item/data": np.array([0xC3, 0xA9, 0x61], np.uint8),
        "x/item/offsets": np.array([0, 1, 3]),
    },
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_parts_that_do_not_fit_are_refused(damage):
    array = pa.array([["a"], ["bc"]])
    one = layout(array)
    found = one.flatten(array)
    same(one.build(found, 2), array)
    changed = {name: part for name, part in {**found, **DAMAGE[damage]}.items() if part is not None}
    with pytest.raises(ValueError):
        one.build(changed, 2)


def test_lists_of_nothing_have_no_more_items_than_arrow_can_count():
    one = Layout(pa.field("x", pa.large_list(pa.list_(pa.null(), 3))))
    with pytest.raises(ValueError, match="beyond"):
        one.build({"x/offsets": np.array([0, 2**62])}, 1)


def test_keys_of_a_map_are_never_null():
    array = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))
    one = layout(array)
    assert "x/key:valid" not in {part.name for part in one.parts}
    hostile = {**one.flatten(array), "x/key:valid": np.zeros(1, bool), ":valid": np.zeros(1, bool)}
    same(one.build(hostile, 1), array)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_types_that_no_format_stores_are_refused(kind):
    with pytest.raises(SchemaError, match="cannot be stored"):
        Layout(pa.field("x", kind))


def test_items_without_a_byte_have_a_bound():
    field = pa.field("x", pa.list_(pa.null()))
    with pytest.raises(ValueError, match="without a byte"):
        Layout(field).build({"x/offsets": np.array([0, 1 << 30])}, 1)
