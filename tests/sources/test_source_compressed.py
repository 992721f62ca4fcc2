"""Compressed files are read as streams, to their true end, and never silently shorter."""

import bz2
import contextlib
import gzip
import json
import lzma
import random
import struct
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all

from geodata.sources import compressed, corpus, open_source, recognise
from geodata.sources.compressed import Damaged, Unpacked


def _zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACK = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": _zstd,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


def _records(count, start=0):
    randoms = random.Random(5)
    return [
        {"n": i, "s": f"é {randoms.random()}", "x": [i / 3, None]}
        for i in range(start, start + count)
    ]


def _lines(records):
    return b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in records)


@pytest.mark.parametrize("suffix", PACK)
def test_line_json_in_each_compression(tmp_path, suffix):
    records = _records(3_000)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(PACK[suffix](_lines(records)))
    assert recognise(tmp_path / f"a.jsonl{suffix}") == "jsonl"
    source = open_source(tmp_path / f"a.jsonl{suffix}")
    assert len(source.pieces(100)) == 1
    read = read_all(source)
    assert list(read.records) == [f"a.jsonl{suffix}#{row}" for row in range(1, 3_001)]
    assert list(read.records.values()) == records
    assert read.rejects == []


@pytest.mark.parametrize("suffix", PACK)
def test_csv_and_text_in_each_compression(tmp_path, suffix):
    pack = PACK[suffix]
    (tmp_path / "t").mkdir()
    (tmp_path / f"a.tsv{suffix}").write_bytes(pack(b"a\tb\n1\tx,y\n"))
    (tmp_path / f"t/b.txt{suffix}").write_bytes(pack("é\0".encode()))
    (tmp_path / "t/c.txt").write_bytes(b"plain")
    read = read_all(open_source(tmp_path / f"a.tsv{suffix}", source_id="s"))
    assert read.records == {"s#1": {"a": 1, "b": "x,y"}}
    assert recognise(tmp_path / "t") == "text"
    read = read_all(open_source(tmp_path / "t", source_id="s"))
    assert read.records == {f"s/b.txt{suffix}": {"text": "é\0"}, "s/c.txt": {"text": "plain"}}


def test_a_folder_holds_both_and_capital_suffixes_count(tmp_path):
    (tmp_path / "a.CSV.GZ").write_bytes(gzip.compress(b"a\n1\n"))
    (tmp_path / "b.csv").write_bytes(b"a\n2\n")
    (tmp_path / "c.gz").write_bytes(b"x")
    source = open_source(tmp_path, kind="csv", source_id="s")
    assert source.ignored == {".gz": 1}
    assert list(read_all(source).records) == ["s/a.CSV.GZ#1", "s/b.csv#1"]


@pytest.mark.parametrize("suffix", PACK)
def test_all_members_are_read_to_the_true_end(tmp_path, suffix):
    records = _records(900)
    packed = b"".join(PACK[suffix](_lines(records[i : i + 3])) for i in range(0, 900, 3))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(packed)
    assert list(read_all(open_source(tmp_path)).records.values()) == records


def test_frames_to_be_skipped_and_padding_are_no_content(tmp_path):
    skip = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    frames = skip + _zstd(b'{"a": 1}\n') + skip + _zstd(b'{"a": 2}\n') + skip
    (tmp_path / "a.jsonl.zst").write_bytes(frames)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 3}') + b"\0" * 200_000)
    xz = lzma.compress(b'{"a": 4}')
    (tmp_path / "c.jsonl.xz").write_bytes(xz + b"\0" * 8 + lzma.compress(b'\n{"a": 5}'))
    read = read_all(open_source(tmp_path))
    assert (read.column("a"), read.rejects) == ([1, 2, 3, 4, 5], [])


@pytest.mark.parametrize("suffix", PACK)
def test_an_empty_file_is_damage_and_empty_content_is_none(tmp_path, suffix):
    (tmp_path / f"a.jsonl{suffix}").write_bytes(b"")
    (tmp_path / f"b.jsonl{suffix}").write_bytes(PACK[suffix](b""))
    read = read_all(open_source(tmp_path))
    assert read.records == {}
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        (
            f"a.jsonl{suffix}",
            None,
            f"the {KINDS[suffix]} stream ends too soon, after 0 bytes unpacked",
        )
    ]


def _given(path, kind):
    """Return all that a damaged stream gives before it raises, and why."""
    stream = Unpacked(lambda: path.open("rb"), kind)
    given = b""
    try:
        while part := stream.read(1 << 20):
            given += part
    except Damaged as error:
        return given, str(error)
    return given, None


def _inflated(packed):
    """Return what zlib makes of the beginning of a gzip file."""
    made = zlib.decompressobj(31)
    return made.decompress(packed)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_truncated_stream_keeps_the_records_before(tmp_path, suffix, share):
    records = _records(4_000)
    packed = PACK[suffix](_lines(records))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed[: int(len(packed) * share)])
    read = read_all(open_source(path))
    assert list(read.records.values()) == records[: len(read.records)]
    assert len(read.rejects) == 1
    given, why = _given(path, KINDS[suffix])
    assert read.rejects[0].reason == why
    assert why == f"the {KINDS[suffix]} stream ends too soon, after {len(given)} bytes unpacked"
    assert len(read.records) == given.count(b"\n")
    if suffix == ".gz":
        assert given == _inflated(path.read_bytes())


@pytest.mark.parametrize("suffix", PACK)
def test_what_is_not_compressed_so_is_damaged_from_the_start(tmp_path, suffix):
    (tmp_path / f"a.csv{suffix}").write_bytes(b"a,b\n1,2\n" * 50)
    read = read_all(open_source(tmp_path))
    assert read.records == {}
    assert read.reasons() == [
        (None, f"the {KINDS[suffix]} stream is damaged, after 0 bytes unpacked")
    ]


@pytest.mark.parametrize("suffix", PACK)
def test_other_bytes_after_the_end_are_named(tmp_path, suffix):
    packed = PACK[suffix](b'{"a": 1}\n') + b"something else"
    (tmp_path / f"a.jsonl{suffix}").write_bytes(packed)
    read = read_all(open_source(tmp_path))
    assert read.column("a") == [1]
    assert read.reasons() == [
        (None, f"the {KINDS[suffix]} stream is damaged, after 9 bytes unpacked")
    ]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 0.999), change=st.integers(1, 255), suffix=st.sampled_from(list(PACK)))
def test_a_changed_byte_never_loses_records_silently(tmp_path_factory, place, change, suffix):
    if suffix == ".zst":  # Arrow writes no checksum: nothing could tell
        return
    root = tmp_path_factory.mktemp("corpus")
    content = _lines(_records(300))
    packed = bytearray(PACK[suffix](content))
    at = int(place * len(packed))
    packed[at] ^= change
    (root / f"a.bin{suffix}").write_bytes(packed)
    given, why = _given(root / f"a.bin{suffix}", KINDS[suffix])
    assert why is not None or given == content
    try:
        whole = zlib.decompress(packed, 31) if suffix == ".gz" else None
    except zlib.error:
        whole = None
    if whole is not None:
        assert given == whole


def test_damage_late_in_a_large_stream_is_met_where_it_is(tmp_path):
    members = [_lines(_records(700, start)) for start in range(0, 2800, 700)]
    packed = [gzip.compress(member) for member in members]
    broken = bytearray(packed[2])
    broken[len(broken) // 2] ^= 0xFF
    (tmp_path / "a.jsonl.gz").write_bytes(packed[0] + packed[1] + broken + packed[3])
    given, why = _given(tmp_path / "a.jsonl.gz", "gzip")
    assert why == f"the gzip stream is damaged, after {len(given)} bytes unpacked"
    expected = members[0] + members[1]
    made = zlib.decompressobj(31)
    with contextlib.suppress(zlib.error):
        for byte in broken:
            expected += made.decompress(bytes([byte]))
    assert len(given) >= len(expected) - 1
    assert given.startswith(expected[:-1])


def test_a_damaged_text_is_rejected_and_one_too_long_is_not_kept(tmp_path, monkeypatch):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x" * 1000)[:-3])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"x" * 1_000_000))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"x" * 30_000))
    monkeypatch.setattr(corpus, "_KEPT_BYTES", 10_000)
    monkeypatch.setattr(corpus, "MAX_RECORD", 500_000)
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.records == {"s/c.txt.gz": {"text": "x" * 30_000}}
    assert [(r.file, r.reason) for r in read.rejects] == [
        ("a.txt.gz", "the gzip stream ends too soon, after 1000 bytes unpacked"),
        ("b.txt.gz", corpus.TOO_LONG),
    ]


@pytest.mark.parametrize("suffix", PACK)
def test_memory_stays_flat_whatever_the_ratio(tmp_path, suffix):
    line = b'{"a": "' + b"x" * 4000 + b'"}\n'
    (tmp_path / f"a.jsonl{suffix}").write_bytes(PACK[suffix](line * 100) * 100)
    source = open_source(tmp_path)
    (piece,) = source.pieces(1 << 30)
    tracemalloc.start()
    try:
        scan = source.scan(piece)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert scan.rows == 10_000
    assert most < 24 << 20


def test_a_bomb_of_one_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("geodata.sources.text.lines.MAX_RECORD", 1 << 20)
    data = b'{"a": 1}\n' + b"x" * (40 << 20) + b'\n{"a": 2}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    source = open_source(tmp_path)
    tracemalloc.start()
    try:
        read = read_all(source)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read.column("a") == [1, 2]
    assert read.reasons() == [(2, corpus.TOO_LONG)]
    assert most < 24 << 20


def test_xz_that_needs_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "_LZMA_MEMORY", 1 << 20)
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(b'{"a": 1}\n', preset=9))
    read = read_all(open_source(tmp_path))
    assert read.reasons() == [(None, "the xz stream is damaged, after 0 bytes unpacked")]


def test_a_vanished_file_is_said_to_be(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    source = open_source(tmp_path)
    (tmp_path / "a.jsonl.gz").unlink()
    assert read_all(source).reasons() == [
        (None, "the file cannot be read: No such file or directory")
    ]
