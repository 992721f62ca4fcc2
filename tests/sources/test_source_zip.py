"""Zip archives as corpora: folders whose files are read where they lie."""

import gzip
import io
import os
import pickle
import struct
import time
import tracemalloc
import zipfile

import pytest
from source_reading import read_all
from zip_files import DEFLATED, STORED, faults_of, png, zipped

from geodata.errors import ConfigError
from geodata.sources import Reading, corpus, list_files, open_source, recognise


@pytest.mark.parametrize("how", [STORED, DEFLATED])
def test_images_in_a_zip_are_those_of_a_folder(tmp_path, how):
    members = {"cat/a.png": png(), "ape/b.png": png((3, 9)), "cat/deep/c.png": png()}
    for name, data in members.items():
        (tmp_path / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plain" / name).write_bytes(data)
    path = zipped(tmp_path / "photos.zip", members, how)
    assert recognise(path) == "images"
    for target in (1 << 20, 1):
        read = read_all(open_source(path, source_id="s"), target)
        assert read.records == read_all(open_source(tmp_path / "plain", source_id="s")).records
        assert list(read.records) == ["s/ape/b.png", "s/cat/a.png", "s/cat/deep/c.png"]
        assert read.column("label") == [0, 1, 1]
    assert next(iter(read_all(open_source(path)).records)) == "photos.zip/ape/b.png"


def test_in_a_folder_of_zips_each_is_a_folder_of_its_name(tmp_path):
    zipped(tmp_path / "one.zip", {"cat/a.png": png(), "ape/b.png": png()})
    zipped(tmp_path / "more/two.ZIP", {"cat/a.png": png(), "notes.txt": b"x"})
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.png").write_bytes(png())
    source = open_source(tmp_path, kind="images", source_id="s")
    assert source.ignored == {".txt": 1}
    read = read_all(source)
    assert {key: record["label"] for key, record in read.records.items()} == {
        "s/dog/a.png": 2,
        "s/more/two.ZIP/cat/a.png": 1,
        "s/one.zip/ape/b.png": 0,
        "s/one.zip/cat/a.png": 1,
    }
    assert source.scan(source.pieces(1 << 30)[0]).labels == {"label": {"ape", "cat", "dog"}}


@pytest.mark.parametrize("how", [STORED, DEFLATED])
def test_lines_and_texts_in_a_zip(tmp_path, how):
    lines = b"".join(b'{"a": %d}\n' % i for i in range(20_000))
    zipped(tmp_path / "j.zip", {"x.jsonl": lines, "y.jsonl.gz": gzip.compress(b'{"a": -1}')}, how)
    zipped(tmp_path / "c.zip", {"x.csv": b"a,b\n1,x\n", "d/y.tsv": b"a\n2\n"}, how)
    zipped(tmp_path / "t.zip", {"README": "é".encode(), "d/empty.txt": b""}, how)
    read = read_all(open_source(tmp_path / "j.zip", source_id="s"))
    assert read.column("a") == [*range(20_000), -1]
    assert list(read.records)[-1] == "s/y.jsonl.gz#1"
    read = read_all(open_source(tmp_path / "c.zip"), 1)
    assert read.records == {
        "c.zip/d/y.tsv#1": {"a": 2, "b": None},
        "c.zip/x.csv#1": {"a": 1, "b": "x"},
    }
    read = read_all(open_source(tmp_path / "t.zip"))
    assert read.records == {"t.zip/README": {"text": "é"}, "t.zip/d/empty.txt": {"text": ""}}


def test_what_is_no_file_to_read_is_passed_over_and_counted(tmp_path):
    link = zipfile.ZipInfo("a/link.txt")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    pipe = zipfile.ZipInfo("a/pipe.txt")
    pipe.create_system, pipe.external_attr = 3, 0o010644 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.mkdir("a")
        archive.writestr("a/b.txt", b"x")
        archive.writestr(link, b"b.txt")
        archive.writestr(pipe, b"")
        for name in ("__MACOSX/._b.txt", ".DS_Store", ".git/c.txt", "inner.zip"):
            archive.writestr(name, b"y")
        archive.writestr("a/c.txt", b"z")
    source = open_source(tmp_path / "a.zip", source_id="s")
    assert list(read_all(source).records) == ["s/a/b.txt", "s/a/c.txt"]
    assert source.ignored == {
        "link in an archive": 1,
        "not a regular file": 1,
        "hidden": 3,
        ".zip": 1,
    }


def test_names_that_lead_elsewhere_are_only_keys(tmp_path):
    names = ["../../up.png", "/root.png", "./here.png", "a\\b.png", "d/../e.png"]
    zipped(tmp_path / "a.zip", {f"{name[:-4]}/x.png": png() for name in names})
    before = sorted(tmp_path.rglob("*"))
    read = read_all(open_source(tmp_path / "a.zip", source_id="s"))
    assert set(read.records) == {f"s/{name[:-4]}/x.png" for name in names}
    assert sorted(tmp_path.rglob("*")) == before
    source = open_source(tmp_path / "a.zip")
    assert source.scan(source.pieces(1 << 30)[0]).labels["label"] == {
        *("up", "root", "here", "a\\b", "d"),
    }


def _named(path, names, flag=False):
    """Write an archive with members of these raw names, each of the text `x`."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, name in enumerate(names):
            archive.writestr("#" * len(name) + "" if not number else f"{number:0{len(name)}}", b"x")
    data = bytearray(path.read_bytes())
    for number, name in enumerate(names):
        old = (b"#" * len(name)) if not number else f"{number:0{len(name)}}".encode()
        at = -1
        while (at := data.find(old, at + 1)) >= 0:
            data[at : at + len(name)] = name
            start = at - 30 if data[at - 30 : at - 26] == b"PK\3\4" else at - 46
            flags = start + (6 if data[start + 2] == 3 else 8)
            data[flags : flags + 2] = struct.pack("<H", 0x0800 if flag else 0)
    path.write_bytes(data)


def test_names_are_utf8_or_of_the_encoding_that_is_said(tmp_path):
    raw = ["日本.txt".encode("shift_jis"), "é.txt".encode(), b"plain.txt"]
    _named(tmp_path / "a.zip", raw)
    source = open_source(tmp_path / "a.zip", source_id="s")
    read = read_all(source)
    assert set(read.records) == {"s/é.txt", "s/plain.txt"}
    assert [r.reason for r in read.rejects] == [corpus.NOT_UTF8_NAME]
    said = open_source(tmp_path / "a.zip", source_id="s", reading=Reading(encoding="shift_jis"))
    assert set(read_all(said).records) == {"s/é.txt", "s/plain.txt", "s/日本.txt"}
    wide = open_source(tmp_path / "a.zip", source_id="s", reading=Reading(encoding="utf-16"))
    assert corpus.NOT_UTF8_NAME in [r.reason for r in read_all(wide).rejects]


def test_a_name_said_to_be_utf8_that_is_not_is_rejected(tmp_path):
    _named(tmp_path / "a.zip", [b"\xff\xfe.txt", b"good.txt"], flag=True)
    for reading in (Reading(), Reading(encoding="detect")):
        read = read_all(open_source(tmp_path / "a.zip", source_id="s", reading=reading))
        assert list(read.records) == ["s/good.txt"]
        assert faults_of(read) == [("\\xff\\xfe.txt", corpus.NOT_UTF8_NAME)]


def test_members_of_one_name_are_all_rejected(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):  # noqa: SIM117
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name, data in (("a.txt", "1"), ("b.txt", "2"), ("a.txt", "3")):
                archive.writestr(name, data)
    read = read_all(open_source(tmp_path / "a.zip", source_id="s"))
    assert read.records == {"s/b.txt": {"text": "2"}}
    assert faults_of(read) == [("a.txt", "two members of the archive have this name")] * 2


def test_lines_in_a_zip_take_little_memory(tmp_path):
    lines = (b'{"a": "' + b"x" * 1000 + b'"}\n') * 40_000
    source = open_source(zipped(tmp_path / "a.zip", {"a.jsonl": lines}))
    (piece,) = source.pieces(1 << 30)
    tracemalloc.start()
    try:
        assert source.scan(piece).rows == 40_000
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 24 << 20


def test_an_archive_without_files_is_refused(tmp_path):
    zipped(tmp_path / "a.zip", {})
    with pytest.raises(ConfigError, match="the archive holds no file"):
        open_source(tmp_path / "a.zip")
    zipped(tmp_path / "b.zip", {".hidden": b""})
    with pytest.raises(ConfigError, match="the archive holds no file.*1 hidden"):
        open_source(tmp_path / "b.zip")


def test_what_stands_before_and_after_does_not_matter(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.txt": b"x" * 100, "b.txt": b"y"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"a comment"
    path.write_bytes(b"#!/bin/sh\n" * 100 + path.read_bytes())
    read = read_all(open_source(path, source_id="s"))
    assert read.column("text") == ["x" * 100, "y"]


def test_zip64_and_streamed_archives_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", DEFLATED) as archive:  # noqa: SIM117
        with archive.open(zipfile.ZipInfo("a.txt"), "w", force_zip64=True) as member:
            member.write(b"large" * 1000)

    class _Pipe(io.RawIOBase):
        def __init__(self, out):
            self._out = out

        def writable(self):
            return True

        def write(self, data):
            return self._out.write(data)

    with (tmp_path / "b.zip").open("wb") as out, zipfile.ZipFile(_Pipe(out), "w") as archive:
        archive.writestr("b.txt", b"streamed")
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {
        "s/a.zip/a.txt": {"text": "large" * 1000},
        "s/b.zip/b.txt": {"text": "streamed"},
    }


def test_sizes_and_places_of_64_bits_are_found(tmp_path):
    """An archive whose every number is in the fields of 64 bits, as beyond 4 GiB."""
    name, content = b"a.txt", b"x" * 100
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 0, 0, len(name), 0)
    crc = zipfile.crc32(content)
    extra = struct.pack("<2H3Q", 1, 24, 100, 100, 0)
    wide = 0xFFFFFFFF
    entry = struct.pack(
        "<4s6H3L5H2L",
        *(b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, wide, wide, len(name), len(extra)),
        *(0, 0, 0, 0, wide),
    )
    directory = entry + name + extra
    start = len(local) + len(name) + len(content)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), start)
    place = struct.pack("<4sLQL", b"PK\6\7", 0, start + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, wide, wide, 0)
    (tmp_path / "a.zip").write_bytes(local + name + content + directory + end64 + place + end)
    read = read_all(open_source(tmp_path / "a.zip", source_id="s"))
    assert read.records == {"s/a.txt": {"text": "x" * 100}}


def test_many_members_stay_small(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(10_000):
            archive.writestr(f"class{number % 100:03}/{number:08}.png", b"")
    listing = list_files(tmp_path / "a.zip")
    assert len(listing.files) == 10_000
    assert len(pickle.dumps(listing)) < 800_000


def test_the_plan_sees_that_an_archive_changed(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.txt": b"x", "b.txt": b"y"})
    before = list(list_files(path).files)
    os.utime(path, ns=(1, time.time_ns() + 10**9))
    after = list(list_files(path).files)
    assert [(f.name, f.nbytes) for f in before] == [("a.txt", 1), ("b.txt", 1)]
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_other_kinds_are_not_read_in_archives(tmp_path):
    zipped(tmp_path / "z" / "a.zip", {"a.parquet": b"x"})
    with pytest.raises(ConfigError, match="parquet is not read inside zip archives.*Unpack"):
        open_source(tmp_path / "z" / "a.zip")
    (tmp_path / "z" / "b.parquet").write_bytes(b"no parquet")
    source = open_source(tmp_path / "z")
    assert [file.name for file in source.files] == ["b.parquet"]
    assert source.ignored == {".zip": 1}


def test_whole_and_streamed_content_is_the_same(tmp_path):
    data = os.urandom(400_000)
    path = zipped(tmp_path / "a.zip", {"a.txt": data, "b.txt.gz": gzip.compress(data)})
    (tmp_path / "plain.txt").write_bytes(data)
    for source in (open_source(path, kind="text"), open_source(tmp_path / "plain.txt")):
        for index in range(len(source.files)):
            assert source.content(index) == data
            with source.opened(index) as stream:
                assert stream.read() == data
