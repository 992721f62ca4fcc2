"""`.json` files that are one value: the same records, types and reasons as line JSON gives."""

import gzip
import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.schema import dataset_schema, origin_field
from geodata.sources import Reading, open_source
from geodata.sources.text import jsonl, jsonvalues
from geodata.sources.text.jsonvalues import LINES, OBJECTS, Form, form_of

MANY = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RECORDS = [
    {"a": 1, "s": "x,]}"},
    {"a": None, "s": 'quote " and \\'},
    {"a": -2, "s": "é", "n": [{}]},
]


def _source(tmp_path, text, name="a.json", **reading):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_source(tmp_path / name, reading=Reading(**reading))


def _filled(records):
    names = {name for record in records for name in record}
    return [{name: record.get(name) for name in names} for record in records]


@pytest.mark.parametrize("indent", [None, 0, 2, "\t"])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_an_array_of_objects(tmp_path, monkeypatch, indent, chunk):
    monkeypatch.setattr(jsonvalues, "_CHUNK", chunk)
    text = "\ufeff \n" + json.dumps(RECORDS, indent=indent, ensure_ascii=False) + "\n"
    read = read_all(_source(tmp_path, text), 1)
    assert list(read.records) == ["a.json#1", "a.json#2", "a.json#3"]
    assert list(read.records.values()) == _filled(RECORDS)
    assert read.rejects == []


@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_of_objects_gives_the_names_a_column(tmp_path, indent):
    value = {"a é": RECORDS[0], 'b"\\': RECORDS[1], "": RECORDS[2], "e": {}}
    read = read_all(_source(tmp_path, json.dumps(value, indent=indent)))
    assert list(read.records) == [f"a.json#{row}" for row in range(1, 5)]
    assert read.schema.names == ["id", "a", "s", "n"]
    assert read.column("id") == list(value)
    assert read.column("a") == [1, None, -2, None]


@pytest.mark.parametrize(
    ("taken", "column"), [((), "id"), (("id",), "key"), (("id", "key"), "member")]
)
def test_the_column_of_names_gives_way(tmp_path, taken, column):
    value = {f"n{i}": dict.fromkeys(taken, i) | {"a": i} for i in range(3)}
    read = read_all(_source(tmp_path, json.dumps(value)))
    assert read.column(column) == ["n0", "n1", "n2"]
    assert read.column("a") == [0, 1, 2]


def test_a_later_field_of_that_name_is_rejected(tmp_path):
    value = {f"n{i}": {"a": i} for i in range(40)} | {"n40": {"a": 40, "id": 1}}
    read = read_all(_source(tmp_path, json.dumps(value)))
    assert read.column("a") == list(range(40))
    assert read.reasons() == [
        (41, "an object has a key twice, or a field 'id' beside its own name")
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_objects_one_after_another(tmp_path, indent):
    text = "\n".join(json.dumps(record, indent=indent) for record in RECORDS)
    read = read_all(_source(tmp_path, text))
    assert list(read.records.values()) == _filled(RECORDS)


FORMS = [
    ('{"a": 1}', LINES),
    ('{"a": 1}\n{"a": 2}', LINES),
    ('{"a": 1} {"a": 2}', LINES),
    ('{"a": {"x": 1}}', LINES),
    ('{"a": {"x": 1}, "b": {"y": 1}}', LINES),
    ('{"a": {"x": 1}, "b": {"x": 1}}\n{"a": {"x": 1}, "b": {"x": 1}}', LINES),
    ('{"a": {"x": 1}, "b": {"x": 2}}', Form("members", "id")),
    ('{"a": {"x": 1}, "b": {"x": 2}, "c": 5}', LINES),
    ('{"a": {"x": 1}, "b": [1]}', LINES),
    ('{\n"a": {"x": 1},\n"b": {"x": 2}}', Form("members", "id")),
    ('{\n"a": {"x": 1},\n"b": {"y": 2}}', OBJECTS),
    ('{\n"a": 1\n}', OBJECTS),
    ('{\n"a": 1\n}\n{\n"a": 1\n}', OBJECTS),
    ('{"type": "FeatureCollection",\n "features": [{"a": 1}]}', OBJECTS),
    ("[]", Form("array")),
    (" \n[1]", Form("array")),
    ("", LINES),
    ("5", LINES),
    ("{", LINES),
    ('{"a": \n', OBJECTS),
]


@pytest.mark.parametrize(("text", "form"), FORMS)
def test_the_form_is_seen_from_the_beginning(text, form):
    assert form_of(text.encode(), True) == form


def test_the_form_is_seen_from_a_part(tmp_path):
    members = ", ".join(f'"m{i}": {{"x": {i}}}' for i in range(99))
    assert form_of(f"{{{members}".encode(), False) == Form("members", "id")
    assert form_of(b'{"x": "' + b"y" * 1000, False) == LINES
    assert form_of(b'{\n"x": "' + b"y" * 1000, False) == OBJECTS
    assert form_of(b'{"a": 1}\n\n', False) == LINES


def test_empty_values_hold_no_record(tmp_path):
    for number, text in enumerate(("[]", "[\n]\n", "[ ] ")):
        read = read_all(_source(tmp_path, text, name=f"{number}.json"))
        assert (read.records, read.rejects) == ({}, [])


BAD = [
    ('{"a": 1, "a": 2}', "an object has a key twice"),
    ('{"a": "\\ud800"}', "a string holds half a surrogate pair"),
    ('{"c": 1e400}', "a number is too large for a float64"),
    ('{"a": 1' + "0" * 5000 + "}", "an integer has too many digits"),
    ('{"a": ' + "[" * 40 + "]" * 40 + "}", "nested deeper than 32 levels"),
    ('{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", "nested deeper than 32 levels"),
    ("5", "the item is not a JSON object"),
    ('"x]"', "the item is not a JSON object"),
    ("[1, {}]", "the item is not a JSON object"),
    ("null", "the item is not a JSON object"),
    ('{"a": 01}', "invalid JSON at column 8: Expecting ',' delimiter"),
    ('{"a" 1}', "invalid JSON at column 6: Expecting ':' delimiter"),
    ('{"a": "line\nend"}', "invalid JSON at column 12: Invalid control character at"),
    ('{"a": tru}', "invalid JSON at column 7: Expecting value"),
]


@pytest.mark.parametrize(("item", "reason"), BAD)
@pytest.mark.parametrize("chunk", [5, 1 << 18])
def test_a_bad_item_is_rejected_alone(tmp_path, monkeypatch, item, reason, chunk):
    monkeypatch.setattr(jsonvalues, "_CHUNK", chunk)
    read = read_all(_source(tmp_path, f'[{{"b": "x"}}, {item}, {{"b": "y"}}]'))
    assert read.column("b") == ["x", "y"]
    assert read.reasons() == [(2, reason)]
    assert read.rejects[0].raw == item.encode()


def test_an_item_that_is_not_utf8_is_rejected_alone(tmp_path):
    read = read_all(_source(tmp_path, b'[{"b": "x"}, {"b": "\xff"}, {"b": "y"}]'))
    assert read.column("b") == ["x", "y"]
    ((row, reason),) = read.reasons()
    assert (row, reason.partition(";")[0]) == (2, "invalid UTF-8 at byte 7 of the item")


BROKEN = [
    ('[{"a": 1}, {"a": 2}', "the JSON value ends too soon: the rest is not read"),
    ('[{"a": 1}, {"a": 2},', "the JSON value ends too soon: the rest is not read"),
    ('[{"a": 1}, {"a": 2}, {"a": [', "the JSON value ends too soon: the rest is not read"),
    ('[{"a": 1}, {"a": 2}, {"a": "x}]', "the JSON value ends too soon: the rest is not read"),
    ('[{"a": 1}, {"a": 2} {"a": 3}]', "the JSON value is malformed at byte 20: the rest"),
    ('[{"a": 1}, {"a": 2}] {"a": 3}', "the JSON value is malformed at byte 21: the rest"),
    ('[{"a": 1}, {"a": 2},, {"a": 3}]', "the JSON value is malformed at byte 20: the rest"),
    ('[{"a": 1}, {"a": 2}, ]', "the JSON value is malformed at byte 21: the rest"),
    ('{"x": {"a": 1}, "y": {"a": 2}, z: {"a": 3}}', "the JSON value is malformed at byte 31"),
    ('{"x": {"a": 1}, "y": {"a": 2}, "z" {"a": 3}}', "the JSON value is malformed at byte 35"),
    ('{\n"a": 1}\n{\n"a": 2}\n]', "the JSON value is malformed at byte 20: the rest"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN)
def test_where_no_item_can_be_found_the_rest_is_one_reject(tmp_path, text, reason):
    read = read_all(_source(tmp_path, text))
    assert read.column("a") == [1, 2]
    ((row, why),) = read.reasons()
    assert row is None
    assert why.startswith(reason)


def test_a_truncated_compressed_value_keeps_what_stands_before(tmp_path):
    text = json.dumps([{"a": i} for i in range(5_000)]).encode()
    packed = gzip.compress(text)
    read = read_all(_source(tmp_path, packed[: len(packed) // 2], name="a.json.gz"))
    assert read.column("a") == list(range(len(read.records)))
    assert 1_000 < len(read.records) < 5_000
    ((_, reason),) = read.reasons()
    assert reason.startswith("the gzip stream ends too soon")
    assert read_all(_source(tmp_path, packed, name="a.json.gz")).column("a") == list(range(5_000))


def test_the_bounds_of_a_record_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonvalues, "MAX_RECORD", 1000)
    monkeypatch.setattr(jsonvalues, "_CHUNK", 100)
    read = read_all(_source(tmp_path, json.dumps([{"a": "x"}, {"a": "y" * 9000}, {"a": "z"}])))
    assert read.column("a") == ["x"]
    assert read.reasons() == [(None, "the record holds 1 GiB or more")]


def test_brackets_without_end_are_not_counted_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonvalues, "_MOST_LEVELS", 1_000)
    deep = "[" * 2_000 + "]" * 2_000
    read = read_all(_source(tmp_path, f'[{{"a": 1}}, {{"a": {deep}}}, {{"a": 2}}]'))
    assert read.column("a") == [1]
    assert read.reasons() == [(None, "nested deeper than 1,000 levels: the rest is not read")]


def test_types_of_files_in_all_forms_unite(tmp_path):
    _source(tmp_path, '[{"a": 1}]', name="a.json")
    _source(tmp_path, '{"x": {"a": 0.5}, "y": {"a": 2}}', name="b.json")
    _source(tmp_path, '{"a": 3}\n{"a": null}\n', name="c.json")
    read = read_all(open_source(tmp_path, source_id="s"), 1)
    assert read.column("a") == [1.0, 0.5, 2.0, 3.0, None]
    assert read.column("id") == [None, "x", "y", None, None]
    assert list(read.records)[1:3] == ["s/b.json#1", "s/b.json#2"]
    _source(tmp_path, '[{"a": 1}, {"a": "x"}]', name="d.json")
    with pytest.raises(SchemaError, match=r"int64 \(first in a.json row 1\) and .*d.json row 2"):
        read_all(open_source(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "shift_jis"])
def test_values_in_other_encodings(tmp_path, encoding):
    text = json.dumps([{"a": "日本 表"}, {"a": "x"}], ensure_ascii=False, indent=1)
    read = read_all(_source(tmp_path, text.encode(encoding), encoding=encoding))
    assert read.column("a") == ["日本 表", "x"]
    broken = text.encode(encoding)[:-20]
    broken += b"\x00\xd8\x00\x00" if encoding == "utf-16" else b"\xd8\x00\x00\x00"
    broken = broken if encoding != "shift_jis" else text.encode(encoding)[:-20] + b"\xfd\xff"
    read = read_all(_source(tmp_path, broken, encoding=encoding))
    assert read.column("a") == ["日本 表"]
    ((_, reason),) = read.reasons()
    assert reason.startswith("invalid ")
    assert reason.endswith("of the file: the rest is not read")


def test_items_are_parsed_at_once_and_carry_their_origin(tmp_path, monkeypatch):
    records = [{"n": i, "s": f"é{i}"} for i in range(5_000)]
    source = _source(tmp_path, json.dumps(records, indent=1, ensure_ascii=False))
    rows = []
    parsed = jsonl.parsed

    def counted(schema, data, **how):
        made = parsed(schema, data, **how)
        rows.append(0 if made is None else made.num_rows)
        return made

    monkeypatch.setattr(jsonl, "parsed", counted)
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", 1 << 16)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 1 << 16)
    columns = [("n", pa.int64()), ("s", pa.string()), origin_field("origin")]
    read = read_all(source, schema=dataset_schema(pa.schema(columns)))
    assert read.column("n") == list(range(5_000))
    assert [(o["file"], o["row"]) for o in read.column("origin")] == [
        ("a.json", row) for row in range(1, 5_001)
    ]
    assert sum(rows) > 2 * 4_000


def test_memory_stays_flat(tmp_path):
    item = json.dumps({"a": "x" * 1000}, indent=1)
    text = "[" + ",\n".join([item] * 30_000) + "]"
    source = _source(tmp_path, text)
    (piece,) = source.pieces(1 << 20)
    tracemalloc.start()
    try:
        assert source.scan(piece).rows == 30_000
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 16 << 20


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "b", "c"])


@MANY
@given(
    records=st.lists(st.dictionaries(NAMES, VALUES), max_size=6),
    indent=st.sampled_from([None, 0, 1]),
    ascii=st.booleans(),
    chunk=st.integers(1, 60),
)
def test_all_forms_give_what_lines_give(tmp_path_factory, records, indent, ascii, chunk):
    root = tmp_path_factory.mktemp("corpus")

    def write(name, text):
        (root / name).write_bytes(text.encode())
        try:
            read = read_all(open_source(root / name, source_id="s"), first_wins=True)
        except SchemaError as error:
            return error.message
        return read.schema, list(read.records.items()), read.reasons()

    dumped = [json.dumps(r, indent=indent, ensure_ascii=ascii) for r in records]
    expected = write("a.jsonl", "\n".join(json.dumps(r) for r in records))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonvalues, "_CHUNK", chunk)
        patch.setattr(jsonl, "_FEW_BYTES", chunk)
        assert write("a.json", "[" + ",".join(dumped) + "]") == expected
        if all(records) and indent is not None and records:
            named = {f"k{i}": {"z": 1, **r} for i, r in enumerate(records)}
            found = write("b.json", json.dumps(named, indent=indent, ensure_ascii=ascii))
            if len(records) > 1 and not isinstance(found, str):
                assert [r["id"] for _, r in found[1]] == [
                    f"k{int(key.partition('#')[2]) - 1}" for key, _ in found[1]
                ]
