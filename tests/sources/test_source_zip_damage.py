"""Zip archives that are damaged, or say what is not so."""

import os
import random
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all
from zip_files import STORED, faults_of, zipped

from geodata.errors import ConfigError
from geodata.schema import dataset_schema
from geodata.sources import archives, corpus, open_source


def _entry(data, name):
    """Return where the directory's entry of a member starts."""
    at = data.rfind(name) - 46
    assert data[at : at + 4] == b"PK\1\2"
    return at


def _changed(path, name, offset, form, value):
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, _entry(data, name) + offset, value)
    path.write_bytes(data)


DAMAGES = [
    (8, "<H", 1, "the member is encrypted"),
    (10, "<H", 9, "the member is compressed in a way that is not read (only deflate is)"),
    (16, "<L", 7, "the member is damaged: its checksum does not match"),
    (24, "<L", 5, "the member does not have the size that the archive declares"),
    (24, "<L", 60_000, "the member does not have the size that the archive declares"),
    (20, "<L", 3, None),
    (24, "<L", 0xFFFFFFF0, corpus.TOO_LONG),
    (20, "<L", 1 << 30, "the archive is truncated or damaged"),
]


@pytest.mark.parametrize("name", ["m.txt", "m.jsonl"])
@pytest.mark.parametrize(("offset", "form", "value", "reason"), DAMAGES)
def test_a_faulty_member_is_one_rejected_record(tmp_path, name, offset, form, value, reason):
    text = b'{"a": "' + bytes(random.Random(3).choices(b"abcdef", k=3_000)) + b'"}'
    good = {"a.txt": b"x", "z.txt": b"x"} if name == "m.txt" else {"a.jsonl": b'{"a": "x"}\n'}
    zipped(tmp_path / "a.zip", {**good, name: text})
    _changed(tmp_path / "a.zip", name.encode(), offset, form, value)
    read = read_all(open_source(tmp_path / "a.zip", source_id="s"))
    streamed = name == "m.jsonl"
    assert [key.partition("#")[0] for key in read.records if name not in key] == [
        f"s/{other}" for other in good
    ]
    (reject,) = read.rejects
    assert reject.file == name
    if streamed and value == 0xFFFFFFF0:
        assert reject.reason == "the member does not have the size that the archive declares"
    elif reason is not None and not (streamed and offset == 20):
        assert reject.reason == reason


def test_a_member_that_is_elsewhere_is_named(tmp_path):
    path = zipped(tmp_path / "a.zip", {"m.txt": b"x" * 1000, "z.txt": b"z"})
    path.write_bytes(b"XX" + path.read_bytes()[2:])
    read = read_all(open_source(path, source_id="s"))
    assert faults_of(read) == [("m.txt", "the member is not where the archive's directory says")]


def test_deflated_rubbish_is_named(tmp_path):
    path = zipped(tmp_path / "a.zip", {"m.txt": b"x" * 1000, "z.txt": b"z"})
    data = bytearray(path.read_bytes())
    data[35:39] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    read = read_all(open_source(path, source_id="s"))
    assert list(read.records) == ["s/z.txt"]
    assert faults_of(read)[0][1].startswith("the member is damaged")


def test_members_that_share_bytes_are_refused(tmp_path):
    names = [f"{i}.txt" for i in range(4)]
    path = zipped(tmp_path / "a.zip", {name: os.urandom(100).hex() for name in names}, STORED)
    data = path.read_bytes()
    first = struct.unpack_from("<L", data, _entry(data, b"1.txt") + 42)[0]
    _changed(path, b"2.txt", 42, "<L", first)
    read = read_all(open_source(path, source_id="s"))
    assert list(read.records) == ["s/0.txt", "s/3.txt"]
    assert faults_of(read) == [
        (name, "the member's bytes overlap those of another") for name in ("1.txt", "2.txt")
    ]


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_RECORD", 1 << 20)
    path = zipped(tmp_path / "a.zip", {"bomb.txt": bytes(64 << 20), "z.txt": b"z"})
    lying = zipped(tmp_path / "b.zip", {"bomb.txt": bytes(64 << 20), "z.txt": b"z"})
    _changed(lying, b"bomb.txt", 24, "<L", 1000)
    for archive, reason in (
        (path, corpus.TOO_LONG),
        (lying, "the member does not have the size that the archive declares"),
    ):
        source = open_source(archive, source_id="s")
        tracemalloc.start()
        try:
            read = read_all(source)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert list(read.records) == ["s/z.txt"]
        assert faults_of(read) == [("bomb.txt", reason)]
        assert most < 4 << 20


@pytest.mark.parametrize("cut", [10, 60, 0.5, 0.9, -1, -30])
def test_an_archive_that_is_cut_off_is_refused_alone_and_rejected_among_others(tmp_path, cut):
    path = zipped(tmp_path / "a.zip", {f"{i}.txt": b"x" * i for i in range(50)})
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
    with pytest.raises(ConfigError, match="zip archive is truncated or damaged"):
        open_source(path)
    (tmp_path / "b.txt").write_text("b")
    source = open_source(tmp_path, source_id="s")
    read = read_all(source)
    assert list(read.records) == ["s/b.txt"]
    assert faults_of(read) == [("a.zip", "the archive is truncated or damaged")]


@pytest.mark.parametrize("data", [b"", b"PK\5\6", b"no zip", b"PK\5\6" + b"\xff" * 18])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(ConfigError, match="zip archive is truncated or damaged"):
        open_source(tmp_path / "a.zip", kind="text")


def test_a_directory_that_is_damaged_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {f"{i}.txt": b"x" for i in range(9)})
    data = bytearray(path.read_bytes())
    data[_entry(data, b"5.txt")] = 0
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="zip archive is truncated or damaged"):
        open_source(path)


TEXTS = {f"d{i % 2}/{i}.txt": f"text {i} " * 5 * i for i in range(6)}


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    places=st.lists(st.floats(0, 0.9999), min_size=1, max_size=3),
    value=st.sampled_from([0, 1, 2, 8, 0x7F, 0x80, 0xFF]),
    tail=st.booleans(),
)
def test_changed_bytes_never_give_other_content(tmp_path_factory, places, value, tail):
    path = zipped(tmp_path_factory.mktemp("corpus") / "a.zip", TEXTS)
    data = bytearray(path.read_bytes())
    start = data.index(b"PK\1\2") if tail else 0
    for place in places:
        data[start + int(place * (len(data) - start))] = value
    path.write_bytes(data)
    try:
        source = open_source(path, kind="text", source_id="s")
    except ConfigError:
        return
    read = read_all(source)
    assert {record["text"] for record in read.records.values()} <= set(TEXTS.values())
    if not source.ignored and not tail:
        assert len(read.records) + len(read.rejects) >= len(TEXTS) - 1


def test_an_archive_that_went_is_said_to_have_gone(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.txt": b"x", "b.jsonl": b"{}\n"})
    sources = [open_source(path, kind=kind) for kind in ("text", "jsonl")]
    path.unlink()
    texts, lines = sources
    with pytest.raises(ConfigError, match="changed while it was read"):
        read_all(texts)
    found = []
    for piece in lines.pieces(1):
        schema = dataset_schema(lines.merge([]))
        assert list(lines.read(piece, 0, schema, {}, found.append)) == []
    assert {r.reason for r in found} == {"the file cannot be read: No such file or directory"}


def test_the_faults_have_their_numbers():
    assert len(archives.FAULTS) == 6
