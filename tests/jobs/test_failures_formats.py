"""How formats of other tools fail their users: the rows that one format alone does not show."""

import gc
import json
import multiprocessing
import os
import pickle
import shutil
import tarfile
import warnings
import zipfile
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tfrecord
import webdataset
from PIL import Image

import geodata
from geodata.config import load_config
from geodata.errors import CorruptShard, ObjectNotFound
from geodata.formats import FORMATS, get_format
from geodata.jobs.repair import repair

CONFIG = """
dataset: {name: posts, root: data/posts}
here: eu
regions: {eu: {jurisdiction: DE}}
tagging:
  region: {constant: eu}
  rules: [{when: {region: known}, tag: {data_category: NonPersonalData}}]
"""
WHOLE = {"n": 0, "v": "y" * 40}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def shards(reference="out"):
    return [Path(shard.file) for shard in geodata.list_files(reference).shards]


def cut(path, _other):
    path.write_bytes(path.read_bytes()[:-20])


def swap(path, other):
    path.write_bytes(other.read_bytes())


def lengthen(path, _other):
    path.write_bytes(path.read_bytes() * 2)


def flip(path, _other):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose(path, _other):
    path.unlink()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("damage", [cut, swap, lengthen, flip, lose])
def test_index_and_shard_that_disagree_are_found_in_every_format(folder, form, damage):
    """Row: missing last sample, truncated or lost index (streaming#677, #399, litdata#720)."""
    (folder / "geodata.yaml").write_text(CONFIG)
    write(folder / "in.jsonl", ({**WHOLE, "n": n} for n in range(300)))
    small = 4_000 if form in ("parquet", "hdf5", "hdf5+gzip", "tfrecord") else 60_000
    geodata.convert("in.jsonl", "out", format=form, workers=1, shard_size=small)
    first, second = shards()[:2]
    beside = [p for p in first.parent.iterdir() if p.name.startswith(first.name + ".")]
    assert len(beside) == (2 if get_format(form).index_suffix else 1)
    for path in beside:
        before = path.read_bytes()
        damage(path, second.with_name(path.name.replace(first.name, second.name)))
        problems = geodata.verify("out", workers=1).problems
        assert problems and any(path.name in found["problem"] for found in problems)
        assert repair("out", workers=1).ok and path.read_bytes() == before
    assert geodata.verify("out", workers=1).ok
    damage(first, second)
    assert not geodata.verify("out", workers=1).ok
    with pytest.raises((CorruptShard, ObjectNotFound)):
        geodata.shard("out", config=load_config("geodata.yaml"), workers=1)
    assert not list(folder.glob("data/posts/metadata/v*"))
    (lost,) = {entry["file"] for entry in repair("out", workers=1).lost}
    assert Path(lost).name == first.name


def test_row_groups_stay_bounded_whatever_made_them(folder):
    """Row: row groups too large or tiny (datasets#6701): small files, many appends, large rows."""
    for number in range(200):
        write(folder / f"in/{number}.jsonl", [{**WHOLE, "n": number}] * 20)
    geodata.convert("in", "out", workers=2)
    assert [pq.ParquetFile(path).num_row_groups for path in shards()] == [1]
    write(folder / "large.jsonl", ({"n": n, "v": "z" * (3 << 20)} for n in range(12)))
    for number in range(5):
        write(folder / f"more/{number}.jsonl", [{**WHOLE, "n": number}] * 20)
        geodata.append("more", "out", workers=1)
    geodata.append("large.jsonl", "out", workers=1)
    geodata.compact("out", workers=1)
    files = [pq.ParquetFile(path) for path in shards()]
    groups = [file.read_row_group(n) for file in files for n in range(file.num_row_groups)]
    assert sum(group.num_rows for group in groups) == 200 * 20 + 5 * 20 + 12
    assert max(group.nbytes for group in groups) <= 9 << 20
    assert len(groups) <= 14


def stock(path):
    """Return what webdataset's own reader decodes; it leaves its file open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        found = list(webdataset.WebDataset(str(path), shardshuffle=False).decode("pil"))
        gc.collect()
    return found


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_what_others_take_for_a_pickle_is_none_in_our_tars(folder):
    """Row: reading an untrusted tar runs pickles (webdataset#490), the other way round."""
    names = ["pkl", "pyd", "pickle", "pt", "pth", "npy", "npz", "x.pkl", "PKL"]
    trap = pickle.dumps(Trap())
    columns = {name: [trap] for name in names} | {f"text.{name}": ["t"] for name in names}
    pq.write_table(pa.table(columns), folder / "in.parquet")
    geodata.convert("in.parquet", "out", format="webdataset", workers=1)
    (path,) = shards()
    (sample,) = stock(path)
    assert list(sample.values()).count(trap) == len(names)
    assert not (folder / "trapped").exists()


def appending(source, barrier):
    barrier.wait(60)
    geodata.append(source, "out", workers=1)


@pytest.mark.parametrize("form", FORMATS)
def test_ten_more_by_two_writers_are_110_in_every_format(folder, form):
    """Row: append overwrites, or repeats old chunks (streaming#646, litdata#865)."""
    write(folder / "old.jsonl", ({**WHOLE, "n": n} for n in range(100)))
    geodata.convert("old.jsonl", "out", format=form, workers=1)
    old = {path: path.read_bytes() for path in shards()}
    for name in ("a", "b"):
        write(folder / f"{name}.jsonl", ({**WHOLE, "n": n} for n in range(5)))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    sources = ("a.jsonl", "b.jsonl")
    writers = [context.Process(target=appending, args=(s, barrier)) for s in sources]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert geodata.verify("out", workers=1).ok
    head = geodata.inspect("out", head=200).head
    assert len({row["__key__"] for row in head}) == len(head) == 110
    assert {path: path.read_bytes() for path in shards() if path in old} == old
    shutil.rmtree(folder / "out")


NAMES = 'a b|a\u00a0b|$x*?[y]+~|ü|u\u0308|日本|a%2Fb|back\\slash|new\nline|quote"|\x01|\u202e|😀'
FIELDS = "a b|a.b|ü|u\u0308|a/b|key|__x|x__|A|%|new\nline|json|0|offset|data|shape|__geodata"


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_keys_survive_whatever_characters_they_have(folder, form):
    """Row: space, NBSP, `$ * ? [ + ~` in keys (s5cmd#375, #660): here they come to be."""
    (folder / "in").mkdir()
    for name in NAMES.split("|"):
        write(
            folder / f"in/{name}.jsonl", [{field: f"{name} {field}" for field in FIELDS.split("|")}]
        )
    geodata.convert("in", "out", format=form, workers=1, provenance="origin")
    found = {row.pop("__key__"): row for row in geodata.inspect("out", head=100).head}
    assert found.keys() == {f"in/{name}.jsonl#1" for name in NAMES.split("|")}
    for name in NAMES.split("|"):
        row = found[f"in/{name}.jsonl#1"]
        assert row["origin"] == {"file": f"{name}.jsonl", "row": 1}
        assert all(row[field] == f"{name} {field}" for field in FIELDS.split("|"))


def a_table():
    strings = [None if n % 7 == 0 else f"text {n}\0" * (n % 3) for n in range(60)]
    return pa.table(
        {"n": pa.array(range(60), pa.uint16()), "s": strings, "f": [n / 7 for n in range(60)]}
    )


def make_sources(folder):
    """Write a corpus of each kind that the mission names; return their paths."""
    write(folder / "a.jsonl", a_table().to_pylist())
    (folder / "a.csv").write_text("n,f,s\n" + "".join(f"{n},{n / 7},x{n}\n" for n in range(60)))
    pq.write_table(a_table(), folder / "a.parquet", row_group_size=20)
    with pa.ipc.new_file(folder / "a.arrow", a_table().schema) as file:
        file.write_table(a_table(), max_chunksize=20)
    with h5py.File(folder / "a.h5", "w") as file:
        file["n"], file["image"] = np.arange(60), np.arange(60 * 12, dtype="u1").reshape(60, 4, 3)
    with (
        tarfile.open(folder / "a.tar", "w") as tar,
        zipfile.ZipFile(folder / "a.zip", "w") as archive,
    ):
        for number in range(20):
            path = folder / f"images/{number % 3}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (number + 1, 4), (number, 0, 0)).save(path)
            write(folder / f"texts/{number}.txt", [{"n": number}])
            tar.add(path, f"{number}.png")
            archive.write(path, f"{number}.png")
    with closing(tfrecord.TFRecordWriter(str(folder / "a.tfrecord"))) as records:
        for number in range(20):
            records.write({"n": (number, "int"), "b": (b"\xff\0", "byte"), "f": ([0.5], "float")})
    return [*folder.glob("a.*"), folder / "images", folder / "texts"]


def test_every_source_holds_the_same_in_every_format(folder):
    """Row D1 of the mission: a raw corpus of any kind to shards of any format, digest by digest."""
    sources = make_sources(folder)
    assert len(sources) == 10
    for source in sources:
        found = set()
        for form in FORMATS:
            dest = f"out/{form}/{source.name}"
            report = geodata.convert(source, dest, format=form, workers=1)
            assert (report.records_in, report.rejected) == (report.records_out, 0)
            found.add(tuple(shard.shard for shard in geodata.list_files(dest).shards))
        assert len(found) == 1, source
