"""Appending: new records beside the old ones, what a source has grown by, many writers."""

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline import kill_everywhere
from staged_cases import (
    append,
    index_of,
    keys,
    lines,
    make_staged,
    overtaking,
    rows,
    shards_of,
    write,
)

import geodata
from geodata.errors import ConfigError, SchemaError, TooManyBadRecords
from geodata.sources import Reading


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_staged(tmp_path)


def test_ten_more_are_beside_the_hundred(place):
    before = lines(place)
    report = append(place)
    assert (report.records_in, report.records_out, report.records) == (10, 10, 110)
    assert (report.version, report.unchanged) == ("v000002", False)
    assert len(set(keys(place))) == 110
    assert set(before) < set(lines(place))
    index = index_of(place)
    assert index.report["operation"] == "append"
    assert [s["source_id"] for s in index.report["sources"]] == ["old.jsonl", "new.jsonl"]
    assert [s["records_in"] for s in index.report["sources"]] == [100, 10]
    assert geodata.verify(str(place / "raw"), workers=1).ok
    assert not list((place / "raw/.jobs").iterdir())


def test_what_is_in_already_is_not_added_again(place):
    append(place)
    again = append(place)
    assert (again.unchanged, again.version, again.records) == (True, "v000002", 110)
    assert append(place, "old.jsonl").unchanged
    moved = place / "elsewhere"
    moved.mkdir()
    shutil.copy2(place / "new.jsonl", moved / "new.jsonl")
    assert append(place, "elsewhere/new.jsonl").unchanged
    assert len(shards_of(place)) == len(set(lines(place)))


def writer(root, source, barrier):
    barrier.wait(60)
    append(root, source)


@pytest.mark.parametrize("sources", [["new.jsonl"] * 2, ["new.jsonl", "more.jsonl"]])
def test_two_writers_at_once_both_land(place, sources):
    write(place / "more.jsonl", range(10))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    writers = [context.Process(target=writer, args=(place, s, barrier)) for s in sources]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
    codes = [process.exitcode for process in writers]
    if len(set(sources)) == 1:  # the second finds the job taken, or nothing to do
        assert 0 in codes
        assert append(place).unchanged
    else:
        assert codes == [0, 0]
    found = keys(place)
    assert len(found) == len(set(found)) == 100 + 10 * len(set(sources))
    told = index_of(place).report["sources"]
    assert sorted(s["source_id"] for s in told) == sorted({"old.jsonl", *sources})


def test_a_source_that_grew_gives_its_new_files(place):
    for name in ("a", "b"):
        write(place / f"days/{name}.jsonl", range(5))
    assert append(place, "days").records_out == 10
    write(place / "days/aa.jsonl", range(7))
    write(place / "days/c.jsonl", range(3))
    report = append(place, "days")
    assert (report.records_in, report.records) == (10, 120)
    assert append(place, "days").unchanged
    write(place / "days/d.jsonl", range(1))
    assert append(place, "days").records_in == 1
    found = keys(place)
    assert len(set(found)) == len(found) == 121
    assert "days/aa.jsonl#7" in found
    told = [s["files"]["count"] for s in index_of(place).report["sources"]]
    assert told == [1, 2, 2, 1]


def test_what_a_conversion_took_can_grow_too(place):
    write(place / "days/a.jsonl", range(5))
    geodata.convert(place / "days", place / "raw", replace=True, workers=1)
    write(place / "days/b.jsonl", range(5))
    assert append(place, "days").records == 10


@pytest.mark.parametrize("change", ["changed", "is no longer there"])
def test_an_old_file_that_changed_or_went_is_named(place, change):
    for name in ("a", "b", "c"):
        write(place / f"days/{name}.jsonl", range(5))
    append(place, "days")
    if change == "changed":
        write(place / "days/b.jsonl", range(6))
    else:
        (place / "days/b.jsonl").unlink()
    write(place / "days/d.jsonl", range(5))
    with pytest.raises(ConfigError, match=rf"{change} since.*\(file b\.jsonl\).*--source-id"):
        append(place, "days")
    count = 21 if change == "changed" else 15
    assert append(place, "days", source_id="other").records_in == count
    with pytest.raises(ConfigError, match=r"old\.jsonl.*--source-id"):
        write(place / "old.jsonl", range(3))
        append(place, "old.jsonl")


def test_the_conversion_knows_its_dataset_after_an_append(place):
    convert = [place / "old.jsonl", place / "raw"]
    append(place)
    again = geodata.convert(*convert, workers=1, shard_size=1_000)
    assert (again.unchanged, again.records_in, again.version) == (True, 100, "v000002")
    write(place / "old.jsonl", range(101))
    with pytest.raises(ConfigError, match="append, which a new version would undo"):
        geodata.convert(*convert, workers=1, shard_size=1_000)
    done = geodata.convert(*convert, workers=1, shard_size=1_000, replace=True)
    assert (done.records_out, done.version) == (101, "v000003")
    assert index_of(place).records == 101


def test_what_an_earlier_release_converted_takes_more(place):
    path = place / "raw/metadata/v000001.json"
    record = json.loads(path.read_text())
    for name in ("sources", "duplicates"):
        del record["report"][name]
    path.write_text(json.dumps(record))
    for name in ("sources", "copies"):
        shutil.rmtree(place / "raw/metadata" / name)
    convert = {"workers": 1, "shard_size": 1_000}
    assert geodata.convert(place / "old.jsonl", place / "raw", **convert).unchanged
    with pytest.raises(SchemaError, match=r"two records have one key \(key old\.jsonl#1"):
        append(place, "old.jsonl")
    assert append(place).records == 110
    assert append(place).unchanged
    assert geodata.convert(place / "old.jsonl", place / "raw", **convert).unchanged


def test_duplicates_of_what_the_dataset_holds_are_left_out(place, monkeypatch):
    lines = (place / "old.jsonl").read_text().splitlines()
    (place / "again.jsonl").write_text("\n".join([*lines[5:15], '{"n": -1}', '{"n": -1}']) + "\n")
    (place / "other.jsonl").write_text('{"n": -1}\n{"n": -2}\n')
    overtaking(monkeypatch, lambda: append(place, "other.jsonl", dedupe=True))
    report = append(place, "again.jsonl", dedupe=True)
    assert (report.records_in, report.records_out, report.duplicates) == (12, 0, 12)
    assert index_of(place).records == 102
    counts = Counter(row["n"] for row in rows(place))
    assert max(counts.values()) == 1
    assert append(place, "again.jsonl", dedupe=True).unchanged


def test_killed_at_every_point_it_leaves_out_the_same_repeats(place):
    (place / "new").mkdir()
    table = pa.table({"n": [1, 1, 2, 5], "text": ["a", "a", "b", None]})
    pq.write_table(table, place / "new/a.parquet")
    shutil.rmtree(place / "raw")
    write(place / "old.jsonl", range(8))
    geodata.convert(place / "old.jsonl", place / "raw", workers=1)
    shutil.copytree(place / "raw", place / "before")

    def run(root):
        return append(root, "new", dedupe=True)

    assert run(place).records_out == 3
    expected = lines(place)

    def check():
        assert lines(place) == expected
        assert [s["source_id"] for s in index_of(place).report["sources"]] == ["old.jsonl", "new"]
        assert not list((place / "raw/.jobs").iterdir())
        assert run(place).unchanged
        shutil.rmtree(place / "raw")
        shutil.copytree(place / "before", place / "raw")

    check()
    assert kill_everywhere(place, run, check) > 25


def test_bad_records_are_counted_and_set_aside(place):
    with (place / "new.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(TooManyBadRecords):
        append(place)
    report = append(place, on_error="quarantine")
    assert (report.records_in, report.records_out, report.rejected) == (11, 10, 1)
    assert len(list((place / "raw/quarantine").rglob("*.jsonl"))) == 1
    assert append(place).unchanged


def test_the_format_and_the_readers_choices_are_kept(place):
    geodata.convert(
        place / "old.jsonl", place / "raw", format="webdataset", replace=True, workers=1
    )
    (place / "rows.csv").write_bytes("n,score,text\n1,2.5,é\n".encode("latin-1"))
    reading = Reading(encoding="latin-1")
    append(place, "rows.csv", kind="csv", reading=reading)
    assert index_of(place).format == "webdataset"
    shown = geodata.inspect(str(place / "raw"), head=200).head
    assert [row["text"] for row in shown if row["__key__"].startswith("rows.csv")] == ["é"]


def test_a_version_or_no_dataset_is_no_place_to_append_to(place):
    with pytest.raises(ConfigError, match="newest version"):
        geodata.append(place / "new.jsonl", f"{place / 'raw'}@v1")
    with pytest.raises(ConfigError, match="no dataset"):
        geodata.append(place / "new.jsonl", place / "nothing")
    with pytest.raises(ConfigError, match="no corpus"):
        append(place, "nothing")
    with pytest.raises(ConfigError, match="lies in the source"):
        geodata.append(place, place / "raw")


def run(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "geodata.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_commands_say_what_they_did(place):
    lines = (place / "new.jsonl").read_text().splitlines()
    (place / "new.jsonl").write_text("\n".join([*lines, lines[0], "{broken", "{wrong"]) + "\n")
    options = ("--dedupe", "--on-error", "skip")
    done = run("append", "new.jsonl", "raw", *options, cwd=place)
    assert done.returncode == 0
    assert "13 in = 10 out + 2 rejected + 1 duplicate → " in done.stdout
    assert "raw v2, 110 records in all" in done.stdout
    assert "rejected 2: invalid JSON at column 2" in done.stdout
    again = run("append", "new.jsonl", "raw", *options, cwd=place)
    assert again.returncode == 0 and "nothing to do: v2 of " in again.stdout
    report = json.loads(run("append", "old.jsonl", "raw", "--json", cwd=place).stdout)
    assert (report["schema_version"], report["unchanged"], report["records"]) == (1, True, 110)
    done = run("convert", "new.jsonl", "fresh", *options, cwd=place)
    assert "13 in = 10 out + 2 rejected + 1 duplicate → " in done.stdout
    done = run("append", "nothing.jsonl", "raw", cwd=place)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_edits_and_appends_go_on_from_each_other(place):
    raw = str(place / "raw")
    joined = "".join(f"old.jsonl#{n},{n * 10}\n" for n in range(1, 101))
    (place / "tens.csv").write_text("key,tens\n" + joined)
    geodata.add_column(raw, "tens", join=place / "tens.csv", on="key", workers=1)
    geodata.drop(raw, keys=["old.jsonl#7"], workers=1)
    assert append(place, "old.jsonl").unchanged
    convert = {"workers": 1, "shard_size": 1_000}
    assert geodata.convert(place / "old.jsonl", raw, **convert).unchanged
    (place / "more.jsonl").write_text('{"n": 1, "tens": 5}\n{"n": 1, "tens": 5}\n{"n": 2}\n')
    assert append(place, "more.jsonl", dedupe=True).records == 101
    shown = {row["__key__"]: row["tens"] for row in geodata.inspect(raw, head=200).head}
    assert (shown["more.jsonl#1"], shown["more.jsonl#3"], shown["old.jsonl#3"]) == (5, None, 30)
    geodata.compact(raw, workers=1)
    assert append(place).records == 111
    assert append(place, "more.jsonl").unchanged
    with pytest.raises(ConfigError, match="made by append"):
        write(place / "old.jsonl", range(3))
        geodata.convert(place / "old.jsonl", raw, **convert)
    assert geodata.verify(raw, workers=1).ok
