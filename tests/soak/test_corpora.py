"""Real corpora through every format, both steps, both cache tiers and training: every byte back.

`pytest -m soak -n 0 -s tests/soak/test_corpora.py --corpora DIR`, where DIR holds `text/`,
`images/`, `tabular/` and, for what is skipped otherwise, `photos/`, `sprites/`, `flags/`, `audio/`.
"""

import csv
import gc
import gzip
import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from redis_servers import serving
from stock import stock_records

import geodata
from geodata.config import load_config
from geodata.formats import FORMATS
from geodata.loader import build_loader

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = """
dataset: {{name: corpus, root: data/corpus}}
here: eu-central
regions:
  eu-central:
    jurisdiction: DE
    root: disks/eu
    cache: {{nvme: cache/0, size: 4GiB, redis: embedded}}
  us-east: {{jurisdiction: US, root: disks/us}}
  ap-northeast: {{jurisdiction: JP}}
tagging:
  region: {region}
  unknown: eu-central
  rules:
    - {{when: {{region: known}}, tag: {{data_category: NonPersonalData}}}}
    - {{when: {{region: unknown}}, tag: {{data_category: NonPersonalData}}}}
loader: {{global_batch: 8, split: {{heldout: 0.05}}, {tensors}}}
train: {{steps: 3, model: {model}, eval: {{steps: 2}}}}
"""

BY_LANGUAGE = (
    '{pattern: "^text/([a-z]+)", '
    "map: {eu-central: [de, fr, it, nl, pt], us-east: [en], ap-northeast: [ja, ko]}}"
)
BY_COUNTRY = "{field: country, map: {eu-central: [DE, FR, NO], us-east: [US], ap-northeast: [JP]}}"
EVERYWHERE = '{pattern: "(.)$", map: {us-east: [a, b, c, d], ap-northeast: [g]}}'
TEXT = "text: {length: 64}"
IMAGES = "image: {size: 32, crop: random}, on_error: skip"
GPT2 = "{kind: gpt2, config: {n_layer: 1, n_head: 1, n_embd: 16, n_positions: 64}}"
RESNET = (
    "{kind: resnet, norm: group, config: "
    "{embedding_size: 8, hidden_sizes: [8, 8], depths: [1, 1], layer_type: basic}}"
)
NEXT = dict(zip(FORMATS, [*FORMATS, *FORMATS][1:], strict=False))


@pytest.fixture
def corpora(request, tmp_path, monkeypatch):
    """The folder of real corpora; the working directory is empty."""
    given = request.config.getoption("--corpora")
    if given is None:
        pytest.fail("say where the corpora are: --corpora DIR")
    monkeypatch.chdir(tmp_path)
    return Path(given)


def through(source, form, region, tensors=TEXT, model=GPT2, **options):
    """Convert a corpus to a format, shard it in that and in the next one, and verify all three."""
    done = geodata.convert(source, "data/raw", format=form, on_error="quarantine", **options)
    assert done.records_in == done.records_out + done.rejected
    settings = {"region": region, "tensors": tensors, "model": model}
    Path("geodata.yaml").write_text(CONFIG.format(**settings))
    config = load_config(Path("geodata.yaml"))
    report = geodata.shard("data/raw", config=config, shard_size=16 << 20)
    other = geodata.shard("data/raw", "data/other", config=config, format=NEXT[form])
    assert report.records_out == other.records_out == done.records_out
    for name in ("data/raw", "corpus", "data/other"):
        assert geodata.verify(name, config=config).problems == []
    print(
        f"\n{source.name} {form}: {done.records_in} in, {done.records_out} out, "
        f"{done.rejected} rejected, {report.shards} shards, "
        f"{done.bytes_in} -> {report.bytes_out} bytes ({NEXT[form]} {other.bytes_out})"
    )
    return config, done


def files_of(config, reference):
    return [shard.file for shard in geodata.list_files(reference, config=config).shards]


def check_stock(config, form, column, expected):
    """Compare what the stock readers of both formats see with {key: bytes or digest}."""
    for reference, own in (("corpus", form), ("data/other", NEXT[form])):
        found = Counter()
        for file in files_of(config, reference):
            for key, data in stock_records(own, file, column):
                assert expected[key] == digest(data), key
                found[key] += 1
        assert set(found.values()) == {1} and found.keys() == expected.keys()
    gc.collect()


def check_caches(column, expected):
    """Read every record on two nodes of a region that share a Redis; the second asks it alone."""
    with serving("valkey") as server:
        seen = []
        for node in ("cache/1", "cache/2"):
            redis = f"{{url: '{server.url}', memory: 4GiB}}"
            cache = f"regions.eu-central.cache={{nvme: {node}, size: 4GiB, redis: {redis}}}"
            config = load_config("geodata.yaml", [cache])
            loader = build_loader(config)
            reader, stream = loader._stream.reader, loader._stream
            found = {
                key: digest(as_bytes(value))
                for shard in sorted(stream.homes)
                for batch in reader.batches(shard, ["__key__", column])
                for key, value in zip(*(c.to_pylist() for c in batch), strict=True)
            }
            assert found == expected
            seen.append(loader.cache_stats)
            loader.close()
        first, second = seen
        assert first["redis"]["hits"] == 0 and first["nvme"]["misses"] > 0
        assert second["redis"]["hits"] == second["nvme"]["misses"] == first["nvme"]["misses"]


def check_training():
    command = [sys.executable, "-m", "train", "geodata.yaml", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 3


@pytest.mark.parametrize("form", FORMATS)
def test_text(corpora, form):
    config, done = through(corpora / "text", form, BY_LANGUAGE)
    expected = digests(corpora, "text")
    assert (done.records_out, done.rejected) == (len(expected), 0)
    check_stock(config, form, "text", expected)
    check_caches("text", expected)
    check_training()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["images", "photos", "sprites", "flags"])
def test_images(corpora, name, form):
    if not (corpora / name).exists():
        pytest.skip(f"no {name}/ there")
    config, done = through(corpora / name, form, EVERYWHERE, IMAGES, RESNET)
    expected = digests(corpora, name)
    assert len(expected) == done.records_in and sum(done.reasons.values()) == done.rejected
    rejected = {f"{name}/{json.loads(line)['file']}" for line in quarantined(done)}
    expected = {key: value for key, value in expected.items() if key not in rejected}
    assert len(expected) == done.records_out
    check_stock(config, form, "image", expected)
    check_caches("image", expected)
    labels = geodata.inspect("corpus", config=config).labels
    if labels:
        assert labels["label"] == sorted({key.split("/")[1] for key in expected}, key=str.encode)
        check_training()


@pytest.mark.parametrize("form", FORMATS)
def test_audio(corpora, form):
    """Recordings with the transcripts that lie beside them."""
    if not (corpora / "audio").exists():
        pytest.skip("no audio/ there")
    text = "text: {column: transcript, length: 64}"
    config, done = through(corpora / "audio", form, EVERYWHERE, text)
    found = digests(corpora, "audio").items()
    expected = {key: value for key, value in found if key.endswith((".ogg", ".wav"))}
    assert (done.records_out, done.rejected) == (len(expected), 0)
    check_stock(config, form, "audio", expected)
    check_caches("audio", expected)
    check_training()


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_that_is_parquet_already(corpora, form):
    source = corpora / "tabular/People.parquet"
    if not source.exists():
        pytest.skip("no People.parquet there")
    table = pq.read_table(source)
    column = next(f.name for f in table.schema if pa.types.is_string(f.type))
    config, done = through(source, form, EVERYWHERE, f"text: {{column: {column}, length: 64}}")
    values = table[column].to_pylist()
    assert (done.records_in, done.rejected) == (len(values), 0)
    expected = {
        f"People.parquet#{row}": digest(as_bytes(value)) for row, value in enumerate(values, 1)
    }
    check_stock(config, form, column, expected)
    check_caches(column, expected)
    check_training()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["airports.csv", "oui_organisations.csv", "postcodes.jsonl"])
def test_tables(corpora, name, form):
    source = corpora / "tabular" / name
    if not source.exists():
        pytest.skip(f"no {name} there")
    region = BY_COUNTRY.replace("country", "countryCode") if "codes" in name else BY_COUNTRY
    column = {"a": "name", "o": "organisation", "p": "localityName"}[name[0]]
    config, done = through(source, form, region, f"text: {{column: {column}, length: 64}}")
    rows = read_table(source)
    assert (done.records_in, done.rejected) == (len(rows), 0)
    expected = {f"{name}#{n}": digest(as_bytes(row[column])) for n, row in enumerate(rows, 1)}
    check_stock(config, form, column, expected)
    check_caches(column, expected)
    check_training()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["captions", "digits", "cities"])
def test_other_tables_as_json_lines(corpora, tmp_path, name, form):
    """Captions, digits and cities; `test_wrappings` takes them as they are."""
    rows = list(OTHERS[name](corpora))
    if not rows:
        pytest.skip(f"no {name} there")
    source = tmp_path / f"{name}.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    column = next(key for key, value in rows[0].items() if isinstance(value, str))
    text = f"text: {{column: {column}, length: 64}}"
    config, done = through(source, form, EVERYWHERE, text)
    assert (done.records_in, done.rejected) == (len(rows), 0)
    expected = {
        f"{name}.jsonl#{n}": digest(as_bytes(row.get(column))) for n, row in enumerate(rows, 1)
    }
    check_stock(config, form, column, expected)
    check_caches(column, expected)
    check_training()


def captions(corpora):
    for path in sorted((corpora / "captions").glob("*.tsv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield {f"field{n}": value for n, value in enumerate(line.split("\t"))}


def digit_rows(corpora):
    for path in (corpora / "tabular").glob("digits_8x8.csv.gz"):
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            *pixels, label = (int(float(value)) for value in line.split(","))
            yield {"shown": " ".join(map(str, pixels)), "pixels": pixels, "digit": label}


def cities(corpora):
    for path in (corpora / "tabular").glob("cities500.json"):
        yield from json.loads(path.read_bytes()).values()


OTHERS = {"captions": captions, "digits": digit_rows, "cities": cities}


def read_table(source):
    with source.open(newline="", encoding="utf-8") as file:
        if source.suffix == ".csv":
            return list(csv.DictReader(file))
        return [json.loads(line) for line in file]


def quarantined(done):
    folder = Path(done.quarantine) if done.quarantine else None
    files = folder.rglob("*.jsonl") if folder else ()
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def digests(corpora, name):
    """Return {key: digest} of all files of a corpus that are no hidden ones."""
    files = [path for path in (corpora / name).rglob("*") if path.is_file()]
    return {path.relative_to(corpora).as_posix(): digest(path.read_bytes()) for path in files}


def as_bytes(value):
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else value


def digest(data):
    return hashlib.sha256(data).hexdigest()
