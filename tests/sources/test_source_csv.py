"""CSV and TSV: exact splitting, null beside the empty string, types only without loss."""

import csv
import io
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all

from geodata.errors import ConfigError, SchemaError
from geodata.schema import dataset_schema, media_of
from geodata.sources import Reading, open_source
from geodata.sources.spellings import text_kinds

ONCE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _source(tmp_path, data, name="a.csv"):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return open_source(tmp_path / name)


def test_null_and_the_empty_string_differ(tmp_path):
    read = read_all(_source(tmp_path, 'a,b\n,""\n"",\nx,"y"\n'))
    assert list(read.records.items()) == [
        ("a.csv#1", {"a": None, "b": ""}),
        ("a.csv#2", {"a": "", "b": None}),
        ("a.csv#3", {"a": "x", "b": "y"}),
    ]


def test_quotes_hold_delimiters_quotes_and_newlines(tmp_path):
    data = 'a,"b ""c"""\r\n"x,\r\n\n""y""",1\r\n"z\n",2\n" ",3'
    read = read_all(_source(tmp_path, data))
    assert read.schema == pa.schema([("a", pa.string()), ('b "c"', pa.int64())])
    assert read.column("a") == ['x,\r\n\n"y"', "z\n", " "]
    assert read.rejects == []


def test_a_quote_inside_an_unquoted_field_is_text(tmp_path):
    read = read_all(_source(tmp_path, 'a,b\n5" pipe,x"\n, "y"\n'))
    assert read.column("a") == ['5" pipe', None]
    assert read.column("b") == ['x"', ' "y"']


def test_blank_lines_are_no_records_and_lone_returns_are_text(tmp_path):
    read = read_all(_source(tmp_path, 'a\n\nx\r\n\r\n""\ny\rz\n'))
    assert list(read.records.items()) == [
        ("a.csv#1", {"a": "x"}),
        ("a.csv#2", {"a": ""}),
        ("a.csv#3", {"a": "y\rz"}),
    ]


@pytest.mark.parametrize("reading", [Reading(), Reading(header=False)])
def test_a_file_of_lone_returns_is_rejected_not_one_line(tmp_path, reading):
    (tmp_path / "a.csv").write_bytes(b"a,b\r1,2\r3,4\r")
    read = read_all(open_source(tmp_path / "a.csv", reading=reading))
    assert read.records == {}
    assert [reject.reason for reject in read.rejects] == [
        "its lines end with carriage returns alone: make them newlines"
    ]
    kept = read_all(_source(tmp_path, b'a,"b\rc"\r', "b.csv"))
    assert kept.schema.names == ["a", "b\rc"]


OPEN = "a quoted field is not closed before the end of the file"
OTHER = "if it is in another encoding, say which it is with --encoding"
REJECTED = [
    (b"1", "1 fields where the header has 2"),
    (b"1,2,3", "3 fields where the header has 2"),
    (b'"1,\n"', "1 fields where the header has 2"),
    (b'"a"b,2', "text stands after a closing quote"),
    (b'"a" ,2', "text stands after a closing quote"),
    (b"\xff,2", f"invalid UTF-8 at byte 8 of the file; {OTHER}"),
    (b'"\n\xff",2', f"invalid UTF-8 at byte 10 of the file; {OTHER}"),
]


@pytest.mark.parametrize(("line", "reason"), REJECTED)
def test_a_record_without_one_clear_meaning_is_rejected(tmp_path, line, reason):
    read = read_all(_source(tmp_path, b"a,b\nx,1\n" + line + b"\ny,2\n"))
    assert read.records == {"a.csv#1": {"a": "x", "b": 1}, "a.csv#3": {"a": "y", "b": 2}}
    assert read.reasons() == [(2, reason)]
    assert read.rejects[0].raw == line + b"\n"


def test_a_quote_that_never_closes_is_one_rejected_record(tmp_path):
    read = read_all(_source(tmp_path, 'a,b\nx,1\ny,"2\nz,3\n'))
    assert read.column("a") == ["x"]
    assert read.reasons() == [(2, f"{OPEN}: it takes the last 2 lines")]
    assert read.rejects[0].raw == b'y,"2\nz,3\n'


def test_a_record_that_is_too_long_is_rejected_and_the_rest_read(tmp_path, monkeypatch):
    monkeypatch.setattr("geodata.sources.text.lines.MAX_RECORD", 50)
    monkeypatch.setattr("geodata.sources.text.rows.MAX_RECORD", 50)
    lines = ["a,b", "x,1", "y" * 60 + ",2", '"' + "y\n" * 40 + '",3', "z,4", ""]
    read = read_all(_source(tmp_path, "\n".join(lines)))
    assert read.column("b") == [1, 4]
    assert read.reasons() == [
        (2, "the record holds 1 GiB or more"),
        (3, "the record holds 1 GiB or more, in a quoted field"),
    ]


INFERENCE = [
    (["true", "false", ""], pa.bool_(), [True, False, None]),
    (["True", "false"], pa.string(), ["True", "false"]),
    (["true", "1"], pa.string(), ["true", "1"]),
    (["0", "-1", "9223372036854775807"], pa.int64(), [0, -1, 2**63 - 1]),
    (["0", "9223372036854775808"], pa.uint64(), [0, 2**63]),
    (["-1", "9223372036854775808"], pa.string(), ["-1", "9223372036854775808"]),
    (["18446744073709551616"], pa.string(), ["18446744073709551616"]),
    (["007", "1"], pa.string(), ["007", "1"]),
    (["+1", "1"], pa.string(), ["+1", "1"]),
    ([" 1", "1"], pa.string(), [" 1", "1"]),
    (["١", "1"], pa.string(), ["١", "1"]),
    (["1.10", "2", "-0.5e-3"], pa.float64(), [1.1, 2.0, -0.0005]),
    (["0.1", "9007199254740993"], pa.string(), ["0.1", "9007199254740993"]),
    (["0.30000000000000004"], pa.float64(), [0.30000000000000004]),
    (["3.141592653589793238"], pa.string(), ["3.141592653589793238"]),
    (["1e400"], pa.string(), ["1e400"]),
    (["1e-400"], pa.string(), ["1e-400"]),
    (["1e99999", "1"], pa.string(), ["1e99999", "1"]),
    (["inf", "-inf", "1"], pa.float64(), [float("inf"), float("-inf"), 1.0]),
    (["NaN", "1"], pa.string(), ["NaN", "1"]),
    ([".5", "1"], pa.string(), [".5", "1"]),
    (["1.", "1"], pa.string(), ["1.", "1"]),
    (["1_000"], pa.string(), ["1_000"]),
    (["1" * 5000], pa.string(), ["1" * 5000]),
    (["2024-01-01"], pa.string(), ["2024-01-01"]),
    (["", ""], pa.null(), [None, None]),
]


@pytest.mark.parametrize(("texts", "kind", "values"), INFERENCE)
def test_a_type_is_taken_only_without_loss(tmp_path, texts, kind, values):
    read = read_all(_source(tmp_path, "k,v\n" + "".join(f"k,{text}\n" for text in texts)))
    assert read.schema.field("v").type == kind
    assert read.column("v") == values
    assert read.rejects == []


def test_a_quoted_empty_string_makes_a_string_column(tmp_path):
    read = read_all(_source(tmp_path, 'a,b\n1,1\n2,""\n'))
    assert read.column("b") == ["1", ""]


def test_minus_zero_keeps_its_sign(tmp_path):
    read = read_all(_source(tmp_path, "a\n-0\n1\n"))
    assert [str(value) for value in read.column("a")] == ["-0.0", "1.0"]


@ONCE
@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=5).map(str)
    | st.floats().map(repr)
    | st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e-?[0-9]{1,3})?", fullmatch=True)
)
def test_a_number_that_is_taken_is_the_same_number(text):
    kinds = set(text_kinds(text))
    if "string" in kinds or text in ("nan", "inf", "-inf"):
        return
    as_float = pa.array([text]).cast(pa.float64())[0].as_py()
    assert as_float == float(text)
    if "double" in kinds:
        assert Decimal(repr(as_float)) == Decimal(text)
    else:
        assert str(int(text)) == text


TEXTS = st.none() | st.text(st.sampled_from('ab",;\t\r\n 1é\0'), max_size=6)


@ONCE
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=8),
    delimiter=st.sampled_from(",;\t"),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_the_csv_module_writes_is_read_back(tmp_path, rows, delimiter, end):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b"])
    for row in rows:
        writer.writerow([text or "" for text in row])
    read = read_all(_source(tmp_path, out.getvalue()))
    texts = [[text or "" for text in row] for row in rows]
    assert read.rejects == []
    for index, name in enumerate("ab"):
        if read.schema.field(name).type == pa.string():
            assert read.column(name) == [row[index] for row in texts]
        else:
            assert [str(value) for value in read.column(name)] == [row[index] for row in texts]


@ONCE
@given(st.text(st.sampled_from('ab",\r\n1'), max_size=40))
def test_any_text_is_split_without_loss_of_count(tmp_path, text):
    source = _source(tmp_path, "a,b\n" + text)
    read = read_all(source)
    taken = len(read.records) + len(read.rejects)
    assert taken == source.scan(source.pieces(1)[0]).rows
    assert bool(taken) == bool(text.replace("\r\n", "").replace("\n", ""))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", b"a\tb\nx,\t1\n"),
        ("a.csv", b'"a";b\n"x,";1\n'),
        ("a.csv", b"a\tb\nx,\t1\n"),
        ("a.csv", b'a,b\n"x,",1\n'),
        ("a.csv", b'\xef\xbb\xbf"a",b\n"x,",1\n'),
    ],
)
def test_the_delimiter_comes_from_the_suffix_or_the_header(tmp_path, name, data):
    read = read_all(_source(tmp_path, data, name=name))
    assert list(read.records.values()) == [{"a": "x,", "b": 1}]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a,a", "two columns have one name.*column a"),
        (",", "the first row names no column"),
        ('"",""', "the first row names no column"),
        ("a,__key__", "reserved.*column __key__"),
    ],
)
def test_a_header_that_names_no_columns_is_refused(tmp_path, header, message):
    for first_wins in (False, True):
        with pytest.raises(SchemaError, match=message):
            read_all(_source(tmp_path, f"{header}\n1,2\n"), first_wins=first_wins)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no header row: there is none"),
        (b"\n\n", "no header row: there is none"),
        (b"\xff,b\n1,2\n", f"no header row: invalid UTF-8 at byte 0 of the file; {OTHER}"),
        (b'a,"b\n1,2\n', f"no header row: {OPEN}: it takes the last 2 lines"),
        (b'a,"b', f"no header row: {OPEN}"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "c.csv"])
def test_a_file_without_a_header_is_one_rejected_record(tmp_path, data, reason, name):
    (tmp_path / "b.csv").write_bytes(b"a\n5\n")
    (tmp_path / name).write_bytes(data)
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {"s/b.csv#1": {"a": 5}}
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [(name, None, reason)]


def _bare(tmp_path, data, name="a.csv", **reading):
    (tmp_path / name).write_bytes(data)
    return open_source(tmp_path / name, reading=Reading(header=False, **reading))


def test_without_a_header_the_first_row_is_a_record(tmp_path):
    read = read_all(_bare(tmp_path, b'\xef\xbb\xbf1,x\n\n2,"y\nz"\n'))
    assert list(read.records.items()) == [
        ("a.csv#1", {"column1": 1, "column2": "x"}),
        ("a.csv#2", {"column1": 2, "column2": "y\nz"}),
    ]
    read = read_all(_bare(tmp_path, b"1\tx,y\n", name="a.tsv", columns=("id", "text")))
    assert read.records == {"a.tsv#1": {"id": 1, "text": "x,y"}}
    assert media_of(read.schema.field("text")) == "text"


def test_without_a_header_another_width_is_rejected(tmp_path):
    data = b"1,x\n2\n3,y,z\n4,w\n"
    read = read_all(_bare(tmp_path, data))
    assert read.column("column1") == [1, 4]
    assert read.reasons() == [
        (2, "1 fields where the first record has 2"),
        (3, "3 fields where the first record has 2"),
    ]
    read = read_all(_bare(tmp_path, data, columns=("a", "b", "c")))
    assert read.records == {"a.csv#3": {"a": 3, "b": "y", "c": "z"}}
    assert read.reasons()[0] == (1, "2 fields where there are columns: 3")


def test_without_a_header_faults_before_the_first_record_are_rejected(tmp_path):
    read = read_all(_bare(tmp_path, b'"a"b,1\n\xff,2\nx,3\n'))
    assert read.records == {"a.csv#3": {"column1": "x", "column2": 3}}
    assert [row for row, _ in read.reasons()] == [1, 2]
    empty = read_all(_bare(tmp_path, b"\n\n"))
    assert (empty.records, empty.rejects) == ({}, [])


def test_files_without_headers_unite_by_place(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"1,x\n")
    (tmp_path / "b.csv").write_bytes(b"2.5,y,z\n")
    (tmp_path / "c.csv").write_bytes(b"")
    read = read_all(open_source(tmp_path, source_id="s", reading=Reading(header=False)), 1)
    assert list(read.records.values()) == [
        {"column1": 1.0, "column2": "x", "column3": None},
        {"column1": 2.5, "column2": "y", "column3": "z"},
    ]


@pytest.mark.parametrize("columns", [("a", "a"), ("a", "")])
def test_columns_that_name_no_columns_are_refused(tmp_path, columns):
    with pytest.raises(ConfigError, match="two of the columns have one name"):
        _bare(tmp_path, b"1,2\n", columns=columns)
    with pytest.raises(SchemaError, match="reserved"):
        read_all(_bare(tmp_path, b"1,2\n", columns=("a", "__key__")))


def test_columns_beside_a_header_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a\n1\n")
    with pytest.raises(ConfigError, match="--no-header"):
        open_source(tmp_path, reading=Reading(columns=("b",)))


def test_columns_of_several_files_unite_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n1,1\n")
    (tmp_path / "b.csv").write_text("y,id,x\ntrue,2.5,word\n")
    (tmp_path / "c.tsv").write_text("id\ty\n3\t\n")
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.schema == pa.schema([("id", pa.float64()), ("x", pa.string()), ("y", pa.bool_())])
    assert list(read.records.values()) == [
        {"id": 1.0, "x": "1", "y": None},
        {"id": 2.5, "x": "word", "y": True},
        {"id": 3.0, "x": None, "y": None},
    ]


def test_text_is_a_medium_if_it_is_a_string(tmp_path):
    assert media_of(read_all(_source(tmp_path, "text\nx\n")).schema.field("text")) == "text"
    assert media_of(read_all(_source(tmp_path, "text\n1\n")).schema.field("text")) is None


def test_an_appended_file_is_fitted_to_the_datasets_schema(tmp_path):
    kinds = [("i", pa.int8()), ("f", pa.float64()), ("s", pa.string()), ("d", pa.date32())]
    source = _source(
        tmp_path, "i,f,s,d\n1,1,1,2024-01-01\n128,,,\n01,,,\n,1e400,,\n,,,2024-1-1\n,,x,\n"
    )
    read = read_all(source, schema=dataset_schema(pa.schema(kinds)))
    assert [key for key, _ in read.records.items()] == ["a.csv#1", "a.csv#6"]
    assert read.column("s") == ["1", "x"]
    assert str(read.column("d")[0]) == "2024-01-01"
    assert read.reasons() == [
        (2, "'i' is int8 here, this record holds int64"),
        (3, "'i' is int8 here, this record holds string"),
        (4, "'f' is double here, this record holds string"),
        (5, "'d' is date32[day] here, this record holds string"),
    ]
    short = dataset_schema(pa.schema(kinds[:3]))
    refused = read_all(source, schema=short)
    assert refused.records == {}
    assert refused.reasons()[0] == (1, "'d' is not in the schema")


def test_many_rows_come_in_several_batches(tmp_path):
    read = read_all(_source(tmp_path, "a,b\n" + "".join(f"{i},v{i}\n" for i in range(10_000))))
    assert read.column("a") == list(range(10_000))
    assert list(read.records)[-1] == "a.csv#10000"
    assert len(read.batches) > 1


def test_without_quotes_a_quote_is_a_character(tmp_path):
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"so" she said\n2\t"\n3\t\n', encoding="utf-8")
    source = open_source(tmp_path / "a.tsv", reading=Reading(quotes=False))
    read = read_all(source)
    assert read.column("text") == ['"so" she said', '"', None]
    assert not read.rejects
    assert len(read_all(open_source(tmp_path / "a.tsv")).rejects) == 2


@pytest.mark.parametrize("mark", ["|", ".", "^", "]", "\x01"])
def test_any_character_delimits(tmp_path, mark):
    lines = [["a", "b"], ["1", f'"x{mark}y"'], ["2", "z"]]
    (tmp_path / "a.csv").write_text("".join(mark.join(line) + "\n" for line in lines))
    read = read_all(open_source(tmp_path / "a.csv", reading=Reading(delimiter=mark)))
    assert (read.column("a"), read.column("b")) == ([1, 2], [f"x{mark}y", "z"])


@pytest.mark.parametrize("mark", ["", "ab", '"', "\n"])
def test_what_cannot_delimit_is_refused(tmp_path, mark):
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(ConfigError, match="one character"):
        open_source(tmp_path / "a.csv", reading=Reading(delimiter=mark))
