"""Sequences hold every token once, in order, and say where documents begin."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preparing import records

from geodata.errors import ConfigError, SchemaError
from geodata.prepare.packing import Packing
from geodata.schema import KEY, is_tensor


def table(documents, kind=None):
    kind = kind or pa.list_(pa.int32())
    fields = [pa.field("tokens", kind), pa.field("text", pa.string())]
    columns = {"tokens": documents, "text": ["x"] * len(documents)}
    return pa.Table.from_batches([records(columns, fields)])


def sequences(documents, length, **options):
    packed = Packing(length, **options).pack(table(documents))
    packed.validate(full=True)
    tokens = packed.column("tokens").combine_chunks()
    rows = packed.drop_columns(["tokens"]).to_pylist()
    return tokens.to_numpy_ndarray() if len(tokens) else np.empty((0, length)), rows


def test_documents_are_laid_end_to_end():
    documents = [[1, 2, 3], None, [4] * 6, [], [5, 6], list(range(10, 21))]
    tokens, rows = sequences(documents, 8)
    assert tokens.tolist() == [
        [1, 2, 3, 4, 4, 4, 4, 4],
        [4, 5, 6, 10, 11, 12, 13, 14],
        [15, 16, 17, 18, 19, 20, 0, 0],
    ]
    assert [row[KEY] for row in rows] == ["k0@0", "k2@5", "k5@5"]
    assert [row["starts"] for row in rows] == [[0, 3], [1, 3], []]
    assert [row["length"] for row in rows] == [8, 8, 6]
    assert {row["__subject__"] for row in rows} == {None}


def test_the_schema_is_that_of_sequences_alone():
    packing = Packing(16, "tokens")
    documents = table([[1]], pa.list_(pa.uint16()))
    schema = packing.schema(documents.schema)
    assert schema.names == ["__key__", "__subject__", "tokens", "starts", "length"]
    assert is_tensor(schema.field("tokens"))
    assert schema.field("tokens").type == pa.fixed_shape_tensor(pa.uint16(), [16])
    assert packing.pack(documents).schema.equals(schema, check_metadata=True)


def test_no_tokens_make_no_sequence():
    for documents in ([], [None], [[], []]):
        assert len(Packing(8).pack(table(documents))) == 0


def test_a_full_last_sequence_has_no_padding():
    tokens, rows = sequences([[7] * 16], 8)
    assert tokens.tolist() == [[7] * 8] * 2
    assert [row["length"] for row in rows] == [8, 8]
    assert [row["starts"] for row in rows] == [[0], []]


DOCUMENT = st.none() | st.lists(st.integers(1, 9), max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.none() | st.lists(st.integers(1, 9), max_size=30), max_size=20), st.integers(8, 19)
)
def test_documents_can_be_read_back(documents, length):
    tokens, rows = sequences(documents, length)
    lengths = [row["length"] for row in rows]
    assert all(n == length for n in lengths[:-1]) and all(n > 0 for n in lengths)
    flat = np.concatenate([row[:n] for row, n in zip(tokens, lengths, strict=True)] or [[]])
    starts = [at + n * length for n, row in enumerate(rows) for at in row["starts"]]
    parts = np.split(flat, starts)[1:]
    full = [(f"k{n}", ids) for n, ids in enumerate(documents) if ids]
    assert [part.tolist() for part in parts] == [ids for _, ids in full]
    assert len({row[KEY] for row in rows}) == len(rows)
    for number, row in enumerate(rows):
        key, _, offset = row[KEY].rpartition("@")
        place = [name for name, _ in full].index(key)
        assert starts[place] + int(offset) == number * length


def test_null_tokens_and_other_columns_are_refused():
    with pytest.raises(SchemaError, match="a token is null"):
        Packing(8).pack(table([[1, None]]))
    schema = table([[1]]).schema
    for length in (0, 7, -8, 1 << 25):
        with pytest.raises(ConfigError, match=f"sequences of {length} tokens"):
            Packing(length).check(schema)
    with pytest.raises(ConfigError, match="'text' is string, no list of integers"):
        Packing(8, "text").check(schema)
    Packing(8).check(schema)
