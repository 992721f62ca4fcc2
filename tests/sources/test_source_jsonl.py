"""Line JSON: exact values, widening without loss, and a reason for every line that is no record."""

import json
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.schema import dataset_schema, media_of
from geodata.sources import corpus, open_source
from geodata.sources.text.arrowjson import MAX_DEPTH

ONCE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _source(tmp_path, *lines, name="a.jsonl"):
    encoded = [
        line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
        for line in lines
    ]
    (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in encoded))
    return open_source(tmp_path / name)


def test_keys_count_blank_lines_and_values_are_exact(tmp_path):
    source = _source(tmp_path, b'{"a": 1, "b": "x\\u0000\\u00e9"}', b"", b" \t\r", b'{"a": -5}\r')
    read = read_all(source)
    assert read.records == {
        "a.jsonl#1": {"a": 1, "b": "x\0é"},
        "a.jsonl#4": {"a": -5, "b": None},
    }
    assert read.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_keys_of_a_folder_begin_with_its_id(tmp_path):
    (tmp_path / "sub").mkdir()
    _source(tmp_path, {"a": 1}, name="b.jsonl")
    _source(tmp_path, {"a": 2}, name="sub/a.ndjson")
    read = read_all(open_source(tmp_path, source_id="news"))
    assert list(read.records) == ["news/b.jsonl#1", "news/sub/a.ndjson#1"]
    assert list(read_all(open_source(tmp_path / "b.jsonl", source_id="b")).records) == ["b#1"]


def test_the_last_line_needs_no_end_and_the_first_may_have_a_mark(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}')
    assert read_all(open_source(tmp_path / "a.jsonl")).column("a") == [1, 2]


def test_an_empty_file_holds_no_record(tmp_path):
    read = read_all(_source(tmp_path))
    assert (read.records, read.rejects, list(read.schema)) == ({}, [], [])


WIDENING = [
    ([None, 1, None], pa.int64()),
    ([None, None], pa.null()),
    ([1, 2.5], pa.float64()),
    ([2**53, 0.5], pa.float64()),
    ([2**60, 0.5, -(2**70)], pa.float64()),
    ([2**63 - 1, -(2**63)], pa.int64()),
    ([2**63, 0, 2**64 - 1], pa.uint64()),
    ([True, None], pa.bool_()),
    (["", "x", None], pa.string()),
    ([math.inf, -math.inf, 1], pa.float64()),
    ([[], None], pa.list_(pa.null())),
    ([[], [None], [1], [2.5]], pa.list_(pa.float64())),
    ([[[1], None], [[]]], pa.list_(pa.list_(pa.int64()))),
    ([{}], pa.struct([])),
    ([{"x": 1}, {"y": "a"}, None], pa.struct([("x", pa.int64()), ("y", pa.string())])),
    (
        [{"x": None}, {"x": {"z": [1]}}, {"x": {"z": [0.5]}}],
        pa.struct([("x", pa.struct([("z", pa.list_(pa.float64()))]))]),
    ),
]


def _fill(value, kind):
    """Return `value` with the fields it lacks."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _fill(value.get(field.name), field.type) for field in kind}
    return [_fill(item, kind.value_type) for item in value]


@pytest.mark.parametrize(("values", "kind"), WIDENING)
def test_types_widen_without_loss(tmp_path, values, kind):
    source = _source(tmp_path, *({"v": value} for value in values))
    for target in (1 << 20, 1):
        read = read_all(source, target)
        assert read.schema.field("v").type == kind
        assert read.rejects == []
        assert read.column("v") == [_fill(value, kind) for value in values]


def test_nan_and_infinity_are_floats(tmp_path):
    read = read_all(_source(tmp_path, b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": -0.0}'))
    nan, low, zero = read.column("a")
    assert math.isnan(nan)
    assert low == -math.inf
    assert math.copysign(1, zero) == -1


CONFLICTS = [
    (True, 1, "bool", "int64"),
    (1, "1", "int64", "string"),
    ("1", 1.5, "string", "double"),
    ([1], 1, "list", "int64"),
    ({"x": 1}, "x", "struct", "string"),
    ({"x": 1}, [1], "struct", "list"),
    (2**53 + 1, 0.5, "integer that no double holds", "double"),
    (0.5, 2**53 + 1, "double", "integer that no double holds"),
    (-1, 2**63, "negative int64", "uint64"),
]


@pytest.mark.parametrize(("one", "other", "kind", "other_kind"), CONFLICTS)
def test_a_conflict_names_both_types_files_and_rows(tmp_path, one, other, kind, other_kind):
    _source(tmp_path, b"", {"v": {"w": [None]}}, {"v": {"w": [one]}}, name="a.jsonl")
    _source(tmp_path, {"v": {"w": [one]}}, b"", {"v": {"w": [one, other]}}, name="b.jsonl")
    for target in (1 << 20, 1):
        with pytest.raises(SchemaError) as caught:
            read_all(open_source(tmp_path), target)
        assert caught.value.message == (
            f"the column holds {kind} (first in a.jsonl row 3) "
            f"and {other_kind} (first in b.jsonl row 3)"
        )
        assert caught.value.fields == {"column": "v.w[]", "file": "b.jsonl", "row": 3}


@pytest.mark.parametrize(("one", "other", "_", "__"), CONFLICTS)
def test_the_first_type_can_win_and_the_others_are_rejected(tmp_path, one, other, _, __):
    source = _source(tmp_path, {"v": None}, {"v": one}, {"v": other}, {"v": one}, {"u": 1})
    for target in (1 << 20, 1):
        read = read_all(source, target, first_wins=True)
        assert read.column("v") == [None, one, one, None]
        assert list(read.records) == [f"a.jsonl#{row}" for row in (1, 2, 4, 5)]
        ((row, reason),) = read.reasons()
        assert row == 3
        assert reason.startswith("'v' is ")
        assert "this record holds" in reason
        assert read.rejects[0].raw.rstrip() == json.dumps({"v": other}).encode()


def test_a_rejected_record_names_the_field_and_both_types(tmp_path):
    source = _source(tmp_path, {"a": {"b": [1]}}, {"a": {"b": ["x"]}}, {"a": {"b": {"c": 1}}})
    assert read_all(source, first_wins=True).reasons() == [
        (2, "'a.b[]' is int64 here, this record holds string"),
        (3, "'a.b' is list here, this record holds struct"),
    ]


def test_an_integer_beyond_64_bits_is_named(tmp_path):
    source = _source(tmp_path, {"a": 1}, {"a": 2**64}, {"a": -(2**63) - 1})
    with pytest.raises(
        SchemaError, match=r"integer beyond 64 bits \(file a.jsonl, row 2, column a"
    ):
        read_all(source)
    read = read_all(source, first_wins=True)
    assert read.column("a") == [1]
    assert read.reasons() == [
        (row, "'a' is int64 here, this record holds an integer out of its range") for row in (2, 3)
    ]


def test_fields_come_in_the_order_first_seen(tmp_path):
    source = _source(tmp_path, {"b": 1}, {"a": {"y": 1}}, {"c": 1, "a": {"x": 1, "y": 2}, "b": 2})
    for target in (1 << 20, 1):
        schema = read_all(source, target).schema
        assert schema.names == ["b", "a", "c"]
        assert [field.name for field in schema.field("a").type] == ["y", "x"]


@pytest.mark.parametrize("name", ["__key__", "__subject__", "__index__"])
def test_reserved_names_are_refused(tmp_path, name):
    with pytest.raises(SchemaError, match=rf"reserved .*row 2, column {name}\). Rename"):
        read_all(_source(tmp_path, {"a": 1}, {"a": 1, name: "x"}))


def test_a_name_is_needed_and_too_many_are_refused(tmp_path):
    with pytest.raises(SchemaError, match="a field has no name"):
        read_all(_source(tmp_path, {"": 1}))
    halves = [{"a": {f"k{i}": 1 for i in part}} for part in (range(6000), range(6000, 12_000))]
    with pytest.raises(SchemaError, match="more than 10000 fields"):
        read_all(_source(tmp_path, *halves))


def test_a_record_of_too_many_fields_is_rejected_alone(tmp_path):
    wide = {"a": {f"k{i}": 1 for i in range(10_000)}}
    read = read_all(_source(tmp_path, {"b": 1}, wide, {"b": 2}))
    assert read.schema.names[-1:] == ["b"]
    assert [reject.row for reject in read.rejects] == [2]
    assert read.rejects[0].reason == "it has more than 10,000 fields"


def test_text_is_a_medium_if_it_is_a_string(tmp_path):
    schema = read_all(_source(tmp_path, {"text": "x", "other": "y"})).schema
    assert [media_of(field) for field in schema] == ["text", None]
    assert media_of(read_all(_source(tmp_path, {"text": 1})).schema.field("text")) is None


OTHER = "if it is in another encoding, say which it is with --encoding"
REJECTED = [
    (b"{", "invalid JSON at column 2: Expecting property name enclosed in double quotes"),
    (b'{"a": 1} x', "invalid JSON at column 10: Extra data"),
    (b'{"a": 01}', "invalid JSON at column 8: Expecting ',' delimiter"),
    (b'{"a": "\x01"}', "invalid JSON at column 8: Invalid control character at"),
    (b"\xef\xbb\xbf{}", "invalid JSON at column 1: Expecting value"),
    (b"\0", "invalid JSON at column 1: Expecting value"),
    (b"[1]", "the line is not a JSON object"),
    (b'"x"', "the line is not a JSON object"),
    (b"null", "the line is not a JSON object"),
    (b'{"a": 1, "a": 1}', "an object has a key twice"),
    (b'{"a": [{"b": 1, "b": 2}]}', "an object has a key twice"),
    (b'{"a": "\xff"}', f"invalid UTF-8 at byte 7 of the line; {OTHER}"),
    (b'{"a": "\xed\xa0\x80"}', f"invalid UTF-8 at byte 7 of the line; {OTHER}"),
    (b'{"a": "\\ud800"}', "a string holds half a surrogate pair"),
    (b'{"a": ["\\uDFFF"]}', "a string holds half a surrogate pair"),
    (b'{"\\ud800": 1}', "a string holds half a surrogate pair"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "an integer has too many digits"),
    (b'{"a": ' + b"[" * 32 + b"]" * 32 + b"}", "nested deeper than 32 levels"),
    (b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "nested deeper than 32 levels"),
    (b'{"c": 1e400}', "a number is too large for a float64"),
    (b'{"c": -1e400, "d": [Infinity]}', "a number is too large for a float64"),
]


@pytest.mark.parametrize(("line", "reason"), REJECTED)
def test_a_line_without_one_clear_meaning_is_rejected(tmp_path, line, reason):
    source = _source(tmp_path, {"b": "x"}, line, {"b": "y"})
    read = read_all(source)
    assert read.column("b") == ["x", "y"]
    assert read.reasons() == [(2, reason)]
    assert read.rejects[0].raw == line + b"\n"
    assert read.rejects[0].file == "a.jsonl"


def test_a_whole_surrogate_pair_is_one_character(tmp_path):
    assert read_all(_source(tmp_path, b'{"a": "\\ud83d\\ude00"}')).column("a") == ["\U0001f600"]


def test_the_deepest_record_is_read(tmp_path):
    value = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert read_all(_source(tmp_path, {"a": value})).column("a") == [value]


def test_a_record_that_is_too_long_is_rejected_and_the_rest_read(tmp_path, monkeypatch):
    monkeypatch.setattr("geodata.sources.text.lines.MAX_RECORD", 100)
    source = _source(tmp_path, {"a": "x"}, {"a": "x" * 1000}, {"a": "x" * 90}, {"a": "y"})
    read = read_all(source)
    assert [len(text) for text in read.column("a")] == [1, 90, 1]
    assert read.reasons() == [(2, corpus.TOO_LONG)]


def test_batches_stay_small_where_columns_are_many(tmp_path):
    names = [f"c{i}" for i in range(500)]
    lines = [dict.fromkeys(names, 1.5), *({} for _ in range(3_000))]
    read = read_all(_source(tmp_path, *lines))
    assert len(read.records) == len(lines)
    assert max(batch.nbytes for batch in read.batches) <= 9 << 20
    big = [{"a": [1] * 400_000} for _ in range(8)]
    read = read_all(_source(tmp_path, *big))
    assert len(read.batches) >= 4


def test_an_appended_file_is_fitted_to_the_datasets_schema(tmp_path):
    stored = dataset_schema(
        pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.int8()), ("d", pa.date32())])
    )
    source = _source(
        tmp_path,
        {"a": 1, "c": 127},
        {"a": 1, "c": 128},
        {"b": 1},
        {"new": 1},
        {"d": "2024-01-01"},
    )
    read = read_all(source, schema=stored)
    assert list(read.records.values()) == [{"a": 1.0, "b": None, "c": 127, "d": None}]
    assert [row for row, _ in read.reasons()] == [2, 3, 4, 5]
    assert "'new' is not in the schema" in read.reasons()[2][1]


HOSTILE = [
    *(line for line, _ in REJECTED if len(line) < 100),
    b'{"a": 1}',
    b'{"a": 1.5, "b": "x"}',
    b'{"a": null, "n": {"x": [1, null], "y": {}}}',
    b'{"b": "\\u00e9\\n", "n": {"x": [2.5]}}',
    b'{"b": 5}',
    b'{"n": {"x": "no list"}}',
    b'{"n": {"x": [[1]]}}',
    b'{"a": 18446744073709551615}',
    b'{"a": -1}',
    b'{"a": true}',
    b'{"a": 9007199254740993}',
    b"{}",
    b"",
    b" ",
    b'\r{"b": "cr"}\r',
]


@ONCE
@given(
    files=st.lists(st.lists(st.sampled_from(HOSTILE), max_size=20), min_size=1, max_size=3),
    ended=st.booleans(),
    target=st.integers(1, 2000),
)
def test_pieces_of_any_size_give_the_same(tmp_path_factory, files, ended, target):
    root = tmp_path_factory.mktemp("corpus")
    for number, lines in enumerate(files):
        data = b"\n".join(lines) + (b"\n" if ended else b"")
        (root / f"{number}.jsonl").write_bytes(data)
    source = open_source(root)
    whole = read_all(source, first_wins=True)
    cut = read_all(source, target, first_wins=True)
    assert cut.schema.equals(whole.schema, check_metadata=True)
    assert list(cut.records.items()) == list(whole.records.items())
    assert _sorted(cut.rejects) == _sorted(whole.rejects)
    assert len(whole.records) + len(whole.rejects) == sum(
        bool(line.strip()) for lines in files for line in lines
    )


def _sorted(rejects):
    return sorted((reject.file, reject.row, reject.reason, reject.raw) for reject in rejects)


@ONCE
@given(st.lists(st.sampled_from([b"{}", b"", b" " * 30]), max_size=30), st.integers(1, 50))
def test_pieces_cover_a_file_and_begin_after_line_ends(tmp_path, lines, target):
    data = b"\n".join(lines)
    (tmp_path / "a.jsonl").write_bytes(data)
    pieces = open_source(tmp_path / "a.jsonl").pieces(target)
    bounds = [pieces[0].start, *(piece.stop for piece in pieces)]
    assert (bounds[0], bounds[-1]) == (0, len(data))
    assert bounds == sorted(set(bounds)) or bounds == [0, 0]
    assert [piece.start for piece in pieces] == bounds[:-1]
    assert all(data[start - 1 : start] == b"\n" for start in bounds[1:-1])
    assert all(piece.nbytes < target + 31 for piece in pieces)


def test_small_files_share_pieces_and_batches(tmp_path):
    for i in range(300):
        (tmp_path / f"{i:03}.json").write_text(f'{{"a": {i}}}')
    source = open_source(tmp_path, source_id="s")
    assert len(source.pieces(1 << 20)) == 1
    assert len(source.pieces(20_000)) == 8
    read = read_all(source, 20_000)
    assert read.records == {f"s/{i:03}.json#1": {"a": i} for i in range(300)}
    assert len(read.batches) == 8


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=6,
)


def _equal(value, original, kind):
    if original is None or value is None:
        return value is None and original is None
    if pa.types.is_struct(kind):
        return original.keys() <= value.keys() and all(
            _equal(value[field.name], original.get(field.name), field.type) for field in kind
        )
    if pa.types.is_nested(kind):
        return len(value) == len(original) and all(
            _equal(a, b, kind.value_type) for a, b in zip(value, original, strict=True)
        )
    return value == original and isinstance(value, bool) == isinstance(original, bool)


@ONCE
@given(records=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=8))
def test_a_record_is_exactly_itself_or_rejected(tmp_path, records):
    source = _source(tmp_path, *records)
    read = read_all(source, first_wins=True)
    rejected = {row for row, _ in read.reasons()}
    kept = [record for row, record in enumerate(records, 1) if row not in rejected]
    for record, original in zip(read.records.values(), kept, strict=True):
        assert original.keys() <= record.keys()
        for field in read.schema:
            assert _equal(record[field.name], original.get(field.name), field.type)
    try:
        strict = read_all(source)
    except SchemaError:
        return
    assert strict.rejects == []
