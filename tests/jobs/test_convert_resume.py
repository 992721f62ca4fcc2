"""A conversion that goes on: only what is missing, failed or changed is done again."""

import base64
import json
import multiprocessing
import shutil
import signal
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from pipeline import killed_at

import geodata
from geodata.catalog import Catalog, locate
from geodata.errors import ConfigError, SchemaError, TooManyBadRecords
from geodata.jobs import conversion, planning, scans
from geodata.partition.rejects import OTHER, Reasons
from geodata.sources import Scan
from geodata.sources.observed import Seen
from geodata.sources.text.jsonl import JsonLines
from geodata.tags import STAGING

FILES = 12


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder of JSON lines that is cut into many tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "PIECE_BYTES", 4_000)
    (tmp_path / "logs").mkdir()
    for number in range(FILES):
        write(tmp_path, number, 100 + number)
    return tmp_path


def write(root, number, count, bad=()):
    lines = [
        "{broken" if n in bad else json.dumps({"file": number, "n": n, "text": f"line {n} " * 5})
        for n in range(count)
    ]
    (root / f"logs/{number:02}.jsonl").write_text("\n".join(lines) + "\n")


def convert(root, dest="raw", **options):
    options = {"workers": 1, "shard_size": 8_000, **options}
    return geodata.convert(root / "logs", root / dest, **options)


def lines(root, dest="raw"):
    catalog = Catalog.at(locate(str(root / dest), None), "test")
    return [shard.to_line() for shard in catalog.shards(catalog.index(), STAGING)]


def clean(root, **options):
    """Return what a fresh conversion elsewhere makes of the source."""
    convert(root, "fresh", **options)
    found = lines(root, "fresh")
    shutil.rmtree(root / "fresh")
    return found


@pytest.fixture
def done(monkeypatch):
    """Names of the files whose pieces were scanned and written, a list for each."""
    seen = {"scan": [], "write": []}
    write_staging, scan = conversion.write_staging, scans._scan

    def writing(shared, task):
        seen["write"] += [shared.source.files[piece.file].name for piece, _ in task.pieces]
        return write_staging(shared, task)

    def scanning(source, task):
        seen["scan"].append(source.files[task[0].file].name)
        return scan(source, task)

    monkeypatch.setattr(conversion, "write_staging", writing)
    monkeypatch.setattr(scans, "_scan", scanning)
    return seen


def test_a_mended_file_costs_its_own_tasks_alone(corpus, done):
    write(corpus, 11, 111, bad={60})
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    for names in done.values():
        assert len(set(names)) == FILES
        names.clear()
    write(corpus, 11, 111)
    assert convert(corpus).records_out == sum(range(100, 112))
    assert set(done["scan"]) == {"11.jsonl"}
    assert set(done["write"]) <= {"11.jsonl", "10.jsonl"}
    assert lines(corpus) == clean(corpus)


def test_a_file_removed_or_added_keeps_the_others(corpus, done):
    write(corpus, 11, 111, bad={60})
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    done["write"].clear()
    (corpus / "logs/11.jsonl").unlink()
    write(corpus, 12, 30)
    convert(corpus)
    assert set(done["write"]) <= {"10.jsonl", "12.jsonl"}
    assert lines(corpus) == clean(corpus)


def test_skipping_after_failing_goes_on(corpus, done):
    write(corpus, 10, 110, bad={3})
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    done["write"].clear()
    report = convert(corpus, on_error="skip")
    assert (report.rejected, report.records_in) == (1, sum(range(100, 112)))
    assert "00.jsonl" not in done["write"] and "10.jsonl" in done["write"]
    assert lines(corpus) == clean(corpus, on_error="skip")


@pytest.mark.parametrize("point", [5, 30, 60, 90])
def test_killed_and_changed_in_the_middle(corpus, point):
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=killed_at, args=(point, convert, corpus))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    write(corpus, 4, 90)
    planned = list((corpus / "raw/.jobs").glob("*/plan.json"))
    if planned:
        with pytest.raises(ConfigError, match=r"changed since.*04\.jsonl.*--restart"):
            convert(corpus)
    convert(corpus, restart=True)
    assert lines(corpus) == clean(corpus)


def test_restarting_an_unchanged_source_starts_over(corpus, done):
    write(corpus, 11, 111, bad={60})
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    done["write"].clear()
    with pytest.raises(TooManyBadRecords):
        convert(corpus, restart=True)
    assert "00.jsonl" in done["write"]


def test_a_kept_result_whose_shard_is_gone_is_made_again(corpus):
    write(corpus, 11, 111, bad={60})
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    next((corpus / "raw/data").rglob("*.parquet")).unlink()
    write(corpus, 11, 111)
    convert(corpus)
    assert geodata.verify(str(corpus / "raw"), workers=1).ok


def test_a_file_that_changes_while_it_is_read_is_refused(corpus, monkeypatch):
    read = JsonLines.read

    def reading(self, piece, *rest):
        yield from read(self, piece, *rest)
        if self.files[piece.file].name == "05.jsonl":
            with (corpus / "logs/05.jsonl").open("a") as file:
                file.write('{"n": 1}\n')

    monkeypatch.setattr(JsonLines, "read", reading)
    with pytest.raises(ConfigError, match=r"changed while it was read \(file 05\.jsonl"):
        convert(corpus)
    monkeypatch.setattr(JsonLines, "read", read)
    with pytest.raises(ConfigError, match="changed since"):
        convert(corpus)
    count = sum(len(path.read_text().splitlines()) for path in (corpus / "logs").iterdir())
    assert convert(corpus, restart=True).records_out == count > sum(range(100, 112))
    assert lines(corpus) == clean(corpus)


def test_a_conflict_of_types_that_was_mended_goes_on(corpus, done):
    with (corpus / "logs/03.jsonl").open("a") as file:
        file.write('{"n": "one"}\n')
    with pytest.raises(SchemaError, match=r"03\.jsonl"):
        convert(corpus)
    done["scan"].clear()
    write(corpus, 3, 103)
    convert(corpus)
    assert set(done["scan"]) == {"03.jsonl"}


def test_the_quarantine_survives_reruns_and_keeps_each_reason(corpus):
    for number in range(FILES):
        write(corpus, number, 100, bad={number, number + 20})
    with pytest.raises(TooManyBadRecords, match=r"more than 10 records.*invalid JSON at column 2"):
        convert(corpus, on_error="quarantine", max_errors=10)
    (folder,) = (corpus / "raw/quarantine").iterdir()
    assert list(folder.glob("task-*.jsonl"))
    report = convert(corpus, on_error="quarantine", max_errors=24)
    kept = [
        json.loads(line)
        for path in sorted((corpus / "raw/quarantine").rglob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert Counter(line["file"] for line in kept) == {f"{n:02}.jsonl": 2 for n in range(FILES)}
    assert {base64.b64decode(line["raw"]) for line in kept} == {b"{broken\n"}
    assert report.rejected == sum(report.reasons.values()) == 24
    assert report.quarantine == str(folder)
    assert not list((corpus / "raw").rglob("*.tmp"))


def test_reasons_are_few_whatever_they_say(corpus):
    for number in range(FILES):
        text = "\n".join('{"a' + "b" * n + "\n" + "[" * (n % 7) for n in range(100))
        (corpus / f"logs/{number:02}.jsonl").write_text(text + '\n{"ok": 1}\n')
    report = convert(corpus, on_error="skip")
    assert report.rejected == sum(report.reasons.values())
    assert len(report.reasons) <= 21
    assert any("column N" in reason for reason in report.reasons)


def test_reasons_fold_numbers_and_are_bounded():
    reasons = Reasons()
    reasons.add("at column 7: int64 here")
    assert reasons.to_json() == {"at column 7: int64 here": 1}
    reasons.add("at column 12: int64 here", 2)
    assert reasons.to_json() == {"at column N: int64 here": 3}
    for number in range(3000):
        reasons.add(f"'x{number}' is not in the schema")
    assert len(reasons.to_json()) <= 1001
    shown = reasons.most_common()
    assert sum(shown.values()) == reasons.total == 3003
    assert next(iter(shown)) == "at column N: int64 here"
    assert list(shown.items())[20:] == [(OTHER, 3000 - 19)]


def test_one_task_ends_beyond_the_bound_without_reading_on(corpus, monkeypatch):
    for number in range(FILES):
        write(corpus, number, 100, bad=set(range(100)))
    taken = Counter()
    parse = JsonLines.read

    def reading(self, piece, first_row, schema, labels, reject):
        def counting(bad):
            taken.update([bad.file])
            reject(bad)

        return parse(self, piece, first_row, schema, labels, counting)

    monkeypatch.setattr(JsonLines, "read", reading)
    with pytest.raises(TooManyBadRecords, match="more than 7 records"):
        convert(corpus, on_error="skip", max_errors=7)
    assert taken.total() == 8


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"a": Seen({"int64": (3, 7), "null": (0, 1)}, {"b": Seen({"list": (1, 1)}, {}, Seen())})},
        {"schema": pa.schema([pa.field("x", pa.list_(pa.float16()), metadata={"k": "v"})]), "n": 1},
        {("t", 1): [None, True, 1.5, float("inf"), b"\0\xff", {"s"}, "\udc80"]},
        {"kind": pa.fixed_shape_tensor(pa.int8(), [2, 3]), "map": pa.map_(pa.string(), pa.int8())},
    ],
)
def test_scans_are_kept_as_plain_json(columns):
    scan = Scan(5, 7, columns=columns, labels={"label": {"cat", "dog"}}, file=3)
    stored = json.loads(json.dumps(scans._encoded(scan)))
    assert scans._decoded(stored) == scan


def test_a_scan_that_holds_something_else_is_made_again(corpus, done, monkeypatch):
    scan = JsonLines.scan
    monkeypatch.setattr(planning.Planner, "samples", False)
    monkeypatch.setattr(JsonLines, "scan", lambda *a: replace(scan(*a), columns={"odd": object()}))
    monkeypatch.setattr(JsonLines, "merge", lambda *a, **k: pa.schema([("n", pa.int64())]))
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    once = len(done["scan"])
    write(corpus, 3, 103)
    with pytest.raises(TooManyBadRecords):
        convert(corpus)
    assert len(done["scan"]) == 2 * once
    assert not list(corpus.rglob("*.pkl"))
