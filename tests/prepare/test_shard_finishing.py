"""What `shard` does to records once their tag is known: strip images, pack tokens, count them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pictures import corners, encoded, jpeg, opened
from vocabularies import write_tokenizer

import geodata
from geodata.catalog import Catalog, locate
from geodata.cli import cli
from geodata.config import load_config
from geodata.errors import ConfigError, GeodataError, ManifestError
from geodata.formats import FORMATS, get_format
from geodata.manifest import FORMAT_VERSION, Piece, Units
from geodata.prepare import Preparing
from geodata.prepare.exif import stripped
from geodata.prepare.tokens import open_tokenizer

CONFIG = """
dataset: {name: photos, root: data/photos}
here: eu
regions:
  eu: {jurisdiction: DE}
  us: {jurisdiction: US}
tagging:
  region: {field: country, map: {eu: [DE], us: [US]}}
  rules:
    - when: {field: private, equals: true}
      tag: {data_category: PersonalData, legal_basis: "eu-gdpr:A6-1-f"}
    - {when: {region: known}, tag: {data_category: NonPersonalData}}
"""


def write_photos(folder, **others):
    """Write a table of photos, of which every other one is private; return it."""
    images = [jpeg(orientation=1 + n % 8) for n in range(8)] + [
        encoded(corners(), "PNG"),
        b"",
        None,
    ]
    columns = {
        "image": pa.array(images, pa.binary()),
        "country": ["DE", "US", "US"] * 3 + ["DE", "US"],
        "private": [n % 2 == 0 for n in range(len(images))],
        **others,
    }
    schema = pa.schema([("image", pa.binary()), ("country", pa.string()), ("private", pa.bool_())])
    pq.write_table(pa.table(columns, schema=schema), folder / "photos.parquet")
    return columns


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A staging dataset of photos, and its config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    write_photos(tmp_path)
    convert("photos.parquet")
    return tmp_path


def convert(source, **options):
    types = (("image", "image"),) if source == "photos.parquet" else ()
    preparing = Preparing(types=types, **options)
    return geodata.convert(source, "data/raw", workers=1, preparing=preparing, shard_size=16_000)


def shard(**options):
    config = load_config("geodata.yaml")
    return geodata.shard(
        "data/raw", config=config, **{"workers": 1, "shard_size": 8_000, **options}
    )


def shards_of(reference):
    """Return (catalog, index, region, shard) of a dataset."""
    catalog = Catalog.at(locate(reference, load_config("geodata.yaml")), "test")
    index = catalog.index()
    return [(catalog, index, r, s) for r in index.regions for s in catalog.shards(index, r)]


def units_of(reference):
    """Yield (tag, unit, counted tokens or None) of a dataset, past the gate."""
    for catalog, index, region, item in shards_of(reference):
        root = Path(catalog.store(index, region).url)
        paths = {name: root / ref.path for name, ref in item.files.items()}
        sidecar = Units.from_bytes(paths["units"].read_bytes(), "x")
        reader = get_format(index.format).open(paths["main"], paths.get("index"))
        for unit in range(len(reader.unit_slots)):
            yield item.tag, reader.read_unit(unit), sidecar.tokens and sidecar.tokens[unit]
        reader.close()


def rows_of(reference):
    """Return all records by key, with their tags."""
    return {
        row.pop("__key__"): {**row, "tag": tag}
        for tag, batch, _ in units_of(reference)
        for row in batch.to_pylist()
    }


@pytest.mark.parametrize("form", FORMATS)
def test_images_of_personal_data_lose_what_cameras_add(photos, form):
    report = shard(format=form)
    before, after = pq.read_table("photos.parquet").to_pylist(), rows_of("photos")
    assert report.stripped == 4 and report.records_out == len(after) == 11
    for number, row in enumerate(before, 1):
        made = after[f"photos.parquet#{number}"]
        assert made["tag"].personal == row["private"]
        if row["private"] and row["image"]:
            assert made["image"] == stripped(row["image"]) and b"SECRET" not in made["image"]
        else:
            assert made["image"] == row["image"]
    assert geodata.verify("photos", config=load_config("geodata.yaml"), workers=1).ok
    again = shard(format=form)
    assert again.unchanged and again.stripped == 4


def test_keep_and_strip_are_for_all(photos):
    before = pq.read_table("photos.parquet").column("image").to_pylist()
    assert shard(exif="keep").stripped == 0
    kept = rows_of("photos")
    assert [kept[f"photos.parquet#{n}"]["image"] for n in range(1, 12)] == before
    assert shard(exif="strip").stripped == 8
    made = rows_of("photos")
    assert [made[f"photos.parquet#{n}"]["image"] for n in range(1, 12)] == [
        value and stripped(value) for value in before
    ]
    assert opened(made["photos.parquet#4"]["image"]).getexif() == {0x0112: 4}


def test_workers_and_batches_change_nothing(photos):
    shard(exif="auto", workers=2)
    both = [s.to_line() for *_, s in shards_of("photos")]
    shutil.rmtree("data/photos")
    shard(exif="auto")
    assert [s.to_line() for *_, s in shards_of("photos")] == both


def test_what_cannot_be_stripped_stops_the_job_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    images = [encoded(corners(), "TIFF", software="SECRET")] * 11
    write_photos(tmp_path, image=pa.array(images, pa.binary()))
    convert("photos.parquet")
    with pytest.raises(
        GeodataError, match=r"a TIFF holds.*key photos.parquet#\d+, column image.*--exif keep"
    ):
        shard()
    assert not list(tmp_path.glob("data/photos/metadata/v*"))
    assert shard(exif="keep").records_out == 11


def test_digests_and_report_are_as_before_where_nothing_is_asked(workspace):
    geodata.convert("posts.jsonl", "data/raw", workers=1)
    report = shard()
    assert (report.stripped, report.packed, report.counted) == (0, None, None)
    index = workspace / "data/posts/metadata/v000001.json"
    said = json.loads(index.read_text())["report"].keys()
    assert not said & {"stripped", "packed", "counted"}
    sidecars = [path.read_bytes() for path in (workspace / "data/posts").rglob("*.units.json")]
    known = {"format_version", "units", "frame"}
    assert sidecars and all(json.loads(data).keys() == known for data in sidecars)
    assert shard(exif="keep").unchanged and shard(exif="strip").unchanged  # there are no images


TEXTS = [" ".join(["the sea is blue"] * (n % 7)) or None for n in range(60)]

TEXT_CONFIG = CONFIG.replace("photos", "texts")


@pytest.fixture(params=["parquet", "webdataset"])
def texts(tmp_path, monkeypatch, request):
    """A staging dataset of tokenized texts of two regions, and a personal part of each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geodata.yaml").write_text(TEXT_CONFIG)
    lines = [
        {"text": text, "country": ["DE", "US"][n % 2], "private": n % 5 == 0, "n": n}
        for n, text in enumerate(TEXTS)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "texts.jsonl").write_text(text)
    words = write_tokenizer(tmp_path / "words.json", unknown="[UNK]")
    preparing = Preparing(tokenizer=words, text_column="text")
    geodata.convert("texts.jsonl", "data/raw", workers=1, preparing=preparing, format=request.param)
    return tmp_path


def expected_tokens():
    encode = open_tokenizer("words.json")
    return {f"texts.jsonl#{n}": encode([text or ""])[0] for n, text in enumerate(TEXTS, 1)}


@pytest.mark.parametrize("form", FORMATS)
def test_a_sequence_never_mixes_regions_or_tags_and_no_token_is_lost(texts, form):
    report = shard(pack=16, format=form, shard_size=1_000)
    expected = expected_tokens()
    total = sum(map(len, expected.values()))
    rows = rows_of("texts")
    assert report.packed == {
        "length": 16,
        "column": "tokens",
        "documents": 60,
        "sequences": len(rows),
        "tokens": total,
    }
    assert (report.records_in, report.records_out) == (60, len(rows))
    assert sum(row["length"] for row in rows.values()) == total
    homes = {f"texts.jsonl#{n + 1}": (["eu", "us"][n % 2], n % 5 == 0) for n in range(60)}
    for key, row in rows.items():
        document, _, offset = key.rpartition("@")
        ids = np.asarray(row["tokens"]).ravel().tolist()
        assert len(ids) == 16 and ids[row["length"] :] == [0] * (16 - row["length"])
        assert (row["tag"].region, row["tag"].personal) == homes[document]
        first = expected[document][int(offset) :][:16]
        assert ids[: len(first)] == first
        assert all(
            ids[at : at + 4] == [2, 3, 4, 5][: len(ids) - at]
            for at in row["starts"]
            if at + 4 <= row["length"]
        )
    started = sum(len(row["starts"]) for row in rows.values())
    assert started == sum(bool(ids) for ids in expected.values())
    assert len(shards_of("texts")) > 4
    assert geodata.verify("texts", config=load_config("geodata.yaml"), workers=1).ok
    shown = geodata.inspect("texts", config=load_config("geodata.yaml"))
    assert [f["name"] for f in shown.schema][2:] == ["tokens", "starts", "length"]
    assert shard(pack=16, format=form, shard_size=1_000).packed == report.packed


def test_packing_does_not_depend_on_workers(texts):
    shard(pack=16, workers=2, shard_size=1_000)
    both = [s.to_line() for *_, s in shards_of("texts")]
    shutil.rmtree("data/texts")
    shard(pack=16, shard_size=1_000)
    assert [s.to_line() for *_, s in shards_of("texts")] == both


def test_a_lost_token_would_be_noticed(texts, monkeypatch):
    from geodata.prepare.packing import Packing

    whole = Packing.pack
    monkeypatch.setattr(Packing, "pack", lambda self, table: whole(self, table.slice(1)))
    with pytest.raises(GeodataError, match="tokens in, but"):
        shard(pack=16)
    assert not list(texts.glob("data/texts/metadata/v*"))


def test_a_dry_run_of_packing_says_what_goes_in(texts):
    report = shard(pack=16, dry_run=True)
    assert report.dry_run and report.records_out == 60 and not (texts / "data/texts").exists()


def test_records_of_persons_are_not_packed(workspace):
    geodata.convert(
        "posts.jsonl",
        "data/raw",
        workers=1,
        preparing=Preparing(tokenizer="bytes", text_column="text"),
    )
    with pytest.raises(ConfigError, match="not be erased alone.*--count-tokens") as caught:
        shard(pack=16)
    assert caught.value.exit_code == 2
    assert shard(count_tokens="tokens").records_out == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": 4}, "sequences of 4 tokens"),
        ({"pack": 16, "tokens": "text"}, "'text' is string, no list of integers"),
        ({"pack": 16, "tokens": "ids"}, "no column 'ids'.*Lists of integers: tokens"),
        ({"pack": 16, "count_tokens": ""}, "exclude each other"),
        ({"count_tokens": "text"}, "'text' is string, no list of integers"),
        ({"count_tokens": "n", "tokenizer": "bytes"}, "'n' is no column of text"),
        ({"tokenizer": "bytes"}, "a tokenizer only counts"),
        ({"count_tokens": "text", "tokenizer": "none.json"}, "not a tokenizer file"),
    ],
)
def test_mistakes_are_told_at_once(texts, options, message):
    with pytest.raises(ConfigError, match=message):
        shard(**options)


def counts_of(reference):
    """Return the tokens of each record as the sidecars have them."""
    found = {}
    for _, batch, counted in units_of(reference):
        found.update(zip(batch.column("__key__").to_pylist(), counted, strict=True))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"count_tokens": ""},
        {"count_tokens": "tokens"},
        {"count_tokens": "text", "tokenizer": "words.json"},
    ],
)
def test_tokens_are_counted_into_the_sidecars(texts, options):
    plain = shard(shard_size=1_500)
    before = {s.shard_id: s for *_, s in shards_of("texts")}
    report = shard(shard_size=1_500, **options)
    expected = {key: len(ids) for key, ids in expected_tokens().items()}
    assert counts_of("texts") == expected
    assert report.counted["tokens"] == sum(expected.values())
    assert (report.counted["column"], report.counted["tokenizer"] is None) == (
        options["count_tokens"] or "tokens",
        "tokenizer" not in options,
    )
    after = {s.shard_id: s for *_, s in shards_of("texts")}
    assert before.keys() == after.keys() and plain.shards == report.shards > 4
    for name, item in after.items():
        assert item.main == before[name].main
        assert item.files["units"].path != before[name].files["units"].path
    config = load_config("geodata.yaml")
    assert geodata.verify("texts", config=config, workers=1).ok
    assert geodata.verify("texts@v1", config=config, workers=1).ok


@pytest.mark.parametrize("column", ["text", ""])
def test_bytes_of_a_text_are_counted(texts, column):
    assert shard(count_tokens=column, tokenizer="bytes").counted["column"] == "text"
    assert counts_of("texts") == {
        f"texts.jsonl#{n}": len(text or "") for n, text in enumerate(TEXTS, 1)
    }


def test_a_sidecar_without_counts_is_byte_for_byte_as_before():
    pieces = (Piece(4, 10, 2, "a" * 64),), (Piece(0, 4, 0, "b" * 64),)
    plain, counted = Units(*pieces), Units(*pieces, ((3, 0),))
    assert (
        plain.to_bytes()
        == (
            f'{{"format_version":{FORMAT_VERSION},"units":[[4,10,2,"{"a" * 64}"]],'
            f'"frame":[[0,4,0,"{"b" * 64}"]]}}\n'
        ).encode()
    )
    assert Units.from_bytes(counted.to_bytes(), "x").tokens == ((3, 0),)
    assert Units.from_bytes(plain.to_bytes(), "x").tokens is None
    assert plain == counted
    for wrong in (((3,),), ((3, 0), (1,)), ()):
        with pytest.raises(ManifestError, match="other slots"):
            Units.from_bytes(Units(*pieces, wrong).to_bytes(), "x")


def command(*arguments):
    done = CliRunner().invoke(cli, ["shard", "data/raw", "--workers", "1", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_how_many_images_changed(photos):
    assert "4 images freed of what cameras add" in command()
    assert "freed" not in command("--exif", "keep")


def test_the_command_says_what_was_packed_and_counted(texts):
    assert " packed into " in (said := command("--pack", "16"))
    assert "60 documents" in said and "sequences of 16: " in said
    assert " tokens counted in tokens" in command("--count-tokens")
    assert " tokens counted in text" in command("--count-tokens", "text", "--tokenizer", "bytes")
    report = json.loads(command("--count-tokens", "--json").splitlines()[-1])
    assert report["counted"]["column"] == "tokens" and report["packed"] is None
