"""A tree of text files: bytes exactly, or a reason."""

import os

import pyarrow as pa
import pytest
from source_reading import read_all

from geodata.errors import ConfigError
from geodata.schema import dataset_schema, media_of
from geodata.sources import open_source

FILES = {
    "a.txt": b"plain\r\n",
    "b/LICENSE": b"no suffix",
    "b/c.md": "\ufeffmark é 森\0".encode(),
    "empty.rst": b"",
}
OTHER = "if it is in another encoding, say which it is with --encoding"


@pytest.fixture
def tree(tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_file_is_a_record_and_its_bytes_stay(tree):
    for target in (1 << 20, 1):
        read = read_all(open_source(tree, source_id="s"), target)
        assert {key: record["text"].encode() for key, record in read.records.items()} == {
            f"s/{name}": data for name, data in FILES.items()
        }
        assert list(read.records) == [f"s/{name}" for name in sorted(FILES, key=str.encode)]
    assert read.schema == pa.schema([("text", pa.string())])
    assert media_of(read.schema.field("text")) == "text"


def test_a_single_file_has_its_name_for_a_key(tree):
    assert list(read_all(open_source(tree / "a.txt")).records) == ["a.txt"]
    assert list(read_all(open_source(tree / "a.txt", source_id="x")).records) == ["x"]


def test_other_suffixes_are_counted_or_taken_by_choice(tree):
    (tree / "page.html").write_text("<p>")
    (tree / "q.html").write_bytes(b"")
    assert open_source(tree).ignored == {".html": 2}
    chosen = open_source(tree, kind="text", source_id="s")
    assert chosen.ignored == {}
    assert read_all(chosen).records["s/page.html"] == {"text": "<p>"}


@pytest.mark.parametrize(
    ("data", "offset"),
    [(b"ab\xff", 2), ("森".encode()[:2], 0), (b"x\xed\xa0\x80", 1), ("é".encode("utf-16"), 0)],
)
def test_what_is_not_utf8_is_rejected_with_the_offset(tree, data, offset):
    (tree / "bad.txt").write_bytes(data)
    read = read_all(open_source(tree), 1)
    assert len(read.records) == len(FILES)
    assert [(r.file, r.row, r.reason, r.raw) for r in read.rejects] == [
        ("bad.txt", None, f"invalid UTF-8 at byte {offset}; {OTHER}", data)
    ]


def test_a_file_that_is_too_long_is_rejected(tree, monkeypatch):
    monkeypatch.setattr("geodata.sources.corpus.MAX_RECORD", 10)
    read = read_all(open_source(tree, source_id="s"))
    assert list(read.records) == ["s/a.txt", "s/b/LICENSE", "s/empty.rst"]
    assert [(r.file, r.reason) for r in read.rejects] == [
        ("b/c.md", "the record holds 1 GiB or more")
    ]


def test_pieces_group_small_files_and_cover_all(tree):
    for i in range(50):
        (tree / f"{i:02}.txt").write_bytes(b"x" * 1000)
    source = open_source(tree)
    pieces = source.pieces(10_000)
    assert [piece.file for piece in pieces] == [
        sum(piece.files for piece in pieces[:i]) for i in range(len(pieces))
    ]
    assert sum(piece.files for piece in pieces) == len(source.files) == 54
    assert sum(piece.nbytes for piece in pieces) == sum(file.nbytes for file in source.files)
    assert 5 <= len(pieces) <= 10


def test_batches_are_bounded(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.txt").write_bytes(b"x" * (3 << 20))
    read = read_all(open_source(tmp_path))
    assert [batch.num_rows for batch in read.batches] == [2, 2, 1]


def test_a_dataset_of_large_strings_is_served(tree):
    stored = dataset_schema(pa.schema([("text", pa.large_string()), ("other", pa.int64())]))
    read = read_all(open_source(tree, source_id="s"), schema=stored)
    assert read.records["s/a.txt"] == {"text": "plain\r\n", "other": None}


@pytest.mark.parametrize(
    ("listed", "found"), [("", b"x"), ("x", b"yy"), ("x" * 9_000, b""), ("x", b"y"), ("x", b"\xff")]
)
def test_a_file_that_changed_since_it_was_listed_is_told(tmp_path, listed, found):
    path = tmp_path / "a.txt"
    path.write_text(listed)
    os.utime(path, ns=(0, 0))
    source = open_source(tmp_path, source_id="s")
    path.write_bytes(found)
    with pytest.raises(ConfigError, match=r"changed while it was read \(file a.txt\)"):
        read_all(source)
