"""The digest follows from the values alone; row sizes too."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from formats.typematrix import COLUMNS
from hypothesis import given, settings
from hypothesis import strategies as st

from geodata.canonical import ContentHasher, row_nbytes
from geodata.errors import SchemaError

TWICE = {kind: pa.concat_arrays([array, array]) for kind, array in COLUMNS.items()}


def batch_of(array, name="value"):
    return pa.RecordBatch.from_arrays([array], names=[name])


def digest(*batches):
    hasher = ContentHasher(batches[0].schema)
    for batch in batches:
        hasher.update(batch)
    return hasher.hexdigest()


@settings(deadline=None)
@given(st.sampled_from(list(TWICE)), st.data())
def test_batch_boundaries_and_slices_change_nothing(kind, data):
    array = TWICE[kind]
    bounds = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=4)))
    bounds = [0, *bounds, len(array)]
    parts = [array[a:b] for a, b in pairwise(bounds)]
    assert digest(*map(batch_of, parts)) == digest(batch_of(array))
    sizes = np.concatenate([row_nbytes(batch_of(part)) for part in parts])
    assert sizes.tolist() == row_nbytes(batch_of(array)).tolist()


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_copy_has_the_same_digest_and_another_order_does_not(kind):
    array = COLUMNS[kind]
    indices = pa.array(range(len(array)))
    assert digest(batch_of(array.take(indices))) == digest(batch_of(array))
    turned = digest(batch_of(array.take(indices[::-1])))
    assert (turned == digest(batch_of(array))) == array.take(indices[::-1]).equals(array)


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_type_inside_a_list_and_a_struct(kind):
    array = COLUMNS[kind]
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    lists = pa.ListArray.from_arrays(pa.array([0, None, 1, len(array)], pa.int32()), array)
    structs = pa.StructArray.from_arrays([array, array], names=["a", "b"])
    for nested in (lists, structs):
        whole = digest(batch_of(nested))
        assert digest(batch_of(nested[:1]), batch_of(nested[1:])) == whole
        assert digest(batch_of(nested[1:])) != whole
        sizes = row_nbytes(batch_of(nested))
        assert row_nbytes(batch_of(nested[1:])).tolist() == sizes[1:].tolist()
        assert (sizes > 0).all()


def hidden(kind, buffers, children=()):
    """Return three values, of which the second is null and hides something."""
    validity = pa.py_buffer(bytes([0b101]))
    buffers = [validity, *(pa.py_buffer(data) for data in buffers)]
    return pa.Array.from_buffers(kind, 3, buffers, children=list(children))


INT8 = pa.array([1, 9, 2], pa.int8())
ONE_TWO_ONE = np.array([0, 1, 3, 4], np.int32)
A = pa.struct([("a", pa.int8())])


@pytest.mark.parametrize(
    ("array", "plain"),
    [
        (hidden(pa.int32(), [np.array([1, 9, 2], np.int32)]), [1, None, 2]),
        (hidden(pa.float64(), [np.array([1, np.nan, 2])]), [1, None, 2]),
        (hidden(pa.bool_(), [bytes([0b011])]), [True, None, False]),
        (hidden(pa.binary(), [ONE_TWO_ONE, b"axxb"]), [b"a", None, b"b"]),
        (hidden(pa.binary(2), [b"aaxxbb"]), [b"aa", None, b"bb"]),
        (
            hidden(pa.list_(pa.int8()), [ONE_TWO_ONE], [INT8.take(pa.array([0, 1, 1, 2]))]),
            [[1], None, [2]],
        ),
        (hidden(pa.list_(pa.int8(), 1), [], [INT8]), [[1], None, [2]]),
        (hidden(A, [], [INT8]), [{"a": 1}, None, {"a": 2}]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_bytes_under_nulls_count_for_nothing(array, plain):
    same = pa.array(plain, array.type)
    assert digest(batch_of(array)) == digest(batch_of(same))
    assert row_nbytes(batch_of(array)).tolist() == row_nbytes(batch_of(same)).tolist()


def test_a_map_counts_only_what_its_rows_hold():
    kind = pa.map_(pa.string(), pa.int8())
    entries = pa.StructArray.from_arrays(
        [pa.array(["a", "x", "x", "b"]), pa.array([1, 9, 9, 2], pa.int8())],
        fields=[kind.key_field, kind.item_field],
    )
    array = hidden(kind, [ONE_TWO_ONE], [entries])
    same = pa.array([[("a", 1)], None, [("b", 2)]], kind)
    assert digest(batch_of(array)) == digest(batch_of(same))
    assert digest(batch_of(array[2:])) == digest(batch_of(same[2:]))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_nans_are_one_value_and_zeros_are_two(width):
    kind, bits = np.dtype(f"f{width // 8}"), np.dtype(f"u{width // 8}")
    nan = np.array([np.nan], kind).view(bits)
    odd = np.concatenate([nan, nan | 1, nan | (1 << (width - 1))]).view(kind)
    assert np.isnan(odd).all()
    assert digest(batch_of(pa.array(odd))) == digest(batch_of(pa.array(np.full(3, np.nan, kind))))
    zero, minus = (pa.array(np.array([value], kind)) for value in (0.0, -0.0))
    assert digest(batch_of(zero)) != digest(batch_of(minus))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([""]), pa.array([None], pa.string())),
        (pa.array(["a", "b"]), pa.array(["ab", ""])),
        (pa.array([[1], [2]]), pa.array([[1, 2], []])),
        (pa.array([[1, None]]), pa.array([[1, 0]])),
        (pa.array([[]], pa.list_(pa.int8())), pa.array([None], pa.list_(pa.int8()))),
        (pa.array([[[1], []]]), pa.array([[[], [1]]])),
        (pa.array([{"a": None}], A), pa.array([None], A)),
        (pa.array([1], pa.int32()), pa.array([1], pa.uint32())),
        (pa.array(["a"]), pa.array(["a"], pa.large_string())),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.array([[1, 2]], pa.list_(pa.int8()))),
        (pa.array([0], pa.timestamp("s", "UTC")), pa.array([0], pa.timestamp("s"))),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}])),
        (pa.nulls(1), pa.nulls(2)),
    ],
    ids=str,
)
def test_other_values_and_types_have_other_digests(one, other):
    assert digest(batch_of(one)) != digest(batch_of(other))


def test_names_of_columns_count_and_names_of_list_items_do_not():
    assert digest(batch_of(pa.array([1]), "a")) != digest(batch_of(pa.array([1]), "b"))
    element = pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert digest(batch_of(pa.array([[1]], element))) == digest(batch_of(pa.array([[1]])))


def test_columns_do_not_mix():
    ab = pa.RecordBatch.from_pydict({"x": ["a"], "y": ["b"]})
    ba = pa.RecordBatch.from_pydict({"x": ["b"], "y": ["a"]})
    assert digest(ab) != digest(ba)


def test_the_digest_is_what_it_was():
    batch = pa.RecordBatch.from_pydict({"k": ["a", None], "v": [[1.5, None], []]})
    first = "b32d6b984fa20bdbb8451fa3433f2e2c048b261fc948e1dbea6aca84a7c0c565"
    hasher = ContentHasher(batch.schema, like=first)
    hasher.update(batch)
    assert hasher.hexdigest() == first
    assert digest(batch) == (
        "blake3:29aadf5dbe8288d70b4e3770b09b1fedb0d9aa5f1c62fc59bea7e7c0112e1dce"
    )


def test_a_batch_with_another_schema_is_refused():
    hasher = ContentHasher(pa.schema([("value", pa.int8())]))
    with pytest.raises(SchemaError, match="another schema"):
        hasher.update(batch_of(pa.array([1])))


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.string_view(),
        pa.list_view(pa.int8()),
    ],
    ids=str,
)
def test_types_without_canonical_bytes_are_refused(kind):
    with pytest.raises(SchemaError, match="cannot be stored"):
        ContentHasher(pa.schema([("value", kind)]))


@pytest.mark.parametrize(
    ("array", "nbytes"),
    [
        (pa.array([1, None], pa.int16()), [3, 3]),
        (pa.array([True, None]), [2, 2]),
        (pa.array(["abc", None, ""]), [8, 5, 5]),
        (pa.array([b"abc"], pa.large_binary()), [12]),
        (pa.array([[1, 2], None, []], pa.list_(pa.int32())), [13, 5, 5]),
        (pa.array([["ab"], []]), [11, 5]),
        (pa.array([{"a": 1, "b": "x"}, None]), [14, 13]),
        (pa.array([b"abc", None], pa.binary(3)), [4, 4]),
        (pa.nulls(2), [1, 1]),
    ],
    ids=str,
)
def test_row_bytes_are_those_of_arrow(array, nbytes):
    assert row_nbytes(batch_of(array)).tolist() == nbytes


def test_row_bytes_of_columns_add_up():
    batch = pa.RecordBatch.from_pydict({"a": ["xy", None], "b": [[1.0], [2.0, 3.0]]})
    assert row_nbytes(batch).tolist() == [7 + 13, 5 + 21]
    assert row_nbytes(batch.select([])).tolist() == [0, 0]
