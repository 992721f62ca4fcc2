"""WebDataset tars: members make records as stock readers group them."""

import gzip
import json
import tarfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import read_all
from tar_files import PACKERS, read, special, stock, tar_bytes, write_tar
from webdataset.tariterators import base_plus_ext

import geodata
from geodata.errors import TooManyBadRecords
from geodata.schema import dataset_schema
from geodata.sources import open_source
from geodata.sources.webdataset import tars
from geodata.sources.webdataset.tars import split_name

NAMES = [
    "a.jpg", "a.b.jpg", "d/a.jpg", "d.x/a.jpg", "d.x/a.b.C", "./a.jpg", "../a.jpg", "/a.jpg",
    "a", "d/a", "d.x/a", "a.", ".a", "__meta__.json", "__meta__/a.json", "d/__meta__/a.json",
    "__a.json", "a__.json", "ü.é.JPG", "a b.c d", "a..jpg", "__x__y/a.jpg", "____/a.jpg",
    "___/a.jpg",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_split_as_the_stock_reader_does(tmp_path, name):
    path = write_tar(tmp_path / "a.tar", (name, b"1"))
    names = ("__key__", "__url__", "__local_path__")
    expected = [(s["__key__"], [k for k in s if k not in names]) for s in stock(path)]
    split = split_name(name.encode())
    assert ([] if split is None else [(split[0].decode(), [split[1]])]) == expected


def test_hidden_members_are_passed_over_unlike_in_the_stock_reader():
    assert base_plus_ext("d/._a.jpg") == ("d/", "_a.jpg")
    assert split_name(b"d/._a.jpg") is None


def test_keys_that_count_anew_in_each_shard_stay_unique(tmp_path):
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, ("0.txt", b"x"), ("1.txt", b"y"))
    assert list(read(tmp_path).records) == ["s/a.tar/0", "s/a.tar/1", "s/b.tar/0", "s/b.tar/1"]
    assert list(read(tmp_path / "a.tar").records) == ["s/0", "s/1"]


@pytest.mark.parametrize("suffix", [".tar", *PACKERS])
def test_compressed_tars(tmp_path, suffix):
    members = [(f"{i}.{e}", b"%d" % i) for i in range(50) for e in ("cls", "bin")]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACKERS.get(suffix, bytes)(tar_bytes(*members)))
    found = read(path, 1)
    assert found.rejects == []
    assert list(found.records.values()) == [{"cls": i, "bin": b"%d" % i} for i in range(50)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_members_out_of_order_are_one_record(tmp_path, pack):
    names = [f"{i}.txt" for i in range(9)] + [f"{i}.cls" for i in (4, 2, 0, 8, 6, 1, 3, 5, 7)]
    data = tar_bytes(*[(name, name[:1].encode()) for name in names], ("z.cls", b"9"))
    (tmp_path / "a.tar").write_bytes(pack(data))
    for target in (1, 1 << 30):
        found = read(tmp_path / "a.tar", target)
        assert found.rejects == []
        assert {k: tuple(r.values()) for k, r in found.records.items()} == {
            **{f"s/{i}": (str(i), i) for i in range(9)},
            "s/z": (None, 9),
        }


def test_members_too_far_apart_in_a_compressed_tar(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "HELD_BYTES", 1000)
    members = [(f"{i}.{e}", b"x" * 400) for e in ("one", "two") for i in range(4)]
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar_bytes(*members)))
    found = read(tmp_path / "a.tar")
    assert list(found.records) == ["s/0", "s/1"]
    assert found.reasons() == [
        (3, "its members lie too far apart in a compressed tar"),
        (4, "its members lie too far apart in a compressed tar"),
    ]
    write_tar(tmp_path / "a.tar", *members)
    assert len(read(tmp_path / "a.tar").records) == 4


def test_plain_tars_are_cut_between_records(tmp_path):
    members = [(f"{i:03}.{e}", b"%d" % i) for i in range(100) for e in ("cls", "txt")]
    members[20], members[41] = members[41], members[20]
    path = write_tar(tmp_path / "a.tar", *members)
    source = open_source(path, source_id="s")
    pieces = source.pieces(2048)
    assert 80 < len(pieces) < 100
    assert [p.stop for p in pieces[:-1]] == [p.start for p in pieces[1:]]
    assert pieces[-1].stop == path.stat().st_size
    cut, whole = read_all(source, 2048), read_all(source)
    assert cut.records == whole.records and len(whole.records) == 100
    assert cut.column("cls") == [int(t) for t in cut.column("txt")]


@given(st.lists(st.sampled_from([f"{k}.{e}" for k in "abc" for e in ("x", "y", "z")]), unique=True))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_order_of_members_gives_the_same_records(tmp_path, names):
    members = [(name, name.encode()) for name in names]
    expected = {}
    for name in names:
        expected.setdefault(f"s/{name[0]}", {})[name[2]] = name.encode()
    for pack in (bytes, gzip.compress):
        (tmp_path / "a.tar").write_bytes(pack(tar_bytes(*members)))
        for target in (1, 1 << 30):
            found = read(tmp_path / "a.tar", target).records
            given = {k: {n: v for n, v in r.items() if v is not None} for k, r in found.items()}
            assert given == expected


def test_origins_are_file_and_row(tmp_path):
    from geodata.schema import origin_field

    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, *[(f"{i}.txt", b"x" * 600) for i in range(40)])
    columns = read(tmp_path).schema
    schema = dataset_schema(columns.append(origin_field("origin")))
    found = read(tmp_path, 1024, schema=schema)
    assert found.column("origin") == [
        {"file": name, "row": i + 1} for name in ("a.tar", "b.tar") for i in range(40)
    ]


def test_a_tree_tarred_by_tarfile(tmp_path):
    tree = tmp_path / "tree" / "de"
    tree.mkdir(parents=True)
    for i in range(300):
        (tree / f"{i:05}.wav").write_bytes(b"RIFF%d" % i)
        (tree / f"{i:05}.json").write_text(json.dumps({"i": i}))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "tree", "tree")
    found = read(tmp_path / "a.tar", 8192)
    assert found.rejects == []
    assert {k: (r["wav"], r["json"]["i"]) for k, r in found.records.items()} == {
        f"s/tree/de/{i:05}": (b"RIFF%d" % i, i) for i in range(300)
    }


def test_batches_stay_small(tmp_path):
    members = [(f"{i}.bin", bytes((1 << 20) - 1024)) for i in range(20)]
    found = read(write_tar(tmp_path / "a.tar", *members))
    assert [batch.num_rows for batch in found.batches] == [4, 4, 4, 4, 4]


@pytest.mark.parametrize("suffix", [".tar", *PACKERS])
def test_folders_are_recognised_by_suffix(tmp_path, suffix):
    pack = PACKERS.get(suffix, bytes)
    (tmp_path / f"a{suffix}").write_bytes(pack(tar_bytes(("0.txt", b"x"))))
    assert open_source(tmp_path).kind == "webdataset"
    assert list(read(tmp_path).records) == [f"s/a{suffix}/0"]


ODDITIES = [
    special("d/", tarfile.DIRTYPE),
    special("d/link", tarfile.SYMTYPE, linkname="0.txt"),
    ("d/README", b"x"),
    ("d/._0.txt", b"x"),
    special("d/.link.txt", tarfile.LNKTYPE, linkname="d/0.txt"),
    ("__meta__/0.json", b"{}"),
    special("pipe", tarfile.FIFOTYPE),
]
PASSED_OVER = {
    "folder": 1,
    "link in an archive": 1,
    "no suffix": 1,
    "hidden": 2,
    "metadata of a tar": 1,
    "not a regular file": 1,
}


@pytest.mark.parametrize("target", [1, 1 << 30])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_members_that_are_passed_over_are_counted_once(tmp_path, pack, target):
    good = [(f"{i}.txt", b"x" * 600) for i in range(9)]
    (tmp_path / "a.tar").write_bytes(pack(tar_bytes(*good[:4], *ODDITIES, *good[4:])))
    source = open_source(tmp_path / "a.tar")
    scans = [source.scan(piece) for piece in source.pieces(target)]
    assert sum((scan.ignored for scan in scans), Counter()) == PASSED_OVER
    assert sum(scan.rows for scan in scans) == len(read(tmp_path / "a.tar").records) == 9


def test_the_report_counts_what_was_passed_over_whether_scanned_now_or_before(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_tar(folder / "a.tar", ("0.txt", b"x"), *ODDITIES)
    write_tar(folder / "b.tar", ("0.txt", b"\xff"), *ODDITIES)
    (folder / ".hidden.tar").write_bytes(b"")
    (folder / "list.csv").write_bytes(b"")
    with pytest.raises(TooManyBadRecords):
        geodata.convert(folder, tmp_path / "out", kind="webdataset", workers=1)
    report = geodata.convert(
        folder, tmp_path / "out", kind="webdataset", workers=1, on_error="skip"
    )
    twice = {what: 2 * count for what, count in PASSED_OVER.items()}
    assert report.ignored == twice | {"hidden": 5, ".csv": 1}
    assert (report.records_out, report.rejected) == (1, 1)
