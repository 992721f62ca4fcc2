"""Appending to a staging dataset of tests, and what is in it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

import geodata
from geodata.catalog import Catalog, locate
from geodata.tags import STAGING


def make_staged(root):
    """Make a staging dataset `raw` of 100 records, and a file of 10 more, which is not in it."""
    write(root / "old.jsonl", range(100))
    write(root / "new.jsonl", range(10))
    geodata.convert(root / "old.jsonl", root / "raw", workers=1, shard_size=1_000)
    return root


def write(path, numbers, **more):
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"n": n, "score": n + 0.5, "text": f"{path}", **more}) for n in numbers]
    path.write_text("".join(line + "\n" for line in lines))


def append(root, source="new.jsonl", **options):
    return geodata.append(root / source, root / "raw", **{"workers": 1, **options})


def index_of(root, dest="raw"):
    return Catalog.at(locate(str(root / dest), None), "test").index()


def shards_of(root, dest="raw"):
    catalog = Catalog.at(locate(str(root / dest), None), "test")
    return catalog.shards(catalog.index(), STAGING)


def lines(root):
    return [shard.to_line() for shard in shards_of(root)]


def rows(root, dest="raw"):
    files = [pq.read_table(root / dest / shard.main.path) for shard in shards_of(root, dest)]
    return [row for file in files for row in file.to_pylist()]


def keys(root):
    return [row["__key__"] for row in rows(root)]


def keyed(path, names):
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"__key__": names, "n": range(len(names))}), path)


def overtaking(monkeypatch, other):
    """Let `other` run just before the next commit of an amended version."""
    amend, done = Catalog.amend, []

    def amending(self, *arguments, **options):
        if not done:
            done.append(True)
            other()
        return amend(self, *arguments, **options)

    monkeypatch.setattr(Catalog, "amend", amending)
