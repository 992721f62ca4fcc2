"""The demo: its corpora, and the whole tour with a shorter run."""

from __future__ import annotations

import csv
import json
import re
import socket
import time

import pytest

from train.demo import corpus, tour
from train.demo.countries import country_of
from train.demo.server import region_redis


def test_the_messages_are_real_text_without_names_of_people(tmp_path):
    path = tmp_path / "corpus/messages.jsonl"
    count = corpus.write_messages(path)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(records) == count > 3_000
    assert len({record["locale"] for record in records}) > 90
    assert {"core", "admin", "auth"} < {record["catalogue"] for record in records}
    japanese = next(r for r in records if r["locale"] == "ja" and r["catalogue"] == "auth")
    assert japanese["country"] == "JP"
    assert "パーミッション" in japanese["text"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", japanese["published"])
    sizes = sorted(len(record["text"].encode()) for record in records)
    assert 900 < sizes[len(sizes) // 2] < 1_300
    assert not any("Language-Team" in record["text"] for record in records)
    before = path.stat().st_mtime_ns
    corpus.write_messages(path)
    assert path.stat().st_mtime_ns == before


def test_every_locale_has_its_country(tmp_path):
    corpus.write_messages(tmp_path / "messages.jsonl")
    lines = (tmp_path / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    homeless = {r["locale"] for r in map(json.loads, lines) if r["country"] is None}
    assert homeless <= {"eo", "ia", "io"}
    assert [country_of(x) for x in ("pt", "pt_BR", "zh_Hans", "eo")] == ["PT", "BR", "CN", None]


def test_a_po_file_is_read_as_gettext_reads_it(tmp_path):
    file = tmp_path / "django.po"
    file.write_text(
        'msgid ""\nmsgstr ""\n"PO-Revision-Date: 2024-05-22 11:46-0300\\n"\n\n'
        '#, python-format\nmsgctxt "verb"\nmsgid "a"\nmsgstr "one \\"quoted\\"\\n"\n"two"\n\n'
        'msgid "b"\nmsgid_plural "bs"\nmsgstr[0] "x"\nmsgstr[1] "y"\n\n'
        'msgid "untranslated"\nmsgstr ""\n\n#~ msgid "old"\n#~ msgstr "gone"\n',
        encoding="utf-8",
    )
    header, *messages = corpus.messages(file)
    assert corpus.published(header) == "2024-05-22"
    assert messages == ['one "quoted"\ntwo', "x", "y"]


def test_the_airports_are_a_table(tmp_path):
    count = corpus.write_airports(tmp_path / "airports.csv")
    with (tmp_path / "airports.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count > 20_000
    assert next(row for row in rows if row["icao"] == "EDDF")["country"] == "DE"


def test_a_folder_of_someone_elses_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert tour.run(tmp_path) == 2
    assert "neither empty nor of an earlier demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_tour_is_given_and_can_be_given_again(tmp_path, capfd, monkeypatch):
    quick = tour.CONFIG.replace("steps: 360", "steps: 8").replace("n_layer: 3", "n_layer: 1")
    quick = quick.replace("log_every: 40", "log_every: 1").replace("length: 256", "length: 64")
    quick = quick.replace("n_embd: 128", "n_embd: 16")
    monkeypatch.setattr(tour, "CONFIG", quick)
    monkeypatch.setattr(tour, "STOP_AT", 3)
    for again in (False, True):
        assert tour.run(tmp_path / "demo") == 0
        shown, told = capfd.readouterr()
        assert "$ geodata convert corpus/messages.jsonl data/raw" in shown
        assert shown.count("$ python -m train geodata.yaml") == 2
        assert "exit code 75" in shown
        assert "resumed from step" in told
        assert "may not read" in told
        summary = shown[shown.index("── Summary") :]
        assert re.search(r"messages  eu-central +[\d,]+ +[\d,]+ +\d+", summary)
        first, last = map(float, re.search(r"bits per byte +([\d.]+) → ([\d.]+)", summary).groups())
        assert last < first
        assert ("nothing to do" in shown) == again


def test_the_regions_redis_ends_with_the_demo(tmp_path, capsys):
    with region_redis(tmp_path) as url:
        assert url is not None, capsys.readouterr().out
        host, port = url.removeprefix("redis://").split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
    for _attempt in range(500):
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    pytest.fail("the server goes on")


@pytest.mark.parametrize("package", ["django", "airportsdata", "sklearn"])
def test_a_missing_package_names_the_command(tmp_path, capsys, monkeypatch, package):
    found = corpus.find_spec
    monkeypatch.setattr(corpus, "find_spec", lambda name: None if name == package else found(name))
    assert tour.run(tmp_path / "demo") == 2
    assert (
        f'{package} is not installed. pip install "geodata-train[demo]"' in capsys.readouterr().err
    )
