"""Building loaders over the shared dataset, and changing copies of it."""

import json
import shutil
from pathlib import Path

from geodata.config import load_config
from geodata.loader import build_loader
from geodata.manifest import Index, Version


def build(path, *overrides, **options):
    return build_loader(load_config(path, list(overrides)), **options)


def ids(batch):
    return [i for i in batch["sample"].tolist() if i >= 0]


def epoch_ids(loader):
    return [ids(batch) for batch in loader]


def copy_of(posts_dataset, tmp_path):
    shutil.copytree(posts_dataset.parent, tmp_path / "copy")
    return tmp_path / "copy" / "geodata.yaml"


def rewrite(path, change):
    """Commit a revision by hand, as erasure will: `change` maps a shard's table to another."""
    import hashlib

    from geodata import schema as schemas
    from geodata.catalog import Catalog, locate
    from geodata.formats import get_format
    from geodata.manifest import list_bytes
    from geodata.partition import ShardCutter

    config = load_config(path)
    catalog = Catalog.at(locate("posts", config), "test")
    index = catalog.index()
    shards = catalog.shards(index, "eu-central")
    victim = max(shards, key=lambda shard: shard.live)
    store = catalog.store(index, "eu-central")
    old = Path(store.url) / victim.main.path
    form = get_format(index.format)
    reader = form.open(old)
    cutter = ShardCutter(
        form,
        schemas.from_json(index.schema_),
        shard_bytes=1 << 30,
        tag=victim.tag,
        summary={},
        work=path.parent / "work",
        name="x",
    )
    for unit in range(len(reader.unit_slots)):
        cutter.write(change(reader.read_unit(unit)))
    reader.close()
    (sealed,) = cutter.close()
    made = sealed.deliver(store)
    from dataclasses import replace

    made = replace(made, shard_id=victim.shard_id)
    data = list_bytes([made if s.shard_id == victim.shard_id else s for s in shards])
    digest = hashlib.sha256(data).hexdigest()
    key = f"metadata/lists/region=eu-central/{digest}.jsonl"
    (Path(store.url) / key).write_bytes(data)
    record = json.loads(index.to_bytes())
    record["version"], record["parent"] = str(Version(1, 1)), index.version
    record["regions"]["eu-central"]["list"] = {"path": key, "sha256": digest, "bytes": len(data)}
    Index.from_bytes(json.dumps(record).encode(), "x")
    (Path(store.url) / Version(1, 1).key).write_text(json.dumps(record))
    old.unlink()
    return victim


def tombstone(batch, row):
    """Return the batch with one row erased: its slot stays, all its columns are null."""
    import pyarrow as pa

    gone = pa.RecordBatch.from_arrays(
        [pa.nulls(1, field.type) for field in batch.schema], schema=batch.schema
    )
    parts = [batch.slice(0, row), gone, batch.slice(row + 1)]
    return pa.concat_batches(parts)
