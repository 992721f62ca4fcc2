"""CSV as people have it: of pandas, of Excel, cut off, without line ends."""

import subprocess
import sys

import pyarrow as pa
import pytest
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.sources import Reading, open_source

RETURNS = "its lines end with carriage returns alone: make them newlines"


def _source(tmp_path, data, name="a.csv", **reading):
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return open_source(tmp_path / name, reading=Reading(**reading))


def _records(tmp_path, data, **reading):
    read = read_all(_source(tmp_path, data, **reading))
    assert read.rejects == []
    return list(read.records.values())


@pytest.mark.parametrize("head", [",a,b", '"","a","b"'])
def test_a_nameless_first_column_is_the_index(tmp_path, head):
    read = read_all(_source(tmp_path, f"{head}\n0,1,x\n1,2,\n"))
    assert read.schema.names == ["index", "a", "b"]
    assert list(read.records.items()) == [
        ("a.csv#1", {"index": 0, "a": 1, "b": "x"}),
        ("a.csv#2", {"index": 1, "a": 2, "b": None}),
    ]


def test_the_index_gives_way_to_a_column_of_its_name(tmp_path):
    assert _records(tmp_path, ",index\n0,x\n") == [{"row": 0, "index": "x"}]
    assert _records(tmp_path, ",index,row,unnamed,\n,x,y,z\n".replace(",\n", "\n")) == [
        {"index": "x", "row": "y", "unnamed": "z"}
    ]


def test_indexes_of_several_files_unite(tmp_path):
    (tmp_path / "a.csv").write_text(",a\n0,1\n")
    (tmp_path / "b.csv").write_text(",a\n0,2\n")
    read = read_all(open_source(tmp_path, source_id="s"), 1)
    assert list(read.records.values()) == [{"index": 0, "a": 1}, {"index": 0, "a": 2}]


def test_nameless_columns_that_hold_nothing_are_left_out(tmp_path):
    assert _records(tmp_path, "a,,b,\n1,,x,\n2,,y,\n") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_nameless_columns_that_hold_something_are_refused_or_rejected(tmp_path):
    source = _source(tmp_path, 'a,,b\n1,,x\n2,"",y\n3,,z\n')
    with pytest.raises(SchemaError, match="without a name holds values.*row 2.*--no-header"):
        read_all(source)
    read = read_all(source, first_wins=True)
    assert read.column("b") == ["x", "z"]
    assert read.reasons() == [(2, "it holds a value in a column without a name")]
    with pytest.raises(SchemaError, match=r"without a name holds values .*row 1\)"):
        read_all(_source(tmp_path, ",,a\n0,1,2\n"))


def test_a_name_that_stands_twice_says_what_to_do(tmp_path):
    with pytest.raises(SchemaError, match=r"one name \(file a\.csv, column a\).*--no-header"):
        read_all(_source(tmp_path, "a,b,a\n1,2,3\n"))


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line", ["sep=;", "SEP=;", '"sep=;"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_excel_says_what_delimits(tmp_path, mark, line, end):
    lines = [line, "a;b,c", "1,5;x", '2;"y' + end + 'z"', ""]
    read = read_all(_source(tmp_path, mark + end.join(lines)))
    assert list(read.records.items()) == [
        ("a.csv#1", {"a": "1,5", "b,c": "x"}),
        ("a.csv#2", {"a": "2", "b,c": f"y{end}z"}),
    ]


def test_what_excel_says_gives_way_to_the_user_but_is_no_record(tmp_path):
    assert _records(tmp_path, "sep=;\na,b;c\n1,2\n", delimiter=",") == [{"a": 1, "b;c": 2}]
    assert _records(tmp_path, "sep=\t\n1\t2\n", header=False) == [{"column1": 1, "column2": 2}]
    assert _records(tmp_path, "sep=ab\n1\n") == [{"sep=ab": 1}]
    read = read_all(_source(tmp_path, b"sep=,\na,b\n\xff,1\n"))
    assert read.reasons()[0][1].startswith("invalid UTF-8 at byte 10 of the file")
    assert read_all(_source(tmp_path, b"sep=,\n")).reasons() == [
        (None, "no header row: there is none")
    ]


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("Name;Wert\nä;1,5\n", [{"Name": "ä", "Wert": "1,5"}]),
        ("a|b\n1|x,y\n", [{"a": 1, "b": "x,y"}]),
        ("a, b;c\n1;2\n3;4\n", [{"a, b": 1, "c": 2}, {"a, b": 3, "c": 4}]),
        ('a;b,c\n"1;x",2\n3,4\n', [{"a;b": "1;x", "c": 2}, {"a;b": "3", "c": 4}]),
        ("\n\r\na;b\n1,5;2\n", [{"a": "1,5", "b": 2}]),
        ("words\nhello\n", [{"words": "hello"}]),
    ],
)
def test_what_cuts_the_lines_alike_delimits(tmp_path, text, records):
    assert _records(tmp_path, text) == records


def test_of_two_marks_that_cut_alike_none_is_guessed(tmp_path):
    data = "a,b;c\n1,5;2\n"
    assert read_all(_source(tmp_path, data)).reasons() == [
        (None, "its fields may be delimited by ',' or ';': say by which: --delimiter")
    ]
    assert _records(tmp_path, data, delimiter=";") == [{"a,b": "1,5", "c": 2}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,b\r1,2\r\n", RETURNS),
        (b"a,b\r1,2\r3,4\n", RETURNS),
        (b'a,"b\r1,2\r', "no header row: a quoted field is not closed"),
        (b"a,b\r\r\n1,2\r\r\n", "its lines end with two carriage returns and a newline"),
        ("a,b\n1,2\n".encode("utf-16-le"), "its first line holds NUL bytes; if it is UTF-16"),
        (b"\n\n\r\n", "no header row: there is none"),
        (b'"' * 3_000, "no header row: a name has more than 1,000 characters"),
        (b"a,b\r" + b"1,2\r" * (5 << 20), RETURNS),
    ],
)
def test_a_file_that_begins_otherwise_is_one_reject(tmp_path, data, reason):
    read = read_all(_source(tmp_path, data))
    assert read.records == {}
    assert len(read.rejects) == 1
    assert read.rejects[0].row is None
    assert read.rejects[0].reason.startswith(reason)


def test_a_header_alone_is_no_record(tmp_path):
    read = read_all(_source(tmp_path, "a,b\n"))
    assert (read.records, read.rejects) == ({}, [])
    assert read.schema == pa.schema([("a", pa.null()), ("b", pa.null())])


def test_nul_and_control_characters_in_values_are_kept(tmp_path):
    assert _records(tmp_path, "a,b\nx\0y,\x01\x7f\n") == [{"a": "x\0y", "b": "\x01\x7f"}]


@pytest.mark.parametrize("line", ["," * 20_000, '"",' * 20_000, '"x","\n"",",' * 20_000])
def test_a_record_of_too_many_fields_is_rejected_by_their_number(tmp_path, line):
    read = read_all(_source(tmp_path, f"a,b\n1,2\n{line}\n3,4\n"))
    assert read.column("a") == [1, 3]
    assert read.reasons() == [(2, "it has more than 10,000 fields")]
    many = '"' + "," * 30_000 + '",2'
    assert len(_records(tmp_path, f"a,b\n{many}\n")[0]["a"]) == 30_000


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from geodata.sources import open_source
source = open_source(sys.argv[1])
rejects = []
for piece in source.pieces(1 << 30):
    scan = source.scan(piece)
    schema = source.merge([scan])
    list(source.read(piece, 0, schema, {}, rejects.append))
print([(r.row, r.reason) for r in rejects])
"""


def test_a_huge_file_without_a_line_end_is_named_in_little_memory(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        for _ in range(300):
            file.write(b"name;1,5;word;" * 74_898)
    run = [sys.executable, "-c", LIMITED, str(path)]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(
        [
            (
                None,
                "no line ends in its first 16 MiB, where ',' or ';' delimits and '\"' quotes: "
                "its line ends are lost, or it is no delimited text",
            )
        ]
    )


STRANGE = {"c": "not a table\nat all\n", "f": "x,x\n1,2\n", "g": ",\n1,2\n", "h": "other,x\n1,2\n"}


def test_files_that_are_none_of_the_corpus_are_rejected_record_by_record(tmp_path):
    files = dict.fromkeys("abdeik", "x,y\n1,2\n") | STRANGE
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    with pytest.raises(SchemaError, match=r"no column of this file.*c\.csv"):
        read_all(open_source(tmp_path))
    read = read_all(open_source(tmp_path), first_wins=True)
    assert read.schema.names == ["x", "y", "other"]
    assert len(read.records) == 7
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("c.csv", 1, "the header: no column of this file is in the files before it"),
        ("f.csv", 1, "the header: two columns have one name"),
        ("g.csv", 1, "the header: the first row names no column"),
    ]
    assert [r.raw for r in read.rejects] == [b"at all\n", b"1,2\n", b"1,2\n"]


def test_where_most_files_are_strange_the_corpus_is(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.csv").write_text(f"{number}a,{number}b\n1,2\n")
    with pytest.raises(SchemaError, match=r"no column of this file.*1\.csv.*--no-header"):
        read_all(open_source(tmp_path), first_wins=True)
