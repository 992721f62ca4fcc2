"""What is appended must fit: columns and their types, labels, keys that stay unique."""

import json

import pyarrow as pa
import pytest
from PIL import Image
from staged_cases import append, index_of, keyed, make_staged, overtaking, rows, write

import geodata
from geodata import schema as schemas
from geodata.catalog import Catalog, locate
from geodata.errors import SchemaError, TooManyBadRecords
from geodata.jobs import origins


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_staged(tmp_path)


def test_columns_that_are_missing_are_null_and_others_must_fit(place):
    (place / "few.jsonl").write_text('{"score": 1, "never": null}\n{"score": null}\n')
    append(place, "few.jsonl")
    few = [row for row in rows(place) if row["__key__"].startswith("few")]
    assert [(row["n"], row["score"], row["text"]) for row in few] == [
        (None, 1.0, None),
        (None, None, None),
    ]
    (place / "wide.jsonl").write_text('{"n": 1.5}\n')
    with pytest.raises(SchemaError, match=r"holds int64, the source double.*column n.*--sch"):
        append(place, "wide.jsonl")
    (place / "more.jsonl").write_text('{"n": 1, "extra": true}\n')
    with pytest.raises(SchemaError, match=r"no such column.*bool.*column extra"):
        append(place, "more.jsonl")
    (place / "odd.jsonl").write_text('{"score": 9007199254740993}\n')
    with pytest.raises(TooManyBadRecords, match=r"odd\.jsonl, row 1"):
        append(place, "odd.jsonl")
    with pytest.raises(SchemaError, match="does not keep where records stood"):
        append(place, provenance="origin")
    assert index_of(place).version == "v000002"


def test_a_mended_source_goes_on_after_it_did_not_fit(place):
    (place / "odd.jsonl").write_text('{"n": "one"}\n')
    with pytest.raises(SchemaError):
        append(place, "odd.jsonl")
    (place / "odd.jsonl").write_text('{"n": 1}\n')
    assert append(place, "odd.jsonl").records == 101


def test_nested_values_take_the_datasets_type(place):
    deep = {"a": {"x": 1.5, "y": [1, 2.5]}, "big": (1 << 64) - 1}
    (place / "deep.jsonl").write_text(json.dumps(deep) + "\n")
    geodata.convert(place / "deep.jsonl", place / "raw", replace=True, workers=1)
    (place / "flat.jsonl").write_text('{"a": {"y": [7]}, "big": 1}\n')
    append(place, "flat.jsonl")
    assert rows(place)[-1]["a"] is not None
    found = {row["__key__"]: row for row in rows(place)}["flat.jsonl#1"]
    assert (found["a"], found["big"]) == ({"x": None, "y": [7.0]}, 1)
    schema = schemas.from_json(index_of(place).schema_)
    assert schema.field("big").type == pa.uint64()


def test_origins_are_kept_where_the_dataset_keeps_them(place):
    (place / "texts").mkdir()
    (place / "texts/a.txt").write_text("a")
    geodata.convert(place / "texts", place / "raw", replace=True, provenance="from", workers=1)
    (place / "texts/b.txt").write_text("b")
    append(place, "texts")
    assert {row["from"]["file"] for row in rows(place)} <= {"a.txt", "b.txt", None}
    assert "from" in rows(place)[0]


def pictures(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (len(name), 0, 0)).save(path)


def classes(root):
    labels = index_of(root).labels["label"]
    return {row["__key__"]: labels[row["label"]] for row in rows(root)}


def test_label_maps_grow_at_their_end(place, monkeypatch):
    pictures(place, ["zoo/cat/1.png", "zoo/dog/1.png"])
    geodata.convert(place / "zoo", place / "raw", replace=True, workers=1)
    pictures(place, ["zoo/ant/1.png", "zoo/cat/2.png", "farm/cow/1.png", "farm/dog/1.png"])
    overtaking(monkeypatch, lambda: append(place, "farm"))
    append(place, "zoo")
    assert index_of(place).labels == {"label": ["cat", "dog", "cow", "ant"]}
    assert classes(place) == {
        f"{name}.png": name.split("/")[1]
        for name in ("zoo/cat/1", "zoo/dog/1", "zoo/ant/1", "zoo/cat/2", "farm/cow/1", "farm/dog/1")
    }
    assert [s["source_id"] for s in index_of(place).report["sources"]] == ["zoo", "farm", "zoo"]


def test_keys_of_a_sources_own_stay_unique(place, monkeypatch):
    keyed(place / "one/a.parquet", ["k1", "k2"])
    geodata.convert(place / "one", place / "raw", replace=True, workers=1)
    keyed(place / "two/a.parquet", ["k3", "k4"])
    assert append(place, "two").records == 4
    keyed(place / "three/a.parquet", ["k5", "k2"])
    with pytest.raises(SchemaError, match=r"two records have one key \(key k2\)"):
        append(place, "three")
    keyed(place / "three/a.parquet", ["k5", "k6"])
    keyed(place / "four/a.parquet", ["k6"])
    overtaking(monkeypatch, lambda: append(place, "four"))
    with pytest.raises(SchemaError, match=r"one key \(key k6\)"):
        append(place, "three")
    keyed(place / "five/a.parquet", ["k7"])
    keyed(place / "five/b.parquet", ["k8", "k7"])
    with pytest.raises(SchemaError, match=r"one key \(key k7\)"):
        append(place, "five")
    keyed(place / "six/a.parquet", ["two/a.parquet#1", None])
    assert append(place, "six").records == 7
    assert geodata.verify(str(place / "raw"), workers=1).ok


def test_ids_that_could_make_one_key_are_compared(place):
    write(place / "old.jsonl#1", range(1))
    (place / "old.jsonl#1").write_text("text")
    (place / "t").mkdir()
    geodata.convert(place / "new.jsonl", place / "raw", replace=True, workers=1, source_id="a")
    (place / "t/x.jsonl").write_text('{"n": 1}\n')
    assert append(place, "t/x.jsonl", source_id="a#b").records == 11
    assert origins.sources_of(Catalog.at(locate(str(place / "raw"), None), "test"), index_of(place))
