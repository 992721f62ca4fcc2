"""A dataset of two versions, and what is in them."""

from editing_cases import config_of
from pipeline import convert, shard

import geodata


def make_twice(root):
    """Make the posts, sharded by two seeds: two versions of the same records in other shards."""
    convert(root, format="webdataset")
    shard(root)
    shard(root, seed=1)
    return root


def contents(root, reference="posts"):
    """Return shard ids and records of a version."""
    report = geodata.inspect(reference, config=config_of(root), head=400)
    listing = geodata.list_files(reference, config=config_of(root))
    return {s.shard for s in listing.shards}, sorted(row["__key__"] for row in report.head)


def data_files(root):
    return {p.name for p in (root / "data/posts/data").rglob("*") if p.is_file()}
