"""Whoever is measured has handed over the whole corpus, and whoever is missing is named."""

import json
import os
import subprocess
import time
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.corpus import make
from benchmarks.io import Run, serious
from benchmarks.measure import run
from benchmarks.peers import PEERS, load, missing, names
from benchmarks.results import Results
from benchmarks.workloads import WORKLOADS, Tally, open_corpus
from geodata.errors import MissingExtra
from geodata.formats import FORMATS

COUNTS = {"img": 300, "txt": 1_500}
FORMS = {"img": list(FORMATS)[1::2], "txt": list(FORMATS)[::2]}


@pytest.fixture(scope="module", params=list(WORKLOADS))
def corpus(request, tmp_path_factory):
    """A small corpus of either kind."""
    name = request.param
    made, _about = make(WORKLOADS[name], tmp_path_factory.mktemp(name), COUNTS[name], None)
    return made


def rows_of(report, row):
    """Return the rows of one measure by subject."""
    return {found["subject"]: found for found in report["rows"] if found["workload"] == row}


def test_every_subject_hands_over_the_whole_corpus_or_is_named_as_missing(corpus, tmp_path):
    name, path = corpus.workload.name, tmp_path / "found.json"
    workers = {"img": 0, "txt": 2}[name]
    options = f"--workload {name} --workers {workers} --formats {','.join(FORMS[name])}"
    where = f"--corpus {corpus.folder.parent} --json {path} --dir {tmp_path}"
    found = CliRunner().invoke(main, f"io --smoke {options} {where}".split())
    assert found.exit_code == 0, found.output
    assert list(tmp_path.iterdir()) == [path]
    report = json.loads(path.read_text())
    check_samples(report, found.stdout, corpus)
    check_rates(report, corpus, ["read w0", "decode w0"] if name == "img" else ["read w2"])
    check_form(report, found.stdout)


def check_samples(report, printed, corpus):
    """Every subject read equally much, or is named as missing."""
    expected, name = corpus.tally(), corpus.workload.name
    assert expected.samples == COUNTS[name]
    samples = rows_of(report, f"{name} check samples")
    assert list(samples) == names(FORMS[name], list(PEERS))
    for subject, row in samples.items():
        if package := missing(subject):
            assert (row["value"], row["status"]) == (None, f"not installed: {package}")
            assert any(x.startswith(subject) and x.endswith(package) for x in printed.split("\n"))
        else:
            assert (row["value"], row["status"]) == (expected.samples, "ok")
            assert rows_of(report, f"{name} check bytes")[subject]["value"] == expected.nbytes


def check_rates(report, corpus, kinds):
    """Every subject that is there has a rate of every kind."""
    name = corpus.workload.name
    subjects = names(FORMS[name], list(PEERS))
    there = {subject for subject in subjects if missing(subject) is None}
    for kind in kinds:
        for measure in (kind, f"{kind} epoch", f"{kind} first batch", f"{kind} cpu"):
            rows = rows_of(report, f"{name} {measure}")
            assert {subject for subject, row in rows.items() if row["value"]} == there
            assert all(row["low"] == row["high"] for row in rows.values() if row["value"])
    assert set(rows_of(report, f"{name} convert")) == set(subjects) - {"files"}
    sharded = rows_of(report, f"{name} convert + shard")
    assert [subject for subject, row in sharded.items() if row["value"]] == names(FORMS[name], [])
    for row in rows_of(report, f"{name} convert output").values():
        assert row["value"] > 0.3 * corpus.tally().nbytes


def check_form(report, printed):
    """The report is of the one form of all benchmarks."""
    assert set(report) == {"machine", "versions", "notes", "rows", "goals"}
    assert report["versions"]["h5py"] != "not installed"
    fields = "workload subject value unit low high runs status".split()
    assert all(list(row) == fields for row in report["rows"])
    assert any(row["unit"] == "ratio" for row in report["rows"])
    assert all(note in printed for note in report["notes"])
    assert report["goals"] == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_corpus_comes_again(name, tmp_path):
    first, _about = make(WORKLOADS[name], tmp_path / "a", 40, None)
    again, _about = make(WORKLOADS[name], tmp_path / "b", 40, None)
    assert list(first.samples()) == list(again.samples())
    assert open_corpus(tmp_path / "a", name) == first


def test_images_are_as_large_as_told_and_of_ten_classes(tmp_path):
    from PIL import Image

    made, about = make(WORKLOADS["img"], tmp_path, 60, None)
    found = list(made.samples())
    assert {label for _data, label in found} == set(range(10))
    assert 22_000 < median(len(data) for data, _label in found) < 32_000
    with Image.open(made.images()[0][0]) as image:
        assert image.size == (224, 224)
    assert "2 pictures" in about


def test_documents_are_as_large_as_told(tmp_path):
    made, _about = make(WORKLOADS["txt"], tmp_path, 500, None)
    sizes = [len(text.encode()) for text, _label in made.samples()]
    assert min(sizes) > 590 and max(sizes) <= 1_800
    assert 1_050 < median(sizes) < 1_350


def test_a_corpus_of_given_pictures_and_texts(tmp_path):
    from PIL import Image

    for number in range(3):
        Image.effect_noise((200, 160), 90).save(tmp_path / f"{number}.png")
    Image.new("RGB", (20, 20)).save(tmp_path / "tiny.png")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (tmp_path / "text.txt").write_text("\n".join(f"line {number}" for number in range(900)))
    for workload in WORKLOADS:
        arguments = ["corpus", workload, str(tmp_path / "made"), "--count=12", f"--from={tmp_path}"]
        found = CliRunner().invoke(main, arguments)
        assert found.exit_code == 0, found.output
        assert found.output.startswith(f"12 {WORKLOADS[workload].samples}, median ")
        assert "3 pictures" in found.output or "900 lines" in found.output
    assert "is there already" in CliRunner().invoke(main, arguments).output


def test_a_reading_that_lacks_a_sample_fails_the_run(corpus, tmp_path):
    expected = corpus.tally()
    expected.samples += 1
    results = Results()
    Run(corpus, expected, ["files"], [0], 1, tmp_path, results).all()
    name = corpus.workload.name
    statuses = {row.workload: (row.value, row.status) for row in results.rows(["files"])}
    value, status = statuses[f"{name} check samples"]
    assert value is None and status.startswith("WRONG: ") and serious("files", status)
    assert statuses[f"{name} read w0"] == (None, status)


@pytest.mark.parametrize(("slow", "runs"), [(0, 1), (600, 2)])
def test_what_is_slow_is_measured_once(corpus, tmp_path, monkeypatch, slow, runs):
    monkeypatch.setattr("benchmarks.io.SLOW_SECONDS", slow)
    results, name = Results(), corpus.workload.name
    Run(corpus, corpus.tally(), ["h5py"], [0], 2, tmp_path, results).all()
    found = {row.workload: (row.runs, row.status) for row in results.rows(["h5py"])}
    assert found[f"{name} convert"] == found[f"{name} read w0"] == (runs, "ok")
    assert found[f"{name} check samples"] == (1, "ok")


def test_equal_sums_of_other_bytes_are_not_the_same_samples():
    tallies = [Tally() for _ in range(3)]
    for tally, payloads in zip(
        tallies, (["ä", "b"], [b"b", "ä".encode()], ["ä", "c"]), strict=True
    ):
        for payload in payloads:
            tally.add(payload)
    assert tallies[0].same_samples(tallies[1])
    assert not tallies[0].same_samples(tallies[2])


def crash():
    """End without a word."""
    print("on my way out")
    os._exit(3)


def lack():
    """Need an extra."""
    raise MissingExtra.of("nothing", "none")


def stumble():
    """Fail as a worker of a DataLoader does."""
    raise ValueError("Caught ValueError in worker 0.\nTraceback\nValueError: the reason")


def hang(path: Path):
    """Start a process, and never end."""
    path.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    time.sleep(600)


def test_a_measurement_that_crashes_or_fails_is_named(tmp_path):
    def status(task):
        return run(task, limit=60, scratch=tmp_path).status

    assert "ended with 3" in status(crash)
    assert status(lack).startswith("not installed: ")
    assert status(stumble) == "failed: ValueError: ValueError: the reason"


def test_a_measurement_ends_at_its_limit_with_all_its_children(tmp_path):
    outcome = run(hang, tmp_path / "pid", limit=3, scratch=tmp_path)
    assert outcome.status == "failed: not done after 3 s"
    child = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    deadline = time.monotonic() + 20
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_medians_ranges_and_ratios_to_the_best_peer():
    results = Results()
    for value in (30.0, 10.0, 20.0):
        results.add("img read w0", "geodata/parquet", "samples/s", value)
    for subject, value in (("files", 10.0), ("h5py", 40.0), ("litdata", 90.0)):
        results.add("img read w0", subject, "samples/s", value)
    results.fault("img read w0", "litdata", "samples/s", "WRONG: 1")
    subjects = ["geodata/parquet", "files", "h5py", "litdata"]
    ours, _files, _h5py, lit = results.rows(subjects)
    assert (ours.value, ours.low, ours.high, ours.runs) == (20, 10, 30, 3)
    assert (lit.value, lit.status) == (None, "WRONG: 1")
    ratios = {row.subject: row.value for row in results.ratios(subjects)}
    assert ratios == {"geodata/parquet / files": 2.0, "geodata/parquet / h5py": 0.5}
    (goal,) = results.goals(subjects)
    assert (goal.name, goal.value) == ("img read w0, geodata/parquet / h5py", 0.5)
    assert not goal.holds


def test_our_convert_and_shard_stand_beside_the_peers_convert():
    results = Results()
    results.add("txt convert", "h5py", "samples/s", 50.0)
    results.add("txt convert + shard", "geodata/parquet", "samples/s", 100.0)
    subjects = ["geodata/parquet", "h5py"]
    beside = results.beside("txt convert + shard", subjects)
    assert [(row.subject, row.value) for row in beside] == [("h5py", 50), ("geodata/parquet", 100)]
    (row,) = results.ratios(subjects)
    assert (row.workload, row.value) == ("txt convert + shard ratio", 2.0)


def test_unknown_names_and_missing_corpora_are_mistakes_of_the_user(tmp_path):
    def told(*arguments):
        found = CliRunner().invoke(main, ["io", *arguments])
        assert found.exit_code in (1, 2) and isinstance(found.exception, SystemExit)
        return found.output

    assert "no 'ffcv'; known: files, " in told("--peers=files,ffcv")
    assert "known: parquet, " in told("--formats=petastorm")
    assert "numbers with commas" in told("--workers=two")
    assert "Make one: python -m benchmarks corpus img" in told(f"--corpus={tmp_path}")


def test_bars_are_drawn(tmp_path):
    from benchmarks.table import plot

    results = Results()
    results.add("img read w0 epoch", "geodata/parquet", "samples/s", 2.0)
    results.add("img convert", "h5py", "samples/s", 1.0)
    plot(results, ["geodata/parquet", "h5py"], tmp_path / "bars.png", "a caption")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_every_installed_peer_loads():
    for name in PEERS:
        if missing(name) is None:
            assert hasattr(load(name), "batches")


def test_the_benchmarks_are_listed():
    listed = CliRunner().invoke(main, ["list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == ["convert", "io", "language"]
    told = CliRunner().invoke(main, ["--help"]).output
    assert all(f"\n  {name} " in told for name in ("convert", "corpus", "letters", "list"))
