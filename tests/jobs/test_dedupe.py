"""Records equal in content are left out but for the first, whoever converts them and how."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline import kill_everywhere

import geodata
from geodata.canonical import row_digests
from geodata.catalog import Catalog, locate
from geodata.errors import TooManyBadRecords
from geodata.jobs import planning
from geodata.partition import dedupe
from geodata.tags import STAGING


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Ten files of 40 records each; every third record is in all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "PIECE_BYTES", 1_000)
    (tmp_path / "rows").mkdir()
    for number in range(10):
        rows = [{"n": n, "of": None if n % 3 == 0 else number, "text": "é" * n} for n in range(40)]
        write(tmp_path / f"rows/{number}.jsonl", rows)
    return tmp_path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def convert(root, dest="raw", source="rows", **options):
    options = {"workers": 1, "shard_size": 6_000, "dedupe": True, **options}
    return geodata.convert(root / source, root / dest, **options)


def shards_of(root, dest="raw"):
    catalog = Catalog.at(locate(str(root / dest), None), "test")
    return catalog.shards(catalog.index(), STAGING)


def lines(root, dest="raw"):
    return [shard.to_line() for shard in shards_of(root, dest)]


def rows(root, dest="raw"):
    files = [pq.read_table(root / dest / shard.main.path) for shard in shards_of(root, dest)]
    return sorted(pa.concat_tables(files).to_pylist(), key=lambda row: row["__key__"])


def test_the_first_of_equal_records_stays(corpus):
    report = convert(corpus)
    assert (report.records_in, report.duplicates, report.rejected) == (400, 9 * 14, 0)
    assert report.records_in == report.records_out + report.duplicates
    kept = rows(corpus)
    assert len(kept) == report.records_out
    shared = [row["__key__"] for row in kept if row["of"] is None]
    assert all(key.startswith("rows/0.jsonl#") for key in shared) and len(shared) == 14
    index = Catalog.at(locate(str(corpus / "raw"), None), "test").index()
    assert index.report["duplicates"] == report.duplicates
    assert convert(corpus).unchanged
    assert convert(corpus, dedupe=False).records_out == 400


def test_workers_buckets_and_runs_do_not_matter(corpus, monkeypatch):
    convert(corpus)
    expected = lines(corpus)
    convert(corpus, "two", workers=2)
    assert lines(corpus, "two") == expected
    monkeypatch.setattr(dedupe, "RUN_ROWS", 16)
    convert(corpus, "small")
    assert lines(corpus, "small") == expected


def test_killed_at_every_point_ends_as_if_undisturbed(corpus):
    for number in range(2, 10):
        (corpus / f"rows/{number}.jsonl").unlink()
    convert(corpus)
    expected = lines(corpus)
    (corpus / "raw").rename(corpus / "reference")

    def check():
        assert lines(corpus) == expected
        assert not list((corpus / "raw/.jobs").iterdir())
        shutil.rmtree(corpus / "raw")

    assert kill_everywhere(corpus, convert, check) > 40


def test_rejected_records_are_none_of_them(corpus):
    for number in (3, 7):
        with (corpus / f"rows/{number}.jsonl").open("a") as file:
            file.write("{broken\n{broken\n")
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    report = convert(corpus, on_error="skip")
    assert (report.rejected, report.duplicates, report.records_in) == (4, 9 * 14, 404)
    assert report.records_out == 400 - 9 * 14


def test_a_mended_file_changes_only_what_its_records_were_first_of(corpus):
    write(corpus / "rows/0.jsonl", [{"n": 3, "of": None, "text": "ééé"}])
    with (corpus / "rows/9.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    write(corpus / "rows/9.jsonl", [{"n": 6, "of": None, "text": "é" * 6}])
    convert(corpus)
    convert(corpus, "fresh")
    assert lines(corpus) == lines(corpus, "fresh")


def test_media_are_equal_by_bytes_and_origins_do_not_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts/sub").mkdir(parents=True)
    for name, text in {"a": "x", "b": "y", "c": "x", "sub/a": "x", "sub/d": "x\n"}.items():
        (tmp_path / f"texts/{name}.txt").write_text(text)
    report = convert(tmp_path, source="texts", provenance="origin")
    assert report.duplicates == 2
    assert [row["__key__"] for row in rows(tmp_path)] == [
        "texts/a.txt",
        "texts/b.txt",
        "texts/sub/d.txt",
    ]


NAN = float("nan")
KIND = pa.struct([("u", pa.list_(pa.float32())), ("v", pa.bool_())])


@pytest.mark.parametrize(
    ("values", "kind", "groups"),
    [
        ([1, 1, None, 0, None], pa.int8(), [0, 0, 1, 2, 1]),
        (["", None, "", "a\0", "a"], pa.string(), [0, 1, 0, 2, 3]),
        ([NAN, -NAN, 0.0, None, NAN], pa.float64(), [0, 0, 1, 2, 0]),
        ([["a", "bc"], ["ab", "c"], [], None, [None, "abc"]], pa.list_(pa.string()), range(5)),
        ([[[1], []], [[], [1]], [[1]], [[1], []]], pa.list_(pa.list_(pa.int64())), [0, 1, 2, 0]),
        ([{"u": [NAN], "v": None}, {"u": None, "v": None}, None, {"u": [NAN]}], KIND, [0, 1, 2, 0]),
        ([[("k", 1)], [("k", None)], [], [("k", 1)]], pa.map_("string", "int8"), [0, 1, 2, 0]),
        ([[1, 2], None, [1, None], [1, 2]], pa.list_(pa.int16(), 2), [0, 1, 2, 0]),
        ([b"ab", b"ba", None, b"ab"], pa.binary(2), [0, 1, 2, 0]),
        ([None, None], pa.null(), [0, 0]),
        ([True, False, None, True], pa.bool_(), [0, 1, 2, 0]),
    ],
)
def test_digests_of_rows_are_equal_where_all_values_are(values, kind, groups):
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, kind), "y": ["é"] * len(values)})
    found = [bytes(row) for row in row_digests(batch)]
    expected = list(groups)
    for one in range(len(values)):
        for other in range(len(values)):
            assert (found[one] == found[other]) == (expected[one] == expected[other])
    padded = pa.concat_batches([batch, batch]).slice(len(values) - 1)
    assert (row_digests(padded)[1:] == row_digests(batch)).all()
    assert row_digests(batch.slice(0, 0)).shape == (0, 16)


def test_columns_do_not_run_into_each_other():
    one = pa.RecordBatch.from_pydict({"a": ["x", "xy"], "b": ["yz", "z"]})
    assert len(np.unique(row_digests(one), axis=0)) == 2
