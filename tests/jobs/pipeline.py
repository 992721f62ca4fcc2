"""Convert and shard in a workspace, and kills at every durable step."""

import json
import multiprocessing
import signal

import pyarrow.parquet as pq

import geodata
from geodata import durable
from geodata.catalog import Catalog, locate
from geodata.config import load_config
from geodata.tags import STAGING


def digests(root, region=None):
    """Return what must be equal after any kill: the shards' lines, all of them."""
    config_path = root / "geodata.yaml"
    name, config = ("data/raw", None) if region == STAGING else ("posts", load_config(config_path))
    place = locate(str(root / name) if region == STAGING else name, config)
    catalog = Catalog.at(place, "test")
    index = catalog.index()
    return [s.to_line() for name in index.regions for s in catalog.shards(index, name)]


def read_posts(root):
    text = (root / "posts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def convert(root, **options):
    return geodata.convert(
        root / "posts.jsonl", root / "data/raw", **{"workers": 1, "shard_size": 16_000, **options}
    )


def shard(root, **options):
    config = load_config(root / "geodata.yaml")
    options = {"workers": 1, "shard_size": 8_000, **options}
    return geodata.shard(str(root / "data/raw"), config=config, **options)


def rows_of(root, reference="posts"):
    config = load_config(root / "geodata.yaml")
    listing = geodata.list_files(reference, config=config)
    return [row for s in listing.shards for row in pq.read_table(s.file).to_pylist()]


def killed_at(number, function, root):
    durable.kill_at(number)
    function(root)


def kill_everywhere(root, function, check, step=1):
    """Kill `function` at its durable steps (each `step`-th), let it go on, `check` the outcome."""
    context = multiprocessing.get_context("fork")
    for number in range(1, 1000, step):
        victim = context.Process(target=killed_at, args=(number, function, root))
        victim.start()
        victim.join(60)
        if victim.exitcode == 0:
            return number - 1
        assert victim.exitcode == -signal.SIGKILL
        function(root)
        check()
    raise AssertionError("never got through")


BAD = '{"text": "ok", "country": "DE"}\n{"text": broken}\n{"text": "ok too", "country": "FR"}\n'
