"""A column beside the shards: made by a function, read as one dataset, in any format and region."""

import io
import linecache
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from column_cases import add, lengths, loud
from editing_cases import (
    FORMATS,
    bury,
    config_of,
    leftovers,
    make_dataset,
    path_of,
    raw,
    records,
    rows,
    shards,
    version,
)
from PIL import Image
from pipeline import shard
from posts import make_posts

import geodata
from geodata.errors import ConfigError, PolicyDenied, SchemaError
from geodata.jobs.addcolumn import _Computed, field_of
from geodata.loader import build_loader


def here(root, region):
    text = (root / "geodata.yaml").read_text()
    lines = [f"here: {region}" if line.startswith("here:") else line for line in text.splitlines()]
    (root / "geodata.yaml").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("form", FORMATS)
def test_a_function_adds_a_column_and_main_files_stay(workspace, form):
    make_dataset(workspace, form)
    before, was = shards(workspace), records(workspace)
    report = add(workspace)
    after = shards(workspace)
    assert report.version == "v000002" and report.type == "int32"
    assert list(after) == list(before)
    mine = [
        name for name, (region, s) in before.items() if region == "eu-central" or not s.tag.personal
    ]
    assert report.shards == len(mine) < len(before)
    for name, (region, one) in after.items():
        old = before[name][1]
        assert (one.slots, one.live, one.tag, one.main) == (old.slots, old.live, old.tag, old.main)
        if name not in mine:
            assert one == old
            continue
        assert {part.partition("/")[0] for part in one.files} == {
            *(["index"] if "index" in old.files else []),
            "main",
            "units",
            "columns",
        }
        assert one.content_digest != old.content_digest
        path = path_of(workspace, "posts", region, one.files["columns/length"])
        assert path.parent.name == "_columns"
    whole = rows(workspace)
    lengths({r["__key__"]: r for name in mine for r in whole[name]})
    assert all(r["length"] is None for name in whole.keys() - set(mine) for r in whole[name])
    left = sum(before[name][1].live for name in before.keys() - set(mine))
    assert sum(report.left.values()) == left and report.records + left == len(was)
    now = records(workspace)
    assert {k: {n: v for n, v in row.items() if n != "length"} for k, row in now.items()} == was
    assert records(workspace, number=1) == was
    for reference in ("posts", "posts@v1"):
        assert geodata.verify(reference, config=config_of(workspace), workers=1).ok
    assert not leftovers(workspace)


@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
def test_another_region_completes_the_column(workspace, form):
    make_dataset(workspace, form)
    add(workspace)
    with pytest.raises(ConfigError, match="has a column 'length' already.*--replace"):
        add(workspace, made="upper")
    for region in ("us-east", "ap-northeast"):
        here(workspace, region)
        report = add(workspace)
        assert report.shards >= 1 and report.kept > 0 and list(report.regions) == [region]
    lengths(records(workspace))
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok
    again = add(workspace)
    assert again.unchanged and again.version == report.version


@pytest.mark.parametrize("form", FORMATS)
def test_the_loader_gives_the_column_in_the_same_order(workspace, form):
    make_dataset(workspace, form)
    path = workspace / "geodata.yaml"
    before = [b["sample"].tolist() for b in build_loader(path, region="us-east")]
    add(workspace)
    loader = build_loader(path, region="us-east")
    batches = list(loader)
    assert [b["sample"].tolist() for b in batches] == before
    known = {row["likes"]: row for row in records(workspace).values()}
    seen = set()
    for batch in batches:
        for likes, length, weight in zip(
            batch["likes"].tolist(), batch["length"].tolist(), batch["weight"].tolist(), strict=True
        ):
            if weight:
                assert length == (known[likes]["length"] or 0)
                seen.add(known[likes]["length"] is None)
    assert seen == {True, False}  # of shards with the column and without
    cached = {p.name for p in (workspace / "cache/us-east/objects").rglob("*") if p.is_file()}
    columns = [
        s.files["columns/length"].sha256
        for region, s in shards(workspace).values()
        if "columns/length" in s.files and (region == "us-east" or not s.tag.personal)
    ]
    assert columns and cached >= set(columns)


@pytest.mark.parametrize("form", FORMATS)
def test_text_of_some_shards_and_null_of_others_share_a_batch(workspace, form):
    make_dataset(workspace, form)
    add(workspace, "loud", made="upper", type="text")
    config = workspace / "geodata.yaml"
    text = config.read_text()
    text = text.replace("text: {length: 64}", "text: {column: loud, length: 64, crop: head}")
    config.write_text(text)
    known = {row["likes"]: row["loud"] for row in records(workspace).values()}
    seen = set()
    for batch in build_loader(config, region="us-east"):
        for tokens, likes, weight in zip(
            batch["tokens"], batch["likes"].tolist(), batch["weight"].tolist(), strict=True
        ):
            if weight:
                expected = (known[likes] or "").encode()[: len(tokens) - 2]
                given = bytes(t for t in tokens.tolist() if t < 256)
                assert given[: len(expected)] == expected
                seen.add(known[likes] is None)
    assert seen == {True, False}


@pytest.mark.parametrize("form", FORMATS)
def test_staging_takes_a_column_and_shard_takes_it_on(workspace, form):
    make_dataset(workspace, form, count=60)
    dead = bury(workspace)
    report = add(workspace, reference=raw(workspace))
    assert report.version == "v000003" and not report.left
    assert geodata.verify(raw(workspace), workers=1).ok
    assert len(records(workspace, "data/raw")) == dead.live + sum(
        s.live for _r, s in shards(workspace, "data/raw").values() if s.shard_id != dead.shard_id
    )
    lengths(records(workspace, "data/raw"))
    gone = [r for r in rows(workspace, "data/raw")[dead.shard_id] if r["__key__"] is None]
    assert gone and all(value is None for row in gone for value in row.values())
    head = geodata.inspect(raw(workspace), head=2).head
    assert [row["length"] for row in head] == [str(len(row["text"])) for row in head] or head


def test_shard_takes_an_added_column_on(workspace):
    make_dataset(workspace, count=60)
    add(workspace, reference=raw(workspace))
    assert shard(workspace).version == "v000002"
    lengths(records(workspace))
    assert {tuple(s.files) for _r, s in shards(workspace).values()} == {("main", "units")}


def test_lists_arrays_and_tensors_become_columns(workspace):
    make_dataset(workspace, count=40)
    reference = raw(workspace)
    assert add(workspace, "double", reference, "listed").type == "double"
    assert add(workspace, "vector", reference, "matrix").type == "list<item: float>"
    assert add(workspace, "same", reference, "chunked").type == "string"
    assert add(workspace, "small", reference, "length", type="int16").type == "int16"
    for row in records(workspace, "data/raw").values():
        assert row["double"] == (None if row["score"] is None else 2 * row["score"])
        assert row["vector"][1] == row["vector"][0] + 1 and row["same"] == row["text"]
        assert row["small"] == len(row["text"])
    _catalog, index = version(workspace, "data/raw")
    assert [f["name"] for f in index.schema_["fields"]][-4:] == [
        "double",
        "vector",
        "same",
        "small",
    ]
    assert geodata.verify(reference, workers=1).ok


def test_types_have_names():
    assert field_of("x", "list<list<float>>").type == pa.list_(pa.list_(pa.float32()))
    assert field_of("x", "image").metadata == {b"geodata.media": b"image"}
    with pytest.raises(ConfigError, match="'integer' is no type"):
        field_of("x", "integer")


def test_a_column_is_replaced_only_when_told(workspace):
    make_dataset(workspace, count=60)
    reference = raw(workspace)
    old = records(workspace, "data/raw")
    with pytest.raises(ConfigError, match="has a column 'text' already.*--replace"):
        add(workspace, "text", reference, "upper")
    report = add(workspace, "text", reference, "upper", replace=True)
    now = records(workspace, "data/raw")
    assert all(now[key]["text"] == loud(old[key]["text"]) for key in old)
    _catalog, index = version(workspace, "data/raw")
    (field,) = (f for f in index.schema_["fields"] if f["name"] == "text")
    assert field["media"] == "text"
    assert add(workspace, "text", reference, "length", replace=True).type == "int32"
    assert records(workspace, "data/raw")[next(iter(old))]["text"] == len(
        old[next(iter(old))]["text"]
    )
    assert records(workspace, "data/raw", number=1) == old
    for number in (1, 2, 3):
        assert geodata.verify(f"{reference}@v{number}", workers=1).ok
    assert report.version == "v000002"


def test_a_type_changes_in_all_records_or_in_none(workspace):
    make_dataset(workspace)
    with pytest.raises(PolicyDenied, match="become int32 only in all records"):
        add(workspace, "score", made="length", replace=True)
    report = add(workspace, "score", made="listed", replace=True)
    assert report.left and geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_shards_that_are_appended_are_filled_by_the_same_command(workspace):
    make_dataset(workspace, count=40)
    add(workspace, reference=raw(workspace))
    before = shards(workspace, "data/raw")
    more = make_posts(workspace / "more.jsonl", count=10, seed=5)
    geodata.append(workspace / "more.jsonl", raw(workspace), workers=1)
    found = records(workspace, "data/raw")
    assert sum(row["length"] is None for row in found.values()) == len(more)
    report = add(workspace, reference=raw(workspace))
    assert (report.records, report.kept) == (10, len(before))
    lengths(records(workspace, "data/raw"))
    assert shards(workspace, "data/raw").items() >= before.items()
    assert geodata.verify(raw(workspace), workers=1).ok


def test_shards_of_an_older_format_version_take_a_column(workspace):
    golden = Path(__file__).parents[1] / "golden/v1"
    shutil.rmtree(workspace / "data", ignore_errors=True)
    shutil.copytree(golden, workspace, dirs_exist_ok=True)
    was = records(workspace)
    assert add(workspace).version == "v000002"
    _catalog, index = version(workspace)
    assert index.format_version > 1
    assert records(workspace, number=1) == was
    assert any(row["length"] for row in records(workspace).values())
    for reference in ("posts", "posts@v1"):
        assert geodata.verify(reference, config=config_of(workspace), workers=1).ok


def test_foreign_engines_see_main_files_and_are_told_of_columns(workspace):
    make_dataset(workspace)
    add(workspace)
    listing = geodata.list_files("posts", config=config_of(workspace))
    found = [s for s in listing.to_json()["shards"] if s["columns"]]
    for item in found:
        table = pq.read_table(item["columns"]["length"])
        assert table.column_names == ["__key__", "length"]
        assert table["__key__"].equals(pq.read_table(item["file"])["__key__"])
    folder = Path(found[0]["file"]).parent
    engine = pa.dataset.dataset(folder, format="parquet")
    assert "length" not in engine.schema.names
    assert np.isin([item["file"] for item in found], engine.files).any()


def test_numbers_that_are_no_labels_are_refused(workspace):
    for name in "ab":
        (workspace / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(workspace / "pictures" / name / "x.png")
    reference = str(workspace / "data/pictures")
    geodata.convert(workspace / "pictures", reference, workers=1)
    with pytest.raises(SchemaError, match="numbers of 2 labels, 0 to 1.*--type int64"):
        add(workspace, "label", reference, "sevens", replace=True)
    assert add(workspace, "label", reference, "zeros", replace=True).version == "v000002"
    found = geodata.inspect(reference, head=2)
    assert found.labels == {"label": ["a", "b"]}
    assert [row["label"] for row in found.head] == ["a (0)", "a (0)"]
    add(workspace, "label", reference, "sevens", replace=True, type="int64")
    assert geodata.inspect(reference).labels == {}


def test_images_added_to_personal_data_lose_what_cameras_add(workspace):
    make_dataset(workspace, count=60)
    picture = io.BytesIO()
    exif = Image.Exif()
    exif[0x010F] = "SECRET"
    Image.new("RGB", (4, 4)).save(picture, "JPEG", exif=exif)
    (workspace / "taken.jpg").write_bytes(picture.getvalue())
    report = add(workspace, "kept", made="photographs", type="image", exif="keep")
    assert report.stripped == 0
    report = add(workspace, "photo", made="photographs", type="image")
    personal = [row for name in shards(workspace) for row in told(workspace, name, "photo")]
    assert {secret for is_personal, secret in personal if is_personal} == {False}
    assert {secret for is_personal, secret in personal if not is_personal} == {True}
    assert report.stripped == sum(is_personal for is_personal, _secret in personal) > 0
    kept = [row for name in shards(workspace) for row in told(workspace, name, "kept")]
    assert {secret for _personal, secret in kept} == {True}
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def told(root, name, column):
    """Return whether a shard is personal, and for each image whether it tells the secret."""
    one = shards(root)[name][1]
    images = [row[column] for row in rows(root)[name] if row[column] is not None]
    return [(one.tag.personal, b"SECRET" in image) for image in images]


def test_code_beside_the_function_decides_too(workspace, monkeypatch):
    make_dataset(workspace, count=40)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (workspace / "a_helper.py").write_text("FACTOR = 2\n")
    (workspace / "a_column.py").write_text(
        "import a_helper\ndef made(batch):\n    return [a_helper.FACTOR] * batch.num_rows\n"
    )
    first = _Computed("a_column:made").identity()
    assert first == _Computed("a_column:made").identity()
    (workspace / "a_helper.py").write_text("FACTOR = 3\n")
    linecache.checkcache()
    assert _Computed("a_column:made").identity() != first
    for module in ("a_helper", "a_column"):
        del sys.modules[module]
