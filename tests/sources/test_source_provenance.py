"""A column made by `origin_field` tells file and row of each record, whatever the data holds."""

import gzip
import io
import json
import zipfile

import pyarrow as pa
import pytest
from PIL import Image
from source_reading import read_all

from geodata.schema import dataset_schema, origin_field
from geodata.sources import Reading, open_source


def _png():
    out = io.BytesIO()
    Image.new("RGB", (2, 2)).save(out, "PNG")
    return out.getvalue()


def _origins(path, columns, **options):
    """Read a corpus with the column `origin`; return what it tells of each key."""
    source = open_source(path, source_id="s", **options)
    schema = dataset_schema(pa.schema([*columns, origin_field("origin")]))
    read = read_all(source, schema=schema)
    return {key: tuple(r["origin"].values()) for key, r in read.records.items()}, read


def test_lines_are_told_by_file_and_row(tmp_path):
    lines = [json.dumps({"a": i}) for i in range(3_000)]
    lines[10:10] = ["", "{", '{"a": 1, "origin": 5}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(b'\n{"a": -1}\n'))
    (tmp_path / "z.json").write_text('[{"a": -2}]')
    found, read = _origins(tmp_path, [("a", pa.int64())])
    assert found["s/x.jsonl#1"] == ("x.jsonl", 1)
    assert found["s/x.jsonl#3003"] == ("x.jsonl", 3003)
    assert found["s/y.jsonl.gz#2"] == ("y.jsonl.gz", 2)
    assert found["s/z.json#1"] == ("z.json", 1)
    assert all(key == f"s/{file}#{row}" for key, (file, row) in found.items())
    assert len(found) == 3_002
    assert (13, "'origin' is not in the schema") in read.reasons()


def test_records_of_a_csv_are_told_by_file_and_row(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,x\n\n2\n3,y\n")
    (tmp_path / "y.tsv").write_text("a\torigin\n5\tz\n")
    found, read = _origins(tmp_path, [("a", pa.int64()), ("b", pa.string())])
    assert found == {"s/x.csv#1": ("x.csv", 1), "s/x.csv#3": ("x.csv", 3)}
    assert read.reasons() == [
        (2, "1 fields where the header has 2"),
        (1, "'origin' is not in the schema"),
    ]
    (tmp_path / "y.tsv").unlink()
    bare, _ = _origins(
        tmp_path,
        [("column1", pa.string()), ("column2", pa.string())],
        reading=Reading(header=False),
    )
    assert bare["s/x.csv#1"] == ("x.csv", 1)


@pytest.mark.parametrize("target", ["folder", "zip", "single"])
def test_whole_files_are_told_without_a_row(tmp_path, target):
    (tmp_path / "d" / "é").mkdir(parents=True)
    (tmp_path / "d" / "é" / "x.txt").write_text("x")
    (tmp_path / "d" / "é" / "y.png").write_bytes(_png())
    with zipfile.ZipFile(tmp_path / "d" / "z.zip", "w") as archive:
        archive.writestr("é/x.txt", "x")
        archive.writestr("é/y.png", _png())
    for kind, column, suffix in (("text", "text", "x.txt"), ("images", "image", "y.png")):
        stored = pa.string() if kind == "text" else pa.binary()
        folder, inside = tmp_path / "d" / "é", {f"s/é/{suffix}": (f"é/{suffix}", None)}
        if target == "zip":
            found, _ = _origins(tmp_path / "d" / "z.zip", [(column, stored)], kind=kind)
        elif target == "single":
            found, _ = _origins(folder / suffix, [(column, stored)], kind=kind)
            inside = {"s": (suffix, None)}
        elif kind == "images":
            found, _ = _origins(tmp_path / "d", [(column, stored)], kind=kind)
            inside[f"s/z.zip/é/{suffix}"] = (f"z.zip/é/{suffix}", None)
        else:
            continue
        assert found == inside


def test_without_the_column_nothing_is_told(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"origin": 1}\n')
    assert read_all(open_source(tmp_path, source_id="s")).records == {"s/x.jsonl#1": {"origin": 1}}
