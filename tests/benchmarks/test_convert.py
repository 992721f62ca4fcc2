"""The benchmark of conversions: who is measured has written every record, or is named."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.convert import sources_below
from benchmarks.corpus import make
from benchmarks.workloads import WORKLOADS
from benchmarks.writers import WRITERS, Source
from geodata.formats import FORMATS


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpora")
    make(WORKLOADS["img"], root, 120, None)
    make(WORKLOADS["txt"], root, 300, None)
    lines = [{"code": f"{n}", "place": None if n % 3 else "x", "north": n / 7} for n in range(200)]
    (root / "places.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def test_corpora_are_found_and_counted(corpora):
    found = {source.name: (source.records, source.images) for source in sources_below(corpora)}
    assert found == {"img": (120, True), "txt": (300, False), "places": (200, False)}
    places = Source("places", corpora / "places.jsonl", 200)
    assert places.first() == {"code": "199", "place": "x", "north": 199 / 7}
    parts = [record["code"] for part in range(3) for record in places.read(part, 3)]
    assert sorted(map(int, parts)) == list(range(200))


def test_every_writer_writes_all_or_is_named(corpora, tmp_path):
    path = tmp_path / "found.json"
    options = f"--corpus {corpora} --workers 1,2 --repeat 1 --json {path} --dir {tmp_path}"
    subjects = "plain copy,geodata/parquet,geodata/webdataset,webdataset,mosaicml,hf-datasets"
    found = CliRunner().invoke(main, ["convert", *options.split(), "--subjects", subjects])
    assert found.exit_code == 0, found.output
    rows = {(r["workload"], r["subject"]): r for r in json.loads(path.read_text())["rows"]}
    for source in ("img", "txt", "places"):
        for workers in (1, 2):
            row = rows[f"{source} convert w{workers}", "geodata/parquet"]
            assert row["status"] == "ok" and row["value"] > 0
        assert rows[f"{source} convert w1", "webdataset"]["value"] > 0
        assert (f"{source} convert w2", "webdataset") not in rows
    statuses = {row["status"] for row in rows.values()}
    assert not any(status.startswith(("WRONG", "failed")) for status in statuses), statuses
    assert "img: geodata/parquet, 1 to 2 workers:" in found.output


def test_a_writer_that_is_not_known_is_refused(corpora):
    found = CliRunner().invoke(main, ["convert", "--corpus", str(corpora), "--subjects", "nobody"])
    assert found.exit_code == 2 and "plain copy" in found.output
    assert set(WRITERS) >= {"plain copy", *(f"geodata/{form}" for form in FORMATS)}
