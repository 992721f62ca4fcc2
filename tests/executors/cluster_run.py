"""Runs on a Ray cluster of two nodes on this machine: lost workers, a lost node, a conversion."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import geodata
from geodata.catalog import Catalog, locate
from geodata.errors import GeodataError
from geodata.executors import get_executor
from geodata.tags import STAGING


def square(shared, task):
    """Square a number, or fail as `shared` says."""
    folder, dying = Path(shared["folder"]), shared.get("dying")
    seen = folder / f"seen-{task}"
    first = not seen.exists()
    seen.touch()
    if task == dying and first:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == shared.get("passing") and first:
        from geodata.errors import StoreError

        raise StoreError("the store is away for a moment")
    if task == shared.get("wrong"):
        from geodata.errors import SchemaError

        raise SchemaError("not a number", row=7)
    time.sleep(0.2)
    return task * task


def squares(executor, folder, count, watch=lambda number: None, **how):
    folder.mkdir()
    found = {}
    for number, result in executor.run(square, list(range(count)), {"folder": str(folder), **how}):
        found[number] = result
        watch(len(found))
    return [found[number] for number in range(count)]


def lines_of(root):
    catalog = Catalog.at(locate(str(root), None), "test")
    return [shard.to_line() for shard in catalog.shards(catalog.index(), STAGING)]


def main(scratch):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    executor = get_executor("ray", None, cluster.address)
    told = {"workers": executor.workers}
    told["dying"] = squares(executor, scratch / "a", 6, dying=3)
    told["passing"] = squares(executor, scratch / "b", 4, passing=2)
    try:
        squares(executor, scratch / "c", 4, wrong=1)
    except GeodataError as error:
        told["wrong"] = error.to_json()

    def lose(count):
        if count == 2:
            cluster.remove_node(node, allow_graceful=False)

    told["node lost"] = squares(executor, scratch / "d", 10, lose)
    options = {"format": "webdataset", "shard_size": 20_000, "source_id": "posts"}
    source = scratch / "posts.jsonl"
    geodata.convert(source, scratch / "one", workers=1, **options)
    geodata.convert(source, scratch / "ray", executor="ray", **options)
    one, other = lines_of(scratch / "one"), lines_of(scratch / "ray")
    told["shards"], told["equal"] = len(one), one == other
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
