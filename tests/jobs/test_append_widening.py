"""Types widen when records are appended; the shards that are there stay, and read as the others."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from editing_cases import FORMATS, raw, records, rows, shards, version
from PIL import Image

import geodata
from geodata import schema as schemas
from geodata.config import load_config
from geodata.errors import SchemaError
from geodata.jobs.addcolumn import add_column
from geodata.jobs.compact import compact
from geodata.jobs.drop import drop
from geodata.loader import build_loader

CONFIG = """
dataset: {name: posts, root: data/posts}
here: eu
regions: {eu: {jurisdiction: DE, cache: {nvme: cache, size: 64MiB}}}
tagging:
  region: {constant: eu}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
loader: {global_batch: 4, split: {heldout: 0.0}}
"""

EMPTY = {"x": None, "l": [], "s": {"a": None}}
FULL = {"x": "é", "l": [{"b": 1.5}], "s": {"a": [7], "c": True}}

NULLS = {"x": None, "l": [], "s": {"a": None, "c": None}}
"""What the first records are since those were appended."""


def typed(root, reference):
    schema = schemas.from_json(version(root, reference)[1].schema_)
    return {field.name: str(field.type) for field in schema if field.name in FULL}


WIDE = {
    "x": "string",
    "l": "list<item: struct<b: double>>",
    "s": "struct<a: list<item: int64>, c: bool>",
}


def write(path, row, first=0, count=20, **more):
    lines = [json.dumps({"n": n, **row, **more}) for n in range(first, first + count)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def place(workspace):
    (workspace / "geodata.yaml").write_text(CONFIG)
    write(workspace / "old.jsonl", EMPTY)
    write(workspace / "new.jsonl", FULL, 20)
    return workspace


def convert(root, source="old.jsonl", **options):
    return geodata.convert(root / source, raw(root), workers=1, **options)


def append(root, source="new.jsonl", dataset=None, **options):
    config = load_config(root / "geodata.yaml")
    dataset = dataset or raw(root)
    return geodata.append(root / source, dataset, config=config, workers=1, **options)


def classify(root):
    return geodata.shard(raw(root), config=load_config(root / "geodata.yaml"), workers=1)


def intact(root, *references):
    """Assert that versions are whole, each with its own schema."""
    config = load_config(root / "geodata.yaml")
    for reference in references:
        assert geodata.verify(reference, config=config, workers=1).problems == []


def expected(old=20, new=20):
    made = {f"old.jsonl#{n + 1}": {"n": n, **NULLS} for n in range(old)}
    made |= {f"new.jsonl#{n + 1}": {"n": 20 + n, **FULL} for n in range(new)}
    return {key: {"__key__": key, "__subject__": None, **row} for key, row in made.items()}


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_null_takes_any_type(place, form):
    convert(place, format=form)
    before = shards(place, "data/raw")
    was = records(place, "data/raw")
    report = append(place)
    assert (report.version, report.records) == ("v000002", 40)
    assert records(place, "data/raw") == expected()
    assert typed(place, "data/raw") == WIDE
    assert shards(place, "data/raw").items() > before.items()
    assert records(place, "data/raw", number=1) == was
    intact(place, raw(place), f"{raw(place)}@v1")
    write(place / "more.jsonl", EMPTY, 40)
    append(place, "more.jsonl")
    assert typed(place, "data/raw") == WIDE
    found = records(place, "data/raw")
    assert found.items() > expected().items() and found["more.jsonl#1"]["s"] == NULLS["s"]
    assert geodata.inspect(raw(place), head=60).records == 60


@pytest.mark.parametrize("form", FORMATS)
def test_a_classified_dataset_widens_too(place, form):
    convert(place, format=form)
    classify(place)
    before = shards(place)
    assert append(place, dataset="posts").records == 40
    assert records(place) == expected() and typed(place, "posts") == WIDE
    assert shards(place).items() > before.items()
    intact(place, "posts", "posts@v1")
    batches = list(build_loader(place / "geodata.yaml", region="eu"))
    seen = [n for b in batches for n, w in zip(b["n"].tolist(), b["weight"], strict=True) if w]
    assert sorted(seen) == list(range(40))
    append(place)
    write(place / "more.jsonl", {"x": "more"}, 40)
    append(place, "more.jsonl")
    assert classify_anew(place) == {**expected(), **only_x(place)}


def only_x(root):
    return {k: row for k, row in records(root, "data/raw").items() if k.startswith("more")}


def classify_anew(root):
    """Shard a staging dataset whose shards have several types into another place."""
    config = load_config(root / "geodata.yaml")
    geodata.shard(raw(root), str(root / "data/anew"), config=config, workers=1)
    text = (root / "geodata.yaml").read_text()
    (root / "geodata.yaml").write_text(text.replace("data/posts", "data/anew"))
    found = records(root)
    intact(root, "posts")
    (root / "geodata.yaml").write_text(text)
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_edits_take_shards_of_several_types(place, form):
    convert(place, format=form)
    append(place)
    (place / "t.csv").write_text(
        "id,note\n" + "".join(f"{name}.jsonl#{n},{n}\n" for name in ("old", "new") for n in (1, 2))
    )
    report = add_column(raw(place), "note", join=place / "t.csv", on="id", workers=1)
    assert (report.records, report.missing, report.kept) == (40, 36, 0)
    intact(place, raw(place))
    report = drop(raw(place), keys=["old.jsonl#20", "new.jsonl#20"], workers=1)
    assert report.records == 2
    intact(place, raw(place))
    was = records(place, "data/raw")
    for key, row in expected(19, 19).items():
        assert was[key] == {**row, "note": 1 if key.endswith("#1") else was[key]["note"]}
    assert compact(raw(place), workers=1).shards_out == 1
    assert records(place, "data/raw") == was
    intact(place, raw(place), *(f"{raw(place)}@v{n}" for n in range(1, 6)))


@pytest.mark.parametrize("form", ["parquet", "webdataset", "tfrecord"])
def test_a_column_added_to_a_narrower_shard_sees_the_wider_types(place, form):
    from column_functions import types

    convert(place, format=form)
    append(place)
    add_column(raw(place), "types", function=f"{types.__module__}:types", workers=1)
    assert {row["types"] for row in records(place, "data/raw").values()} == {
        " ".join(WIDE.values())
    }
    intact(place, raw(place))


NUMBERS = [
    ("int8", "int64", 2**60),
    ("float", "double", 1e300),
    ("uint16", "int32", -1),
    ("int16", "float", 0.5),
    ("int32", "double", 0.25),
]


@pytest.mark.parametrize(("narrow", "wide", "value"), NUMBERS)
def test_numbers_widen_where_they_all_fit(place, narrow, wide, value):
    kinds = {"float": pa.float32(), "double": pa.float64()}
    old, new = (kinds.get(name) or pa.type_for_alias(name) for name in (narrow, wide))
    was = pa.array([0, None, 3], pa.int32()).cast(old)
    pq.write_table(pa.table({"x": was}), place / "old.parquet")
    pq.write_table(pa.table({"x": pa.array([value], new)}), place / "new.parquet")
    convert(place, "old.parquet")
    append(place, "new.parquet")
    found = [row["x"] for part in rows(place, "data/raw").values() for row in part]
    values = [*was.cast(new).to_pylist(), *pa.array([value], new).to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, values))
    assert typed(place, "data/raw") == {"x": wide}
    intact(place, raw(place), f"{raw(place)}@v1")


REFUSED = [
    (pa.int64(), 1, pa.float64(), 0.5),
    (pa.string(), "a", pa.int64(), 1),
    (pa.timestamp("ms"), 1, pa.timestamp("ns"), 1),
]


@pytest.mark.parametrize(("old", "was", "new", "value"), REFUSED)
def test_what_could_lose_a_value_names_both_types_and_a_way_on(place, old, was, new, value):
    for name, kind, one in (("old", old, was), ("new", new, value)):
        nested = pa.array([[one]], pa.list_(kind))
        pq.write_table(pa.table({"x": nested}), place / f"{name}.parquet")
    convert(place, "old.parquet")
    text = rf"holds list<item: {old}>, the source list<item: {new}> \(column x\).*--replace"
    with pytest.raises(SchemaError, match=text.replace("[", r"\[").replace("]", r"\]")):
        append(place, "new.parquet")
    assert len(version(place, "data/raw")[0].versions()) == 1


def test_null_becomes_what_has_a_meaning_of_its_own(place):
    (place / "old.jsonl").write_text(
        '{"image": null, "label": null, "width": null, "height": null}\n'
    )
    convert(place)
    for name in ("cat", "dog"):
        (place / "zoo" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(place / "zoo" / name / "1.png")
    append(place, "zoo")
    index = version(place, "data/raw")[1]
    assert index.labels == {"label": ["cat", "dog"]}
    told = {f["name"]: (f.get("media"), f.get("label")) for f in index.schema_["fields"]}
    assert (told["image"], told["label"]) == (("image", None), (None, "1"))
    found = {key: row["label"] for key, row in records(place, "data/raw").items()}
    assert found == {"old.jsonl#1": None, "zoo/cat/1.png": 0, "zoo/dog/1.png": 1}
    classify(place)
    assert {key: row["label"] for key, row in records(place).items()} == found
    intact(place, raw(place), "posts")


def test_two_that_widen_at_once_both_land(place):
    from editing_cases import at_once

    convert(place)
    write(place / "other.jsonl", {"x": "other", "s": {"d": 1}}, 50)
    codes = at_once(lambda: append(place), lambda: append(place, "other.jsonl"))
    assert codes == [0, 0]
    found = records(place, "data/raw")
    assert len(found) == 60
    assert found["old.jsonl#1"]["s"] == {"a": None, "c": None, "d": None}
    assert found["new.jsonl#1"]["s"] == {"a": [7], "c": True, "d": None}
    assert found["other.jsonl#1"]["s"] == {"a": None, "c": None, "d": 1}
    intact(place, raw(place))


def test_repeats_are_found_across_types(place):
    convert(place)
    write(place / "again.jsonl", EMPTY, 15, 10)
    lines = (place / "again.jsonl").read_text() + (place / "new.jsonl").read_text()
    (place / "again.jsonl").write_text(lines)
    report = append(place, "again.jsonl", dedupe=True)
    assert (report.records_in, report.duplicates) == (30, 5)
    assert len(records(place, "data/raw")) == 45
