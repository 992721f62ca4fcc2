"""Parquet: files with schemas of their own become one, without loss."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.schema import dataset_schema, media_field, media_of, tensor_field
from geodata.sources import open_source
from geodata.sources.batches import Unfit
from geodata.sources.unite import Clash, bare, conform, united


def _write(path, columns, schema=None, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns, schema=schema)
    pq.write_table(table, path, **options)


def _column(values, kind):
    return {"v": pa.array(values, kind)}


def _read_two(tmp_path, one, other, **options):
    _write(tmp_path / "a.parquet", one)
    _write(tmp_path / "b.parquet", other)
    return read_all(open_source(tmp_path, source_id="s"), **options)


def test_row_groups_are_the_pieces(tmp_path):
    _write(tmp_path / "a.parquet", {"a": list(range(1000))}, row_group_size=100)
    source = open_source(tmp_path / "a.parquet")
    assert [(p.start, p.stop) for p in source.pieces(1)] == [(i, i + 1) for i in range(10)]
    assert [(p.start, p.stop) for p in source.pieces(1 << 30)] == [(0, 10)]
    whole, cut = read_all(source), read_all(source, 1)
    assert whole.records == cut.records == {f"a.parquet#{i + 1}": {"a": i} for i in range(1000)}


def test_a_folder_tree_is_one_source(tmp_path):
    (tmp_path / "x").mkdir()
    _write(tmp_path / "b.parquet", {"a": [1]})
    _write(tmp_path / "x" / "a.pq", {"a": [2, 3]})
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {
        "s/b.parquet#1": {"a": 1},
        "s/x/a.pq#1": {"a": 2},
        "s/x/a.pq#2": {"a": 3},
    }


NOON = dt.datetime(2024, 2, 29, 12, 0, 1)
UNITED = [
    (pa.null(), [None], pa.int8(), [1], pa.int8()),
    (pa.int8(), [-1], pa.uint8(), [255], pa.int16()),
    (pa.uint32(), [2**32 - 1], pa.int64(), [-1], pa.int64()),
    (pa.uint16(), [1], pa.uint64(), [2**64 - 1], pa.uint64()),
    (pa.int16(), [-3], pa.float16(), [np.float16(0.5)], pa.float32()),
    (pa.int32(), [2**31 - 1], pa.float32(), [0.5], pa.float64()),
    (pa.float32(), [0.5], pa.float64(), [0.1], pa.float64()),
    (pa.int64(), [2**53], pa.float64(), [0.5], pa.float64()),
    (pa.int64(), [5, None], pa.uint64(), [2**63], pa.uint64()),
    (pa.int64(), [-5], pa.uint64(), [7], pa.int64()),
    (pa.string(), ["a"], pa.large_string(), ["b"], pa.large_string()),
    (pa.binary(2), [b"ab"], pa.binary(), [b""], pa.binary()),
    (pa.timestamp("s"), [NOON], pa.timestamp("us"), [NOON], pa.timestamp("us")),
    (pa.time32("s"), [NOON.time()], pa.time64("us"), [NOON.time()], pa.time64("us")),
    (
        pa.decimal128(4, 1),
        [decimal.Decimal("1.5")],
        pa.decimal128(5, 4),
        [decimal.Decimal("1.2345")],
        pa.decimal128(7, 4),
    ),
    (pa.list_(pa.int8()), [[1], None], pa.list_(pa.float64()), [[0.5]], pa.list_(pa.float64())),
    (pa.list_(pa.int8(), 2), [[1, 2]], pa.list_(pa.int8()), [[1]], pa.list_(pa.int8())),
    (
        pa.map_(pa.string(), pa.int8()),
        [[("a", 1)]],
        pa.map_(pa.string(), pa.int16()),
        [[("b", 2)]],
        pa.map_(pa.string(), pa.int16()),
    ),
    (
        pa.list_(pa.struct([("x", pa.int8())])),
        [[{"x": 1}, None], None, []],
        pa.list_(pa.struct([("y", pa.string()), ("x", pa.int16())])),
        [[{"y": "a", "x": 2}]],
        pa.list_(pa.struct([("x", pa.int16()), ("y", pa.string())])),
    ),
]


def _without_nulls(value):
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("one", "first", "other", "second", "kind"), UNITED)
def test_types_widen_without_loss(tmp_path, one, first, other, second, kind):
    read = _read_two(tmp_path, _column(first, one), _column(second, other))
    assert read.schema.field("v").type == kind
    assert read.rejects == []
    assert _without_nulls(read.column("v")) == _without_nulls(first + second)


def test_columns_unite_by_name_in_the_order_seen(tmp_path):
    read = _read_two(tmp_path, {"b": [1], "a": ["x"]}, {"c": [0.5], "b": [2]})
    assert read.schema.names == ["b", "a", "c"]
    assert list(read.records.values()) == [
        {"b": 1, "a": "x", "c": None},
        {"b": 2, "a": None, "c": 0.5},
    ]


CONFLICTS = [
    (pa.bool_(), [True], pa.int8(), [1]),
    (pa.string(), ["a"], pa.int8(), [1]),
    (pa.string(), ["a"], pa.binary(), [b"a"]),
    (pa.int64(), [2**53 + 1], pa.float64(), [0.5]),
    (pa.int64(), [-1], pa.uint64(), [2**63]),
    (pa.list_(pa.int8()), [[1]], pa.int8(), [1]),
    (pa.timestamp("ms"), [NOON], pa.timestamp("ms", "UTC"), [NOON]),
    (pa.decimal256(76, 0), [decimal.Decimal(1)], pa.decimal128(3, 2), [decimal.Decimal("1.25")]),
]


@pytest.mark.parametrize(("one", "first", "other", "second"), CONFLICTS)
def test_a_conflict_names_both_types_and_files(tmp_path, one, first, other, second):
    _write(tmp_path / "0.parquet", {"u": [1], "v": pa.nulls(1)})
    with pytest.raises(SchemaError) as caught:
        _read_two(tmp_path, _column(first, one), _column(second, other))
    assert caught.value.message == (
        f"the column holds {one} (first in a.parquet) and {other} (first in b.parquet)"
    )
    assert caught.value.fields == {"column": "v", "file": "b.parquet"}


@pytest.mark.parametrize(("one", "first", "other", "second"), CONFLICTS)
def test_the_first_type_can_win_and_the_others_are_rejected(tmp_path, one, first, other, second):
    read = _read_two(
        tmp_path, _column(first, one), _column([None, *second], other), first_wins=True
    )
    assert read.schema.field("v").type == one
    assert list(read.records) == ["s/a.parquet#1", "s/b.parquet#1"]
    assert read.column("v")[1] is None
    ((row, reason),) = read.reasons()
    assert row == 2
    assert reason.startswith(f"'v' is {one} here, this record holds ")
    assert str(other) in reason


def test_a_nested_conflict_names_its_path(tmp_path):
    one = _column([{"x": [1]}], pa.struct([("x", pa.list_(pa.int8()))]))
    other = _column([{"x": ["a"]}, {"x": []}, None], pa.struct([("x", pa.list_(pa.string()))]))
    with pytest.raises(SchemaError, match=r"int8 \(first in a.* string \(first in b.*column v.x\["):
        _read_two(tmp_path, one, other)
    read = _read_two(tmp_path, one, other, first_wins=True)
    assert read.column("v") == [{"x": [1]}, {"x": []}, None]
    assert read.reasons() == [(1, "'v.x[]' is int8 here, this record holds string")]


def test_a_time_too_far_for_the_finer_unit_is_rejected(tmp_path):
    far = dt.datetime(9999, 1, 1)
    read = _read_two(
        tmp_path,
        _column([NOON, far], pa.timestamp("us")),
        _column([NOON], pa.timestamp("ns")),
    )
    assert len(read.records) == 2
    assert read.reasons() == [
        (2, "'v' is timestamp[ns] here, this record holds a value of timestamp[us] that it cannot "
            "hold")
    ]  # fmt: skip


def test_dictionaries_are_decoded(tmp_path):
    words = pa.array(["x", "y", None, "x"]).dictionary_encode()
    nested = pa.StructArray.from_arrays([words], ["w"])
    _write(tmp_path / "a.parquet", {"w": words, "n": nested})
    read = read_all(open_source(tmp_path))
    assert read.schema == pa.schema([("w", pa.string()), ("n", pa.struct([("w", pa.string())]))])
    assert read.column("w") == ["x", "y", None, "x"]
    assert read.column("n") == [{"w": "x"}, {"w": "y"}, {"w": None}, {"w": "x"}]


def test_the_range_of_decoded_integers_counts(tmp_path):
    large = pa.array([2**53 + 1]).dictionary_encode()
    with pytest.raises(SchemaError, match="holds int64 .* and double"):
        _read_two(tmp_path, {"v": large}, {"v": [0.5]})
    read = _read_two(tmp_path, {"v": pa.array([7]).dictionary_encode()}, {"v": [0.5]})
    assert read.column("v") == [7.0, 0.5]


def test_a_key_that_is_there_is_kept(tmp_path):
    _write(tmp_path / "a.parquet", {"__key__": ["k1", None, "k3"], "v": [1, 2, 3]})
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {"k1": {"v": 1}, "s/a.parquet#2": {"v": 2}, "k3": {"v": 3}}
    assert read.schema.names == ["v"]


def test_a_key_that_is_no_string_is_refused(tmp_path):
    _write(tmp_path / "a.parquet", {"__key__": [1], "v": [1]})
    with pytest.raises(SchemaError, match="the key is not a string"):
        read_all(open_source(tmp_path))


def test_subjects_are_refused_unless_all_are_null(tmp_path):
    _write(tmp_path / "a.parquet", {"__subject__": pa.nulls(2, pa.string()), "v": [1, 2]})
    assert read_all(open_source(tmp_path)).column("v") == [1, 2]
    _write(tmp_path / "a.parquet", {"__subject__": [None, "p"], "v": [1, 2]})
    with pytest.raises(SchemaError, match="reserved.*column __subject__"):
        read_all(open_source(tmp_path))


@pytest.mark.parametrize("name", ["__level_0__", ""])
def test_names_that_cannot_be_are_refused(tmp_path, name):
    _write(tmp_path / "a.parquet", {"v": [1], name: [1]})
    with pytest.raises(SchemaError, match=r"a\.parquet"):
        read_all(open_source(tmp_path))


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"])
    _write(tmp_path / "a.parquet", table)
    with pytest.raises(SchemaError, match="two columns have one name.*column v"):
        read_all(open_source(tmp_path))


def test_what_a_column_means_is_kept_and_the_rest_of_its_metadata_is_not(tmp_path):
    fields = [
        media_field("image", "image"),
        tensor_field("t", pa.float32()),
        pa.field("x", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "7"}),
    ]
    table = pa.table(
        {"image": [b"i"], "t": [{"data": [1.0], "shape": [1]}], "x": [1]}, schema=pa.schema(fields)
    )
    _write(tmp_path / "a.parquet", table)
    schema = read_all(open_source(tmp_path)).schema
    assert media_of(schema.field("image")) == "image"
    assert schema.field("t").metadata == {b"geodata.tensor": b"varying"}
    assert schema.field("x").metadata is None


def test_text_is_a_medium_if_it_is_a_string(tmp_path):
    _write(tmp_path / "a.parquet", {"text": ["x"]})
    assert media_of(read_all(open_source(tmp_path)).schema.field("text")) == "text"


def test_a_file_that_is_no_parquet_is_one_rejected_record(tmp_path):
    _write(tmp_path / "b.parquet", {"v": [1]})
    whole = (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not at all")
    (tmp_path / "c.parquet").write_bytes(whole[:-20])
    (tmp_path / "d.parquet").write_bytes(b"")
    read = read_all(open_source(tmp_path, source_id="s"), 1)
    assert read.column("v") == [1]
    reason = "the file is not Parquet, or its footer is damaged"
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        (f"{name}.parquet", None, reason) for name in "acd"
    ]


def test_a_damaged_row_group_rejects_its_rows(tmp_path):
    words = [f"word number {i}" for i in range(300)]
    path = tmp_path / "a.parquet"
    _write(path, {"w": words}, row_group_size=100, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start, stop = column.data_page_offset, column.data_page_offset + column.total_compressed_size
    data[start + 40 : stop] = b"\xff" * (stop - start - 40)
    path.write_bytes(data)
    for target in (1 << 20, 1):
        read = read_all(open_source(path), target)
        assert read.column("w") == words[:100] + words[200:]
        assert read.reasons() == [(i + 1, "its row group cannot be read") for i in range(100, 200)]


def test_a_string_that_is_not_utf8_is_rejected(tmp_path):
    bad = pa.array([b"ok", b"\xff", None, b"fine"], pa.binary()).view(pa.string())
    _write(tmp_path / "a.parquet", {"v": bad})
    read = read_all(open_source(tmp_path))
    assert read.column("v") == ["ok", None, "fine"]
    assert read.reasons() == [(2, "a string is not UTF-8, or a value is malformed")]


def test_a_file_without_rows_still_has_columns(tmp_path):
    read = _read_two(tmp_path, _column([], pa.int8()), _column([1], pa.int16()))
    assert read.schema.field("v").type == pa.int16()
    assert read.column("v") == [1]


def test_a_changed_file_is_rejected(tmp_path):
    _write(tmp_path / "a.parquet", {"v": [1, 2]}, row_group_size=1)
    source = open_source(tmp_path / "a.parquet")
    last = source.pieces(1)[-1]
    _write(tmp_path / "a.parquet", {"v": [1]})
    rejects = []
    assert source.scan(last).rows == 1
    assert list(source.read(last, 1, dataset_schema(pa.schema([])), {}, rejects.append)) == []
    assert [r.reason for r in rejects] == ["the file changed since it was listed"]


def test_wide_rows_come_in_bounded_batches(tmp_path):
    blobs = [bytes([i]) * (3 << 20) for i in range(6)]
    _write(tmp_path / "a.parquet", {"v": blobs}, use_dictionary=False, compression="none")
    read = read_all(open_source(tmp_path))
    assert read.column("v") == blobs
    assert len(read.batches) >= 3
    _write(tmp_path / "a.parquet", {"v": ["x" * 5000] * 5000})
    assert len(read_all(open_source(tmp_path)).batches) > 2


def test_an_unknown_column_is_not_dropped_silently(tmp_path):
    _write(tmp_path / "a.parquet", {"v": [1], "w": [1]})
    stored = dataset_schema(pa.schema([("v", pa.int64())]))
    read = read_all(open_source(tmp_path), schema=stored)
    assert read.reasons() == [(1, "'w' is not in the schema")]


def test_types_are_compared_without_what_files_add():
    element = pa.field("element", pa.int8(), nullable=False, metadata={"PARQUET:field_id": "1"})
    kind = pa.struct([pa.field("x", pa.list_(element), nullable=False)])
    assert str(bare(kind)) == "struct<x: list<item: int8>>"
    assert bare(pa.map_(pa.string(), kind)) == pa.map_(pa.string(), bare(kind))


def test_uniting_is_symmetric_but_for_order():
    kinds = [pa.date32(), pa.date64(), pa.duration("s"), pa.duration("ns")]
    kinds += [kind for row in UNITED for kind in (row[0], row[2]) if not pa.types.is_nested(kind)]
    for one in kinds:
        for other in kinds:
            try:
                forward = united(one, other, "v", False)
            except Clash:
                with pytest.raises(Clash):
                    united(other, one, "v", False)
            else:
                assert united(other, one, "v", False) == forward
                assert united(one, one, "v", False) == one
                assert united(united(one, other, "v", False), one, "v", False) == forward


@pytest.mark.parametrize(
    ("values", "kind", "target"),
    [
        ([2**53 + 1], pa.int64(), pa.float64()),
        ([-1], pa.int64(), pa.uint64()),
        ([300], pa.int16(), pa.int8()),
        ([1.5], pa.float64(), pa.int64()),
        ([0.1], pa.float64(), pa.float32()),
        (["1"], pa.string(), pa.int64()),
        ([1], pa.int64(), pa.string()),
        ([{"x": 1}], pa.struct([("x", pa.int8())]), pa.struct([("y", pa.int8())])),
    ],
)
def test_an_array_is_never_narrowed(values, kind, target):
    with pytest.raises(Unfit, match="'v"):
        conform(pa.array(values, kind), target, "v")


def test_a_slice_with_nulls_is_conformed_as_it_reads():
    kind = pa.list_(pa.struct([("x", pa.int8())]))
    target = pa.large_list(pa.struct([("y", pa.string()), ("x", pa.int64())]))
    values = [[{"x": 0}], None, [], [None, {"x": 3}], [{"x": 4}], None]
    array = pa.array(values, kind)
    for start in range(len(values)):
        made = conform(array.slice(start, 3), target, "v")
        made.validate(full=True)
        assert _without_nulls(made.to_pylist()) == _without_nulls(values[start : start + 3])
