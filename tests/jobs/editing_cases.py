"""Datasets to edit, and what is in them, whatever the format and wherever the bytes lie."""

import hashlib
import multiprocessing
from pathlib import Path

from pipeline import convert, shard
from posts import make_posts

from geodata import schema as schemas
from geodata.catalog import Catalog, Change, locate, make_access
from geodata.config import load_config
from geodata.formats import FORMATS, get_format
from geodata.manifest import Version
from geodata.partition import ShardCutter
from geodata.partition.opening import open_in_place

__all__ = ["FORMATS"]

ROOTS = {
    "jurisdiction: DE,": "jurisdiction: DE, root: eu,",
    "jurisdiction: US,": "jurisdiction: US, root: disk/us,",
}


def config_of(root):
    return load_config(root / "geodata.yaml")


def make_dataset(root, form="parquet", count=120, shard_size=6_000):
    """Make the staging dataset `data/raw` and, of it, the classified `posts`."""
    make_posts(root / "posts.jsonl", count=count)
    text = (root / "geodata.yaml").read_text()
    for before, after in ROOTS.items():
        text = text.replace(before, after)
    (root / "geodata.yaml").write_text(text)
    convert(root, format=form, shard_size=40_000 if form.startswith("webdataset") else 8_000)
    shard(root, shard_size=shard_size)
    return config_of(root)


def version(root, reference="posts", number=None):
    """Return the catalog of a dataset, opened as in its own region, and an index."""
    config = None if "/" in reference else config_of(root)
    catalog = Catalog.at(
        locate(str(root / reference) if "/" in reference else reference, config), "test"
    )
    return catalog, catalog.index(None if number is None else Version(number))


def shards(root, reference="posts", number=None):
    """Return (region, shard) of a version, by shard id."""
    catalog, index = version(root, reference, number)
    found = [(region, one) for region in index.regions for one in catalog.shards(index, region)]
    return dict(sorted((one.shard_id, (region, one)) for region, one in found))


def rows(root, reference="posts", number=None):
    """Return all rows, tombstones too, by shard id and in order; each shard is read at home."""
    catalog, index = version(root, reference, number)
    schema, form = schemas.from_json(index.schema_), get_format(index.format)
    found = {}
    for name, (region, one) in shards(root, reference, number).items():
        catalog.access = make_access(root / "audit-of-tests", region, "test")
        reader = open_in_place(form, catalog.store(index, region), one, schema, check=True)
        units = [reader.read_unit(unit) for unit in range(len(reader.unit_slots))]
        found[name] = [row for unit in units for row in unit.to_pylist()]
        reader.close()
    return found


def records(root, reference="posts", number=None):
    """Return all records by key; a key stands once."""
    live = [r for part in rows(root, reference, number).values() for r in part if r["__key__"]]
    found = {row["__key__"]: row for row in live}
    assert len(found) == len(live)
    return found


def tokens(root, number=None):
    """Return the tokens by key, as far as sidecars count them."""
    catalog, index = version(root, number=number)
    found = {}
    for name, (region, one) in shards(root, number=number).items():
        catalog.access = make_access(root / "audit-of-tests", region, "test")
        counted = catalog.units(index, region, one).tokens
        if counted is None:
            continue
        counts = [n for unit in counted for n in unit]
        keys = [row["__key__"] for row in rows(root, number=number)[name]]
        found |= dict(zip(keys, counts, strict=True))
    return found


def files_of(root):
    """Return the digest of each file that is no log, by path."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.startswith("audit") for part in path.parts)
    }


def leftovers(root):
    """Return what jobs have left in any root."""
    return [path for path in root.rglob("*") if path.parent.name == ".jobs"]


def bury(root, reference="data/raw", every=7):
    """Commit a version whose largest shard has tombstones: every so many of its rows are gone."""
    catalog, index = version(root, reference)
    region = next(iter(index.regions))
    victim = max(catalog.shards(index, region), key=lambda shard: shard.live)
    store, schema = catalog.store(index, region), schemas.from_json(index.schema_)
    form = get_format(index.format)
    reader = open_in_place(form, store, victim, schema)
    cutter = ShardCutter(
        form, schema, shard_bytes=1 << 30, tag=victim.tag, summary={}, work=root / "work", name="x"
    )
    place = 0
    for unit in range(len(reader.unit_slots)):
        batch = reader.read_unit(unit)
        kept = [None if (place + i) % every == 0 else i for i in range(batch.num_rows)]
        place += batch.num_rows
        cutter.write(batch.take(schemas.pa.array(kept, "int64")))
    reader.close()
    (sealed,) = cutter.close()
    change = Change("bury", "bury", {region: [sealed.deliver(store)]}, [victim])
    catalog.amend(index, change)
    return sealed.shard


def at_once(*functions):
    """Run functions of no argument in processes at the same time; return their exit codes."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(functions))

    def run(function):
        barrier.wait(60)
        function()

    running = [context.Process(target=run, args=(function,)) for function in functions]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    return [process.exitcode for process in running]


def raw(root):
    return str(root / "data/raw")


def path_of(root, reference, region, ref):
    """Return where a file of a shard lies."""
    catalog, index = version(root, reference)
    return Path(catalog.store(index, region).url) / ref.path
