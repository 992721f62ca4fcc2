"""Packed and encoded corpora are converted as their plain ones are, by one worker or several."""

import gzip
import json
import zipfile

import pytest

from geodata import convert
from geodata.catalog import Catalog, make_access
from geodata.errors import TooManyBadRecords
from geodata.sources import Reading
from geodata.tags import STAGING

RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах. " * 3


@pytest.fixture
def corpora(tmp_path):
    for folder in ("plain", "packed"):
        (tmp_path / folder).mkdir()
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            rows = ({"n": i, "s": "é" * (i % 50)} for i in range(30_000))
            data = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
            (tmp_path / "plain" / f"{number}.jsonl").write_bytes(data)
            (tmp_path / "packed" / f"{number}.jsonl.gz").write_bytes(gzip.compress(data, 1))
            archive.writestr(f"{number}.jsonl", data)
    return tmp_path


def _digests(root):
    catalog = Catalog(str(root), make_access(root / "audit", STAGING, "test"))
    index = catalog.index()
    return [shard.content_digest for shard in catalog.shards(index, STAGING)]


def test_all_give_the_same_shards(corpora):
    found = {}
    for name, workers in (("plain", 1), ("packed", 1), ("packed", 2), ("zipped.zip", 2)):
        dest = corpora / f"{name}-{workers}"
        report = convert(corpora / name, dest, source_id="s", workers=workers)
        assert (report.records_in, report.records_out, report.rejected) == (120_000, 120_000, 0)
        found[name, workers] = _digests(dest)
    assert found["packed", 1] == found["packed", 2]
    assert len(found["plain", 1]) == len(found["zipped.zip", 2])
    assert found["plain", 1] == found["zipped.zip", 2]


def test_recognised_encodings_are_reported(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("plain é", encoding="utf-8")
    (tmp_path / "texts" / "b.txt").write_text(RUSSIAN, encoding="cp1251")
    (tmp_path / "texts" / "c.txt").write_text("é", encoding="utf-16")
    (tmp_path / "texts" / "d.txt").write_bytes(b"5 \xb0C")
    reading = Reading(encoding="detect")
    for _ in range(2):
        report = convert(tmp_path / "texts", tmp_path / "out", reading=reading, on_error="skip")
        assert report.encodings["counts"] == {"utf-16-le": 1, "cp1251": 1}
        assert report.encodings["files"]["c.txt"] == ["utf-16-le", 1.0]
        encoding, confidence = report.encodings["files"]["b.txt"]
        assert encoding == "cp1251"
        assert 0.5 <= confidence <= 1
        assert (report.records_out, report.rejected) == (3, 1)
    assert report.unchanged
    plain = convert(tmp_path / "texts" / "a.txt", tmp_path / "plain", reading=reading)
    assert plain.encodings == {}


def test_a_truncated_file_ends_a_conversion_unless_it_may_be_skipped(tmp_path):
    data = "\n".join(json.dumps({"n": i}) for i in range(20_000)).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data)[:-10_000])
    with pytest.raises(TooManyBadRecords, match="the gzip stream ends too soon"):
        convert(tmp_path / "a.jsonl.gz", tmp_path / "out")
    report = convert(tmp_path / "a.jsonl.gz", tmp_path / "out", on_error="quarantine")
    assert report.rejected == 1
    assert report.records_in == report.records_out + 1
    assert 1_000 < report.records_out < 20_000


def test_names_in_an_archive_that_begin_at_the_root_are_converted(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("/etc/hostname", "../up.txt", "in.txt"):
            archive.writestr(name, name)
    report = convert(tmp_path / "a.zip", tmp_path / "out", workers=1)
    assert (report.records_in, report.records_out) == (3, 3)
