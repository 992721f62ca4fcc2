"""Where a corpus and its dataset lie, and what names that has."""

import os

import pytest

import geodata
from geodata.errors import ConfigError, StoreError


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/rows.jsonl").write_text('{"x": 1}\n')
    return tmp_path


def test_one_corpus_is_one_however_its_path_is_spelled(corpus, monkeypatch):
    monkeypatch.chdir(corpus / "a")
    done = geodata.convert("../a/rows.jsonl", "../raw", workers=1)
    assert done.source == str(corpus / "a/rows.jsonl")
    monkeypatch.chdir(corpus)
    assert geodata.convert("a/rows.jsonl", "raw", workers=1).unchanged


@pytest.mark.parametrize("dest", ["a/rows.jsonl", "a/rows.jsonl/raw"])
def test_a_destination_that_is_a_file_is_refused(corpus, dest):
    with pytest.raises(ConfigError, match=r"to be a folder, and this is a file .*rows\.jsonl\)"):
        geodata.convert(corpus / "a/rows.jsonl", corpus / dest, workers=1)


def test_a_destination_of_too_long_a_name_is_told(corpus):
    with pytest.raises(StoreError, match="File name too long"):
        geodata.convert(corpus / "a/rows.jsonl", corpus / ("x" * 300), workers=1)


def test_a_corpus_below_a_name_that_is_not_utf8_is_converted(corpus):
    there = os.fsdecode(os.fsencode(corpus) + b"/a\xff")
    os.rename(corpus / "a", there)  # noqa: PTH104
    for unchanged in (False, True):
        done = geodata.convert(f"{there}/rows.jsonl", corpus / "raw", workers=1)
        assert (done.records_out, done.unchanged) == (1, unchanged)
        assert done.source == rf"{corpus}/a\xff/rows.jsonl"
