"""What `inspect` shows: values one can look at, and a contact sheet."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import geodata
from geodata.config import load_config
from geodata.errors import ConfigError, PolicyDenied, StoreError
from geodata.jobs import contactsheet, shown
from geodata.schema import label_field, media_field, tensor_field

CONFIG = """
dataset: {name: pictures, root: data/pictures}
here: eu
regions: {eu: {jurisdiction: DE}, us: {jurisdiction: US}}
tagging:
  region: {pattern: "^raw/(red|blue)/", map: {eu: [red], us: [blue]}}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
"""
COLOURS = {"red": (200, 0, 0), "blue": (0, 0, 200)}


def png(colour, size=(8, 4)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, colour in COLOURS.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / f"raw/{name}/{number}.png").write_bytes(png(colour))
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    geodata.convert(tmp_path / "raw", tmp_path / "data/raw", workers=1)
    config = load_config(tmp_path / "geodata.yaml")
    geodata.shard(str(tmp_path / "data/raw"), config=config, workers=1)
    return config


def tile(sheet, number):
    """Return the picture part of a tile."""
    step = contactsheet.TILE + contactsheet.MARGIN
    left = contactsheet.MARGIN + number % contactsheet.ACROSS * step
    top = 2 * contactsheet.MARGIN + contactsheet.LINE
    top += number // contactsheet.ACROSS * (step + contactsheet.CAPTION)
    return np.asarray(sheet.convert("RGB"))[
        top : top + contactsheet.TILE, left : left + contactsheet.TILE
    ]


def test_records_are_shown_by_kind_label_and_region(pictures):
    head = geodata.inspect("pictures", config=pictures, head=2).head
    assert [row["__region__"] for row in head] == ["eu", "us"]
    assert [row["label"] for row in head] == ["red (1)", "blue (0)"]
    nbytes = len(png(COLOURS["red"]))
    assert head[0]["image"] == f"PNG 8×4, {nbytes:,} bytes"


def test_a_contact_sheet_shows_each_image(pictures, tmp_path):
    report = geodata.inspect("pictures", config=pictures, png=tmp_path / "out/sheet.png")
    assert report.png == str(tmp_path / "out/sheet.png")
    sheet = Image.open(report.png)
    step = contactsheet.TILE + contactsheet.MARGIN
    assert sheet.width == contactsheet.MARGIN + 6 * step
    assert [row["__region__"] for row in report.head[:4]] == ["eu", "us", "eu", "us"]
    for number, row in enumerate(report.head):
        shown = tile(sheet, number)
        colour = COLOURS["red" if row["__region__"] == "eu" else "blue"]
        assert tuple(shown[96, 96]) == colour and tuple(shown[20, 96]) == (255, 255, 255)
    assert len(report.head) == 10


def test_one_shard_alone(pictures, tmp_path):
    (american,) = [
        shard.shard
        for shard in geodata.list_files("pictures", config=pictures).shards
        if shard.region == "us"
    ]
    report = geodata.inspect("pictures", config=pictures, head=3, shard=american[:8])
    assert [row["label"] for row in report.head] == ["blue (0)"] * 3
    with pytest.raises(ConfigError, match="no shard 'zzz'"):
        geodata.inspect("pictures", config=pictures, head=3, shard="zzz")


def test_what_policy_denies_is_left_out_counted_and_written_down(workspace):
    geodata.convert(workspace / "posts.jsonl", workspace / "data/raw", workers=1)
    config = load_config(workspace / "geodata.yaml")
    geodata.shard(str(workspace / "data/raw"), config=config, shard_size=8_000, workers=1)
    config = load_config(workspace / "geodata.yaml", ["here=us-east"])
    listed = geodata.list_files("posts", config=config).shards
    hidden = [s for s in listed if s.category == "PersonalData" and s.region != "us-east"]
    report = geodata.inspect("posts", config=config, head=300)
    assert report.denied == sum(s.records for s in hidden) > 0
    assert len(report.head) == 300 - report.denied
    text = "".join(path.read_text() for path in (workspace / "audit").iterdir())
    events = [json.loads(line) for line in text.splitlines()]
    told = {e.get("subject") for e in events if e.get("allowed") is False}
    assert told == {shard.shard for shard in hidden}
    with pytest.raises(PolicyDenied, match="may see none of the"):
        geodata.inspect("posts", config=config, shard=hidden[0].shard)


def test_a_sheet_that_cannot_be_written_is_an_error(pictures, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        geodata.inspect("pictures", config=pictures, png=tmp_path / "file/sheet.png")


@pytest.mark.parametrize("path", [".", "taken", "/dev/null"])
def test_a_picture_replaces_nothing_but_a_file(pictures, tmp_path, path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="no place for a picture"):
        geodata.inspect("pictures", config=pictures, png=Path(path))
    assert not Path("/dev/null").is_file()


def test_line_breaks_in_names_are_drawn_as_blanks(tmp_path):
    schema = pa.schema([pa.field("__key__", pa.string()), pa.field("two\nlines", pa.string())])
    batch = pa.RecordBatch.from_arrays([pa.array(["a\nb"]), pa.array(["c\n\nd"])], schema=schema)
    found = contactsheet.tile_of(batch, 0, "eu", {})
    contactsheet.draw("a\ntitle", [found], tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 100


def test_text_is_drawn_where_there_is_no_picture(workspace):
    geodata.convert(workspace / "posts.jsonl", workspace / "raw", workers=1)
    report = geodata.inspect(str(workspace / "raw"), png=workspace / "sheet.png", head=7)
    sheet = Image.open(report.png)
    step = contactsheet.TILE + contactsheet.MARGIN
    assert sheet.width == contactsheet.MARGIN + 6 * step
    for number, row in enumerate(report.head):
        drawn = tile(sheet, number)[:-2].min() < 128
        assert drawn == bool(row["text"] or row["country"])


def test_tensors_are_pictures_or_lines_of_facts(tmp_path):
    fixed = pa.fixed_shape_tensor(pa.uint8(), [2, 2])
    storage = pa.array([[0, 255, 255, 0], None], fixed.storage_type)
    varying = tensor_field("wave", pa.float32())
    table = pa.table(
        [
            pa.ExtensionArray.from_storage(fixed, storage),
            pa.array(
                [
                    {"data": [0.5, float("nan"), 2.5], "shape": [3]},
                    {"data": [1.0] * 6, "shape": [2, 3]},
                ],
                varying.type,
            ),
        ],
        schema=pa.schema([pa.field("board", fixed), varying]),
    )
    pq.write_table(table, tmp_path / "x.parquet")
    geodata.convert(tmp_path / "x.parquet", tmp_path / "raw", workers=1)
    report = geodata.inspect(str(tmp_path / "raw"), png=tmp_path / "sheet.png")
    board = report.head[0]["board"]
    assert board == "uint8 [2, 2] from 0 to 255, mean 127.5: 0 255 255 0"
    assert report.head[1]["board"] is None
    assert report.head[0]["wave"] == "float32 [3] from 0.5 to 2.5, mean 1.5: 0.5 nan 2.5"
    assert report.head[1]["wave"] == "float32 [2, 3] from 1 to 1, mean 1: 1 1 1 1 1 1"
    seen = tile(Image.open(report.png), 0)
    assert [seen[40, 40, 0], seen[40, 150, 0], seen[150, 40, 0]] == [0, 255, 255]


@pytest.mark.parametrize("value", [b"", b"no image", png((1, 2, 3))[:40], None])
def test_a_broken_image_is_no_error(value):
    schema = pa.schema([pa.field("__key__", pa.string()), media_field("image", "image")])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k"]), pa.array([value], pa.binary())], schema=schema
    )
    found = contactsheet.tile_of(batch, 0, "eu", {})
    assert found.picture is None and found.caption[:2] == ["k", "eu"]
    json.dumps(shown.shown(batch, 0, {}))


def test_a_label_without_a_name_is_its_number():
    schema = pa.schema([pa.field("__key__", pa.string()), label_field("label")])
    batch = pa.RecordBatch.from_arrays([pa.array(["k"]), pa.array([7])], schema=schema)
    assert shown.shown(batch, 0, {"label": ["a"]})["label"] == "7"
