"""Blocks of line JSON parsed at once: the same records, types and reasons as line by line."""

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.sources import open_source
from geodata.sources.observed import Seen, see_fields
from geodata.sources.text import arrowjson, jsonl
from geodata.sources.text.arrowjson import expected, parsed

MANY = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

NUMBERS = (
    "0 -0 5 -5 1.5 -1.5 -0.0 -2.0 1e5 -1E+2 1e-400 -1e-400 1e400 -1e400 NaN Infinity -Infinity Inf "
    "01 1. .5 +1 9007199254740991 9007199254740992 9007199254740993 -9007199254740993 "
    "9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 "
    "18446744073709551615 18446744073709551616 1.7976931348623157e308 5e-324 0.1 123456789.12345678"
).split()
STRINGS = [
    *('""', '"x"', '"\\u00e9"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00"'),
    *('"2024-01-01T00:00:00"', '"é"', '"\\/"', '"\\x"', '"a\tb"', '"}\\n{"'),
]
ATOMS = st.sampled_from([*NUMBERS, *STRINGS, "null", "true", "false", "[]", "{}", "nul", ""])
NAMES = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"c"'])


def _listed(items):
    return f"[{', '.join(items)}]"


def _object(pairs):
    return "{" + ", ".join(f"{name}: {value}" for name, value in pairs) + "}"


VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3).map(_listed)
        | st.lists(st.tuples(NAMES, inner), max_size=2).map(_object)
    ),
    max_leaves=4,
)
OBJECTS = st.lists(st.tuples(NAMES, VALUES), max_size=3).map(_object)
LINES = OBJECTS | st.sampled_from(
    ["", " ", "[1]", "{", "}", '{"a": 1} {"a": 2}', '{"a": {"b": 1}', '{"a": 1}}', "{}\r", " {}"]
)
ALIKE = (
    st.lists(st.sampled_from([*NUMBERS, "null", "1", "-1"]), min_size=1, max_size=3)
    .flatmap(lambda pool: st.lists(st.sampled_from(pool), min_size=4, max_size=12))
    .map(lambda values: [_object([('"a"', value)]) for value in values])
)


def _outcome(source, **options):
    """Return all that a reader of the source learns of it, errors included."""
    try:
        read = read_all(source, **options)
    except SchemaError as error:
        return str(error)
    rejects = sorted((r.file, r.row or 0, r.reason, r.raw) for r in read.rejects)
    return read.schema, repr(list(read.records.items())), rejects


@MANY
@given(
    lines=st.lists(LINES, max_size=12) | ALIKE,
    bound=st.integers(1, 200),
    target=st.sampled_from([1 << 30, 64]),
    first_wins=st.booleans(),
)
def test_blocks_of_any_size_give_what_lines_give(
    tmp_path_factory, lines, bound, target, first_wins
):
    root = tmp_path_factory.mktemp("corpus")
    for number, part in enumerate((lines, lines[::-1])):
        (root / f"{number}.jsonl").write_bytes("\n".join(part).encode("utf-8"))
    options = {"target_bytes": target, "first_wins": first_wins}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_FEW_BYTES", 1 << 30)
        expected_outcome = _outcome(open_source(root, source_id="s"), **options)
        patch.setattr(jsonl, "_FEW_BYTES", 1)
        patch.setattr(jsonl, "_SCAN_BYTES", bound)
        patch.setattr(jsonl, "_BLOCK_BYTES", bound)
        assert _outcome(open_source(root, source_id="s"), **options) == expected_outcome


def test_a_large_file_is_parsed_at_once_and_its_rows_are_counted(tmp_path, monkeypatch):
    records = [
        {"id": f"é{i}", "n": i - 500, "x": [i / 3], "s": {"t": None, "u": True}, "z": None}
        for i in range(5_000)
    ]
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    lines[4_000:4_000] = ["", "[]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    batches = []

    def counted(schema, data, **how):
        made = parsed(schema, data, **how)
        batches.append(0 if made is None else made.num_rows)
        return made

    monkeypatch.setattr(jsonl, "parsed", counted)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", 1 << 16)
    read = read_all(open_source(tmp_path / "a.jsonl"))
    rows = [*range(1, 4_001), *range(4_003, 5_003)]
    assert list(read.records) == [f"a.jsonl#{row}" for row in rows]
    assert list(read.records.values()) == records
    assert read.reasons() == [(4_002, "the line is not a JSON object")]
    assert sum(batches) > 2 * 3_000
    assert read.schema.field("n").type == pa.int64()


def _seen(*records):
    fields = {}
    for record in records:
        see_fields(fields, record, (0, 1))
    return fields


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ([{"a": 1}], pa.int64()),
        ([{"a": -1}, {"a": 2**60 + 1}], pa.int64()),
        ([{"a": 2**63}, {"a": 0}], pa.uint64()),
        ([{"a": 1}, {"a": 0.5}], pa.float64()),
        ([{"a": None}], pa.null()),
        ([{"a": []}], pa.list_(pa.null())),
        ([{"a": [{"b": "x"}]}], pa.list_(pa.struct([("b", pa.string())]))),
        ([{"a": {}}], None),
        ([{"a": 2**64}], None),
        ([{"a": -1}, {"a": 2**63}], None),
        ([{"a": 2**53 + 1}, {"a": 0.5}], None),
        ([{"a": 1}, {"a": "x"}], None),
    ],
)
def test_the_type_expected_is_the_one_that_holds_all_seen(records, kind):
    schema = expected(_seen(*records))
    assert (None if schema is None else schema.field("a").type) == kind


@pytest.mark.parametrize(
    ("known", "values", "new"),
    [
        ([1], [0, 2**53 - 1, None], False),
        ([1], [-1], True),
        ([1], [2**53], True),
        ([-1], [-5], False),
        ([-1], [5], True),
        ([1, 2**53 + 1], [2**63 - 1], False),
        ([1, -1, -(2**53) - 1], [-(2**63)], False),
        ([1, 2**63], [2**53], True),
        ([1, 2**63 + 1], [2**64 - 1, 2**53 + 1], False),
        ([2**63], [2**63], True),
        ([0.5], [-1.5, 2.0], False),
        ([0.5], [-2.0], True),
        ([0.5, -1], [-2.0], False),
        ([1], [None], False),
    ],
)
def test_a_kind_of_number_that_was_not_seen_is_news(known, values, new):
    (seen,) = _seen(*({"a": value} for value in known)).values()
    kind = expected({"a": seen}).field("a").type
    assert arrowjson.news(pa.array(values, kind), seen) is new
    nested = Seen(first={"list": (0, 1)}, items=seen)
    assert arrowjson.news(pa.array([values, None], pa.list_(kind)), nested) is new


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}{"a": 2}\n{"a": 3}\n',
        b'{"a": 1}{"a": 2}\n{\n}',
        b'{"a": 1}\n\n{"a": 2}\n',
        b'\xef\xbb\xbf{"a": 1}\n',
        b'{"a": 1}\n {"a": 2}\n',
        b'{"a": null, "a": null}\n',
        b'{"a": 1, "b": 2}\n',
        b'{"a": 1.0}\n',
        b'{"a": 1}\n\0\n{"a": 2}',
        b"",
        b"\n",
    ],
)
def test_what_is_in_doubt_is_left_to_the_lines(data):
    schema = pa.schema([("a", pa.int64())])
    assert parsed(schema, data) is None
    plain = b'{"a": 1}\r\n{"a": null}\n{}\r\n'
    assert parsed(schema, plain).to_pydict() == {"a": [1, None, None]}


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\udc00", b"\n", b"\0"])
def test_text_that_is_no_utf8_is_left_to_the_lines(text):
    for kind, value in ((pa.string(), b'"x%b"'), (pa.list_(pa.string()), b'["x%b"]')):
        schema = pa.schema([("a", kind)])
        assert parsed(schema, b'{"a": %b}' % (value % b"y")) is not None
        assert parsed(schema, b'{"a": %b}' % (value % text)) is None


def test_a_schema_that_json_does_not_give_is_left_to_the_lines():
    assert parsed(pa.schema([("a", pa.int8())]), b'{"a": 1}\n') is None
    kind = pa.int64()
    for _ in range(arrowjson.MAX_DEPTH):
        kind = pa.list_(kind)
    assert parsed(pa.schema([("a", kind)]), b'{"a": null}\n') is None
    assert parsed(pa.schema([("a", kind.value_type)]), b'{"a": null}\n') is not None


def test_many_columns_do_not_make_large_batches():
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(2_000)])
    assert parsed(schema, b"{}\n" * 1_000) is None


def test_text_that_is_no_utf8_is_rejected_though_blocks_are_scanned_for_types_alone(tmp_path):
    lines = [b'{"a": %d, "b": "text %d"}\n' % (i, i) for i in range(4000)]
    lines[2500] = b'{"a": 2500, "b": "\xff\xfe"}\n'
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    read = read_all(open_source(tmp_path / "a.jsonl"))
    assert len(read.records) == 3999
    ((row, reason),) = read.reasons()
    assert row == 2501 and reason.startswith("invalid UTF-8")
