"""Fingerprints of staging records as they would be written by region: for comparing the two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata.manifest import Shard
from geodata.partition.dedupe import Prints
from geodata.partition.finishing import UNSTRIPPED, Exif, strips, without_extras
from geodata.partition.routing import Routing, classified
from geodata.schema import KEY
from geodata.tagging import Classes


@dataclass(frozen=True, slots=True)
class Routed:
    """How staging records become those of a dataset, and by which columns to compare them.

    `name` begins the names of the files, in `folder`, that hold the fingerprints.
    """

    routing: Routing
    exif: Exif
    columns: tuple[str, ...]
    folder: str
    name: str


def print_routed(shared: Routed, shard: Shard) -> dict[str, Any]:
    """Write the fingerprints of a staging shard's records, in their order there."""
    prints = Prints(Path(shared.folder), f"{shared.name}-{shard.shard_id}")
    for batch, classes, _hashes in classified(shared.routing, shard):
        made = _finished(batch, classes, shared.exif)
        prints.add(made.select(list(shared.columns)), made.column(KEY))
    return prints.close()


def _finished(batch: pa.RecordBatch, classes: Classes, exif: Exif) -> pa.RecordBatch:
    """Return records whose images are stripped where those of their tag are."""
    chosen = np.array([strips(exif, tag) for tag in classes.tags], bool)[classes.number]
    if not chosen.any():
        return batch
    made, _count = without_extras(batch.filter(pa.array(chosen)), UNSTRIPPED)
    order = np.argsort(np.argsort(~chosen, kind="stable"))
    whole = pa.concat_batches([made, batch.filter(pa.array(~chosen))])
    return whole.take(pa.array(order))
