"""Real corpora through convert and shard in both formats: every byte comes back.

`pytest -m soak -n 0 -s tests/soak/test_corpora.py --corpora DIR`, where DIR holds `text/`,
`images/` and `tabular/`.
"""

import csv
import gc
import hashlib
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import webdataset

import geodata
from geodata.config import load_config

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = """
dataset: {{name: corpus, root: data/corpus}}
here: eu-central
regions:
  eu-central: {{jurisdiction: DE}}
  us-east: {{jurisdiction: US}}
  ap-northeast: {{jurisdiction: JP}}
tagging:
  region: {region}
  unknown: eu-central
  rules: [{{when: {{region: known}}, tag: {{data_category: NonPersonalData}}}}]
"""

BY_LANGUAGE = (
    '{pattern: "^text/([a-z]+)", '
    "map: {eu-central: [de, fr, it, nl, pt], us-east: [en], ap-northeast: [ja, ko]}}"
)
BY_COUNTRY = "{field: country, map: {eu-central: [DE, FR, NO], us-east: [US], ap-northeast: [JP]}}"
FORMATS = ["parquet", "webdataset"]


@pytest.fixture
def corpora(request, tmp_path, monkeypatch):
    """The folder of real corpora; the working directory is empty."""
    given = request.config.getoption("--corpora")
    if given is None:
        pytest.fail("say where the corpora are: --corpora DIR")
    monkeypatch.chdir(tmp_path)
    return Path(given)


def through(source, form, region, **options):
    """Convert and shard a corpus, verify both, and return the config and the report."""
    done = geodata.convert(source, "data/raw", format=form, on_error="quarantine", **options)
    assert done.records_in == done.records_out + done.rejected
    Path("geodata.yaml").write_text(CONFIG.format(region=region))
    config = load_config(Path("geodata.yaml"))
    report = geodata.shard("data/raw", config=config, shard_size=16 << 20)
    assert report.records_out == done.records_out
    assert all(geodata.verify(name, config=config).ok for name in ("data/raw", "corpus"))
    print(
        f"\n{source.name} {form}: {done.records_in} in, {done.records_out} out, "
        f"{done.rejected} rejected, {report.shards} shards, "
        f"{done.bytes_in} -> {report.bytes_out} bytes"
    )
    return config, done


def stock_records(config, form, column, member=None):
    """Yield (key, bytes) as the format's own library reads them."""
    for item in geodata.list_files("corpus", config=config).shards:
        if form == "parquet":
            table = pq.read_table(item.file, columns=["__key__", column])
            for row in table.to_pylist():
                value = row[column]
                yield row["__key__"], value.encode() if isinstance(value, str) else value
        else:
            for sample in webdataset.WebDataset(item.file, shardshuffle=False):
                record = json.loads(sample["json"])
                found = [v for k, v in sample.items() if k in member]
                yield record["__key__"], found[0] if found else b""
    gc.collect()


@pytest.mark.parametrize("form", FORMATS)
def test_text(corpora, form):
    config, done = through(corpora / "text", form, BY_LANGUAGE)
    expected = {
        f"text/{path.relative_to(corpora / 'text').as_posix()}": path.read_bytes()
        for path in (corpora / "text").rglob("*.txt")
    }
    assert dict(stock_records(config, form, "text", {"txt"})) == expected
    assert done.rejected == 0


@pytest.mark.parametrize("form", FORMATS)
def test_images(corpora, form):
    config, done = through(corpora / "images", form, "{constant: us-east}")
    files = [p for p in (corpora / "images").rglob("*") if p.is_file()]
    expected = {
        f"images/{p.relative_to(corpora / 'images').as_posix()}": digest(p.read_bytes())
        for p in files
    }
    kinds = {"png", "jpg", "webp", "gif", "bmp", "tif", "bin"}
    found = {key: digest(data) for key, data in stock_records(config, form, "image", kinds)}
    assert found.items() <= expected.items()
    assert len(found) == done.records_out == len(expected) - done.rejected
    assert sum(done.reasons.values()) == done.rejected
    names = geodata.inspect("corpus", config=config).labels["label"]
    assert names == sorted({key.split("/")[1] for key in found}, key=str.encode)


@pytest.mark.parametrize("form", FORMATS)
def test_airports(corpora, form):
    source = corpora / "tabular/airports.csv"
    config, done = through(source, form, BY_COUNTRY)
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (done.records_in, done.rejected) == (len(rows), 0)
    expected = Counter(row["name"] for row in rows)
    if form == "parquet":
        found = Counter(
            name or ""
            for item in geodata.list_files("corpus", config=config).shards
            for name in pq.read_table(item.file)["name"].to_pylist()
        )
        assert found == expected


def digest(data):
    return hashlib.sha256(data).hexdigest()
