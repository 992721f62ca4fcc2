"""How other tools fail their users in conversion and formats, row by row; none of it happens here.

Where each row is tested, beside this file and `test_failures_formats` (in every format):

- null then typed, number then string: `sources/test_source_*`, `test_convert_and_shard`,
  `test_append_widening`, `test_newvalues` (of added columns)
- one bad image or record: `sources/test_source_images`, `test_hostile`, `test_convert_resume`
- success while children still write: `test_jobs_killed`, `executors/test_ray`
- starting from zero after a crash: `test_convert_resume`, `test_jobs_killed`, `soak/`
- append that overwrites or repeats: `test_append`, `test_append_regions`
- a duplicate tar member: `sources/test_source_webdataset_damage`, `formats/test_tarindex`
- index and shard that disagree: `test_versions`, `formats/test_tarindex`, `formats/conformance`
- row groups too large or tiny: `formats/conformance`, `formats/test_units`
- a column over 2 GiB: `sources/test_source_parquet_rows`, `formats/test_units`
- HDF5 with empty, None and NUL: `formats/conformance` and `formats/test_hdf5`
- HDF5 truncated, a second writer: `formats/conformance`, `formats/test_hdf5`, `test_jobs_killed`
- pickles in an untrusted tar: `sources/test_source_webdataset`, `sources/test_source_petastorm`
"""

import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pipeline import kill_everywhere, killed_at

import geodata
from geodata.catalog import Catalog, locate
from geodata.errors import SchemaError, TooManyBadRecords
from geodata.formats import get_format
from geodata.jobs import conversion, planning
from geodata.jobs.repair import repair
from geodata.manifest import Shard
from geodata.tags import STAGING


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def command(*arguments, code=0):
    """Run `geodata convert` and return its one JSON object."""
    child = subprocess.Popen(
        [sys.executable, "-m", "geodata.cli", "convert", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, told = child.communicate(timeout=120)
    assert child.returncode == code, out + told
    assert "Traceback" not in told
    return json.loads(out)


def lines(dest):
    catalog = Catalog.at(locate(str(dest), None), "test")
    return [shard.to_line() for shard in catalog.shards(catalog.index(), STAGING)]


def files(dest):
    return sorted(path for path in dest.glob("data/region=*/*") if not path.name.startswith("."))


def records(dest, form):
    """Return all records of a staging dataset, by key."""
    catalog = Catalog.at(locate(str(dest), None), "test")
    found = {}
    for shard in catalog.shards(catalog.index(), STAGING):
        paths = {name: dest / ref.path for name, ref in shard.files.items()}
        reader = get_format(form).open(paths["main"], paths.get("index"))
        for unit in range(len(reader.unit_slots)):
            found |= {row["__key__"]: row for row in reader.read_unit(unit).to_pylist()}
        reader.close()
    return found


def test_a_field_that_is_null_at_first_has_the_type_that_comes_later(folder, monkeypatch):
    """Row: a field is null at first and typed later (datasets#7222, arrow#40107)."""
    monkeypatch.setattr(planning, "PIECE_BYTES", 10_000)
    write(folder / "in/a.jsonl", ({"n": n, "late": None} for n in range(2000)))
    write(folder / "in/b.jsonl", ({"n": n, "late": {"x": [n, None]}} for n in range(2000)))
    report = geodata.convert("in", "out", workers=2, shard_size=30_000)
    assert (report.records_out, report.shards > 1) == (4000, True)
    assert [f["type"] for f in report.schema if f["name"] == "late"] == [
        "struct<x: list<item: int64>>"
    ]
    found = records(folder / "out", "parquet")
    assert found["in/a.jsonl#2000"]["late"] is None
    assert found["in/b.jsonl#7"]["late"] == {"x": [6, None]}


def test_a_real_conflict_names_both_types_file_and_row(folder, monkeypatch):
    """Row: a number and then a string; crash at row N."""
    monkeypatch.setattr(planning, "PIECE_BYTES", 10_000)
    write(folder / "in/a.jsonl", ({"n": n} for n in range(3000)))
    write(folder / "in/b.jsonl", ({"n": n if n < 2500 else "many"} for n in range(2600)))
    with pytest.raises(SchemaError) as caught:
        geodata.convert("in", "out", workers=1)
    told = str(caught.value)
    assert "int64" in told and "string" in told and "b.jsonl" in told and "2501" in told
    assert "many" not in told
    report = geodata.convert("in", "out", workers=1, on_error="skip")
    assert (report.records_out, report.rejected) == (5500, 100)


def test_one_bad_image_does_not_kill_the_run(folder):
    """Row: one bad image or record kills the run (datasets#6470, webdataset#205)."""
    (folder / "in").mkdir()
    for number in range(20):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"in/{number:02}.png")
    (folder / "in/13.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    with pytest.raises(TooManyBadRecords, match=r"13\.png"):
        geodata.convert("in", "out", workers=1)
    report = geodata.convert("in", "out", workers=1, on_error="quarantine")
    assert (report.records_in, report.records_out, report.rejected) == (20, 19, 1)
    (reason,) = report.reasons
    (line,) = (folder / report.quarantine / "task-000000.jsonl").read_text().splitlines()
    assert (json.loads(line)["file"], json.loads(line)["reason"]) == ("13.png", reason)
    assert "in/13.png" not in records(folder / "out", "parquet")


ODD = {"n": 7, "": 1, "__x__": 2}
ODD_RECORDS = """
def records():
    for n in range(20):
        yield {"n": n, "__x__": 1} if n == 13 else {"n": n}
"""


@pytest.mark.parametrize("source", ["in.jsonl", "in.json", "odd_records:records", "in"])
def test_a_record_with_names_that_no_column_has_does_not_kill_the_run(folder, source):
    """Row: one bad image or record kills the run; a field without a name, a table of another."""
    rows = [ODD if n == 13 else {"n": n} for n in range(20)]
    write(folder / "in.jsonl", rows)
    (folder / "in.json").write_text(json.dumps(rows))
    (folder / "odd_records.py").write_text(ODD_RECORDS)
    (folder / "in").mkdir()
    for number in range(20):
        text = "of another\n1\n" if number == 13 else f"n\n{number}\n"
        (folder / f"in/{number:02}.csv").write_text(text)
    with pytest.raises(SchemaError, match="no name|reserved|no column of this file"):
        geodata.convert(source, "out", workers=1)
    report = geodata.convert(source, "out", workers=1, on_error="skip")
    assert (report.records_in, report.records_out, report.rejected) == (20, 19, 1)
    assert sorted(row["n"] for row in records(folder / "out", "parquet").values()) == [
        *range(13),
        *range(14, 20),
    ]


DYING = """
import os, pathlib, signal

def records(part, parts):
    for n in range(50):
        yield {"part": part, "n": n}
    if part == 2 and pathlib.Path("die").exists() and pathlib.Path("out/.jobs").exists():
        if list(pathlib.Path("out/.jobs").glob("*/plan.json")):
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_died_is_an_error_and_no_version(folder):
    """Row: success is reported while children still write, or one wrote an empty index."""
    (folder / "dying.py").write_text(DYING)
    (folder / "die").touch()
    given = ("dying:records", "out", "--parts", "4", "--workers", "2", "--shard-size", "100")
    error = command(*given, code=4)
    assert (error["error"], error["message"]) == ("StoreError", "a worker process died")
    assert not list(folder.glob("out/metadata/v*"))
    (folder / "die").unlink()
    report = command(*given)
    assert report["records_in"] == report["records_out"] == 200
    before = [
        (path, path.stat().st_mtime_ns, path.stat().st_size) for path in files(folder / "out")
    ]
    assert geodata.verify(str(folder / "out"), workers=1).ok
    assert before == [(p, p.stat().st_mtime_ns, p.stat().st_size) for p in files(folder / "out")]
    assert not list(folder.rglob("out/**/*.tmp"))


def into_parquet(root, dest="out"):
    return geodata.convert(root / "in", root / dest, workers=1, shard_size=15_000)


def crashed(root):
    """Kill a conversion when it has done a few of its tasks; return their results."""
    context = multiprocessing.get_context("fork")
    for point in range(40, 400, 6):
        victim = context.Process(target=killed_at, args=(point, into_parquet, root))
        victim.start()
        victim.join(60)
        assert victim.exitcode == -signal.SIGKILL
        (job,) = (root / "out/.jobs").iterdir()
        results = [json.loads(path.read_bytes()) for path in job.glob("task-*.json")]
        if len(results) > 3:
            return results
        shutil.rmtree(root / "out")
    raise AssertionError("it never got so far")


def test_after_a_crash_only_what_is_missing_is_done(folder, monkeypatch):
    """Row: a crash in hour 4 means starting from zero (litdata#137, img2dataset#452)."""
    monkeypatch.setattr(planning, "PIECE_BYTES", 10_000)
    for number in range(10):
        write(folder / f"in/{number}.jsonl", ({"n": n, "t": "x" * 50} for n in range(200)))
    into_parquet(folder, "clean")
    results = crashed(folder)
    found = [Shard.from_line(line) for result in results for line in result["shards"]]
    done = [folder / "out" / ref.path for shard in found for ref in shard.files.values()]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in done]
    written = []
    write_staging = conversion.write_staging

    def writing(shared, task):
        written.append(task.number)
        return write_staging(shared, task)

    monkeypatch.setattr(conversion, "write_staging", writing)
    assert into_parquet(folder).records_out == 2000
    assert len(written) == 10 - len(results)
    assert before == [(path.stat().st_ino, path.stat().st_mtime_ns) for path in done]
    assert lines(folder / "out") == lines(folder / "clean")


def tarred(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_duplicate_tar_member_is_one_error_and_can_be_skipped(folder):
    """Row: a duplicate tar member raises a second error (webdataset#286)."""
    members = [(f"{n:03}.txt", b"text") for n in range(10)]
    tarred(folder / "in.tar", [*members[:5], members[4], *members[5:]])
    with pytest.raises(TooManyBadRecords, match=r"in\.tar") as caught:
        geodata.convert("in.tar", "out", workers=1)
    assert "004" in str(caught.value)
    report = geodata.convert("in.tar", "out", workers=1, on_error="skip")
    assert (report.records_out, report.rejected) == (9, 1)
    assert "in.tar/004" not in records(folder / "out", "parquet")


def test_index_and_shard_that_disagree_are_found_and_mended(folder):
    """Row: index and shard disagree (streaming#677, #399, litdata#720)."""
    write(folder / "in.jsonl", ({"n": n} for n in range(300)))
    geodata.convert("in.jsonl", "out", format="webdataset", workers=1, shard_size=60_000)
    indexes = [path for path in files(folder / "out") if path.suffix != ".tar"]
    before = lines(folder / "out")
    indexes[0].write_bytes(indexes[0].read_bytes()[:-100])
    assert not geodata.verify("out", workers=1).ok
    repair("out", workers=1)
    assert geodata.verify("out", workers=1).ok
    assert lines(folder / "out") == before
    assert len(records(folder / "out", "webdataset")) == 300


def test_row_groups_are_bounded_by_bytes(folder):
    """Row: row groups too large (OOM) or tiny (one GET each) (datasets#6701)."""
    sizes = [100] * 3000 + [3_000_000] * 5 + [50_000] * 200 + [20_000_000]
    write(folder / "in.jsonl", ({"n": n, "v": "y" * size} for n, size in enumerate(sizes)))
    geodata.convert("in.jsonl", "out", workers=1)
    groups = []
    for path in folder.glob("out/data/region=*/*.parquet"):
        file = pq.ParquetFile(path)
        groups += [file.read_row_group(n) for n in range(file.num_row_groups)]
    assert sum(group.num_rows for group in groups) == len(sizes)
    assert all(group.nbytes <= 9 << 20 or group.num_rows == 1 for group in groups)
    assert len(groups) <= 12


def test_a_column_of_more_than_2_gib_is_split(folder):
    """Row: a string/binary column over 2 GiB: offset overflow (datasets#6206, ray#29492)."""
    long = pa.array(["x" * (8 << 20)])
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(264, np.int32)), long)
    pq.write_table(pa.table({"v": words}), folder / "in.parquet", store_schema=False)
    report = geodata.convert("in.parquet", "out", workers=2, shard_size=1 << 30)
    assert (report.records_out, report.shards) == (264, 3)
    slots = [json.loads(line)["live"] for line in lines(folder / "out")]
    assert sum(slots) == 264 and max(slots) <= 128


@pytest.mark.parametrize("form", ["parquet", "webdataset", "hdf5", "tfrecord"])
def test_empty_none_and_nul_are_distinct(folder, form):
    """Row: HDF5: an empty item unreadable, None rejected, NUL bytes fail (h5py#2083, #379)."""
    values = ["", None, "\0", "a\0b", "\0" * 100, "a", "a\0"]
    lists = [[], None, [""], [None], ["\0", None, ""], ["a"], [None, None]]
    pairs = zip(values, lists, strict=True)
    rows = [{"v": value, "list": items, "text": value} for value, items in pairs]
    write(folder / "in.jsonl", rows)
    geodata.convert("in.jsonl", "out", format=form, workers=1)
    found = records(folder / "out", form)
    for number, row in enumerate(rows, 1):
        assert {name: found[f"in.jsonl#{number}"][name] for name in row} == row


def into_hdf5(root):
    geodata.convert(root / "in.jsonl", root / "out", format="hdf5", workers=1, shard_size=8_000)


def test_hdf5_is_whole_or_not_there_whenever_the_writer_is_killed(folder):
    """Row: HDF5 truncated after a crash; a second writer ruins the file (h5py#1807, #370)."""
    write(folder / "in.jsonl", ({"n": n, "t": "x" * (n % 90)} for n in range(300)))
    into_hdf5(folder)
    expected = lines(folder / "out")
    shutil.rmtree(folder / "out")

    def check():
        assert lines(folder / "out") == expected
        assert geodata.verify(str(folder / "out"), workers=1).ok
        shutil.rmtree(folder / "out")

    assert kill_everywhere(folder, into_hdf5, check, step=9) > 20
    shutil.rmtree(folder / "out", ignore_errors=True)
    into_hdf5(folder)
    path = files(folder / "out")[0]
    path.write_bytes(path.read_bytes()[:-500])
    assert not geodata.verify(str(folder / "out"), workers=1).ok


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize("suffix", ["pkl", "pickle", "pyd", "pt", "pth", "npy"])
def test_no_pickle_is_ever_run(folder, suffix):
    """Row: reading an untrusted tar runs pickles (webdataset#490)."""
    trap = pickle.dumps(Trap())
    if suffix == "npy":
        file = io.BytesIO()
        np.save(file, np.array([Trap()], dtype=object), allow_pickle=True)
        trap = file.getvalue()
    tarred(folder / "in.tar", [("a.txt", b"good"), ("b.txt", b"bad"), (f"b.{suffix}", trap)])
    with pytest.raises(TooManyBadRecords, match=r"in\.tar"):
        geodata.convert("in.tar", "out", workers=1)
    report = geodata.convert("in.tar", "out", workers=1, on_error="quarantine")
    assert (report.records_out, report.rejected) == (1, 1)
    assert not (folder / "trapped").exists()
