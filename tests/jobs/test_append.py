"""Appending: new records beside the old ones, unique keys, one schema, many writers."""

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pipeline import kill_everywhere

import geodata
from geodata import schema as schemas
from geodata.catalog import Catalog, locate
from geodata.errors import ConfigError, SchemaError, TooManyBadRecords
from geodata.jobs import origins
from geodata.sources import Reading
from geodata.tags import STAGING


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A staging dataset `raw` of 100 records, and a file of 10 more."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old.jsonl", range(100))
    write(tmp_path / "new.jsonl", range(10))
    geodata.convert(tmp_path / "old.jsonl", tmp_path / "raw", workers=1, shard_size=1_000)
    return tmp_path


def write(path, numbers, **more):
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"n": n, "score": n + 0.5, "text": f"{path}", **more}) for n in numbers]
    path.write_text("".join(line + "\n" for line in lines))


def append(root, source="new.jsonl", **options):
    return geodata.append(root / source, root / "raw", **{"workers": 1, **options})


def index_of(root, dest="raw"):
    return Catalog.at(locate(str(root / dest), None), "test").index()


def shards_of(root, dest="raw"):
    catalog = Catalog.at(locate(str(root / dest), None), "test")
    return catalog.shards(catalog.index(), STAGING)


def lines(root):
    return [shard.to_line() for shard in shards_of(root)]


def rows(root, dest="raw"):
    files = [pq.read_table(root / dest / shard.main.path) for shard in shards_of(root, dest)]
    return [row for file in files for row in file.to_pylist()]


def keys(root):
    return [row["__key__"] for row in rows(root)]


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


def overtaking(monkeypatch, other):
    """Let `other` run just before the next commit of an amended version."""
    amend, done = Catalog.amend, []

    def amending(self, *arguments, **options):
        if not done:
            done.append(True)
            other()
        return amend(self, *arguments, **options)

    monkeypatch.setattr(Catalog, "amend", amending)


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


def test_columns_that_are_missing_are_null_and_others_must_fit(place):
    (place / "few.jsonl").write_text('{"score": 1, "never": null}\n{"score": null}\n')
    append(place, "few.jsonl")
    few = [row for row in rows(place) if row["__key__"].startswith("few")]
    assert [(row["n"], row["score"], row["text"]) for row in few] == [
        (None, 1.0, None),
        (None, None, None),
    ]
    (place / "wide.jsonl").write_text('{"n": 1.5}\n')
    with pytest.raises(SchemaError, match=r"holds int64, the source double.*column n.*--sch"):
        append(place, "wide.jsonl")
    (place / "more.jsonl").write_text('{"n": 1, "extra": true}\n')
    with pytest.raises(SchemaError, match=r"no such column.*bool.*column extra"):
        append(place, "more.jsonl")
    (place / "odd.jsonl").write_text('{"score": 9007199254740993}\n')
    with pytest.raises(TooManyBadRecords, match=r"odd\.jsonl, row 1"):
        append(place, "odd.jsonl")
    with pytest.raises(SchemaError, match="does not keep where records stood"):
        append(place, provenance="origin")
    assert index_of(place).version == "v000002"


def test_a_mended_source_goes_on_after_it_did_not_fit(place):
    (place / "odd.jsonl").write_text('{"n": "one"}\n')
    with pytest.raises(SchemaError):
        append(place, "odd.jsonl")
    (place / "odd.jsonl").write_text('{"n": 1}\n')
    assert append(place, "odd.jsonl").records == 101


def test_nested_values_take_the_datasets_type(place):
    deep = {"a": {"x": 1.5, "y": [1, 2.5]}, "big": (1 << 64) - 1}
    (place / "deep.jsonl").write_text(json.dumps(deep) + "\n")
    geodata.convert(place / "deep.jsonl", place / "raw", replace=True, workers=1)
    (place / "flat.jsonl").write_text('{"a": {"y": [7]}, "big": 1}\n')
    append(place, "flat.jsonl")
    assert rows(place)[-1]["a"] is not None
    found = {row["__key__"]: row for row in rows(place)}["flat.jsonl#1"]
    assert (found["a"], found["big"]) == ({"x": None, "y": [7.0]}, 1)
    schema = schemas.from_json(index_of(place).schema_)
    assert schema.field("big").type == pa.uint64()


def test_origins_are_kept_where_the_dataset_keeps_them(place):
    (place / "texts").mkdir()
    (place / "texts/a.txt").write_text("a")
    geodata.convert(place / "texts", place / "raw", replace=True, provenance="from", workers=1)
    (place / "texts/b.txt").write_text("b")
    append(place, "texts")
    assert {row["from"]["file"] for row in rows(place)} <= {"a.txt", "b.txt", None}
    assert "from" in rows(place)[0]


def pictures(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (len(name), 0, 0)).save(path)


def classes(root):
    labels = index_of(root).labels["label"]
    return {row["__key__"]: labels[row["label"]] for row in rows(root)}


def test_label_maps_grow_at_their_end(place, monkeypatch):
    pictures(place, ["zoo/cat/1.png", "zoo/dog/1.png"])
    geodata.convert(place / "zoo", place / "raw", replace=True, workers=1)
    pictures(place, ["zoo/ant/1.png", "zoo/cat/2.png", "farm/cow/1.png", "farm/dog/1.png"])
    overtaking(monkeypatch, lambda: append(place, "farm"))
    append(place, "zoo")
    assert index_of(place).labels == {"label": ["cat", "dog", "cow", "ant"]}
    assert classes(place) == {
        f"{name}.png": name.split("/")[1]
        for name in ("zoo/cat/1", "zoo/dog/1", "zoo/ant/1", "zoo/cat/2", "farm/cow/1", "farm/dog/1")
    }
    assert [s["source_id"] for s in index_of(place).report["sources"]] == ["zoo", "farm", "zoo"]


def keyed(path, names):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"__key__": names, "n": range(len(names))}), path)


def test_keys_of_a_sources_own_stay_unique(place, monkeypatch):
    keyed(place / "one/a.parquet", ["k1", "k2"])
    geodata.convert(place / "one", place / "raw", replace=True, workers=1)
    keyed(place / "two/a.parquet", ["k3", "k4"])
    assert append(place, "two").records == 4
    keyed(place / "three/a.parquet", ["k5", "k2"])
    with pytest.raises(SchemaError, match=r"two records have one key \(key k2\)"):
        append(place, "three")
    keyed(place / "three/a.parquet", ["k5", "k6"])
    keyed(place / "four/a.parquet", ["k6"])
    overtaking(monkeypatch, lambda: append(place, "four"))
    with pytest.raises(SchemaError, match=r"one key \(key k6\)"):
        append(place, "three")
    keyed(place / "five/a.parquet", ["k7"])
    keyed(place / "five/b.parquet", ["k8", "k7"])
    with pytest.raises(SchemaError, match=r"one key \(key k7\)"):
        append(place, "five")
    keyed(place / "six/a.parquet", ["two/a.parquet#1", None])
    assert append(place, "six").records == 7
    assert geodata.verify(str(place / "raw"), workers=1).ok


def test_ids_that_could_make_one_key_are_compared(place):
    write(place / "old.jsonl#1", range(1))
    (place / "old.jsonl#1").write_text("text")
    (place / "t").mkdir()
    geodata.convert(place / "new.jsonl", place / "raw", replace=True, workers=1, source_id="a")
    (place / "t/x.jsonl").write_text('{"n": 1}\n')
    assert append(place, "t/x.jsonl", source_id="a#b").records == 11
    assert origins.sources_of(Catalog.at(locate(str(place / "raw"), None), "test"), index_of(place))


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


@pytest.mark.parametrize("options", [{}, {"dedupe": True}])
def test_killed_at_every_point_ends_as_if_undisturbed(place, options):
    keyed(place / "new/a.parquet", ["k1", "k2", "k3", "k3" if options else "k4"])
    if options:
        table = pa.table({"n": [1, 1, 2, 5], "text": ["a", "a", "b", None]})
        pq.write_table(table, place / "new/a.parquet")
    shutil.rmtree(place / "raw")
    write(place / "old.jsonl", range(8))
    geodata.convert(place / "old.jsonl", place / "raw", workers=1)
    shutil.copytree(place / "raw", place / "before")

    def run(root):
        return append(root, "new", **options)

    report = run(place)
    assert report.records_out == (3 if options else 4)
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
