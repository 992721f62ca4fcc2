"""This project's formats: converted and sharded by its jobs, read in its exact order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import geodata
from benchmarks.peers.base import PREFETCH, Packed, Read, loader_of_batches, packed, shard_nbytes
from benchmarks.workloads import Corpus
from geodata.catalog import Catalog, locate, make_access, visible_set
from geodata.config import GeodataConfig, load_config
from geodata.loader import build_loader
from geodata.order import EpochOrder, ShardRows, default_lanes
from geodata.reader import Reader

CONFIG, STAGING, DATASET = "geodata.yaml", "raw", "data"
REGION = "eu-central"
PURPOSE = "ModelTraining"
YAML = f"""\
dataset: {{name: bench, root: {DATASET}}}
here: {REGION}
regions:
  {REGION}: {{jurisdiction: DE}}
tagging:
  region: {{constant: {REGION}}}
  rules:
    - {{when: {{region: known}}, tag: {{data_category: NonPersonalData}}}}
"""
CONVERT, SHARD = geodata.convert, geodata.shard
"""Imported here, before time is taken."""
COLUMNS = {"img": ["image", "label"], "txt": ["text"]}

Tensors = tuple[torch.Tensor, ...]


class Ours:
    """One format.

    `convert` is what the peers' writers do; `shard` classifies and shuffles on top of it, and what
    it writes is read.
    """

    key = 0

    def __init__(self, form: str):
        self._form = form

    def output(self, folder: Path) -> Path:
        """Return the folder of the dataset."""
        return folder / DATASET

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write the staging dataset."""
        folder.mkdir(parents=True)
        (folder / CONFIG).write_text(YAML)
        CONVERT(
            corpus.source,
            folder / STAGING,
            format=self._form,
            kind="images" if corpus.workload.name == "img" else "jsonl",
            shard_size=shard_nbytes(corpus),
            workers=1,
        )

    def shard(self, corpus: Corpus, folder: Path) -> None:
        """Write the shards that are read."""
        SHARD(
            str(folder / STAGING),
            config=load_config(folder / CONFIG),
            shard_size=shard_nbytes(corpus),
            workers=1,
        )

    def batches(self, read: Read) -> Iterable[Any]:
        """Read steps of the exact order: as stored, or through the loader."""
        config = load_config(
            read.folder / CONFIG,
            [
                f"loader.global_batch={read.batch}",
                f"loader.workers={read.workers}",
                f"loader.prefetch={PREFETCH}",
                f"loader.columns=[{', '.join(COLUMNS[read.corpus.workload.name])}]",
            ],
        )
        if read.decode:
            return (_images(batch) for batch in build_loader(config))
        steps = StoredSteps(config, COLUMNS[read.corpus.workload.name], read.batch)
        loader = loader_of_batches(steps, read)
        return (Packed(batch[0].numpy(), batch[1].numpy()) for batch in loader)


class StoredSteps(Dataset[Tensors]):
    """The steps of an epoch as the loader has them, but the bytes as they are stored."""

    def __init__(self, config: GeodataConfig, columns: list[str], batch: int):
        place = locate("bench", config)
        catalog = Catalog(place.root, make_access(place.audit, REGION, PURPOSE))
        index = catalog.index()
        seen = visible_set(catalog, index, REGION, PURPOSE)
        homes = {shard.shard_id: (home, shard) for home, shard in seen.shards}
        budget = config.loader.memory_budget
        lanes = default_lanes(batch)
        rows = [ShardRows(name, shard.slots) for name, (_home, shard) in homes.items()]
        self._reader = Reader(catalog, index, homes, memory_budget=budget)
        self._order = EpochOrder(rows, lanes=lanes, seed=config.loader.seed, epoch=0)
        self._lanes, self._per_lane, self._columns = range(lanes), batch // lanes, columns

    def __len__(self) -> int:
        return math.ceil(self._order.lane_slots / self._per_lane)

    def __getitem__(self, step: int) -> Tensors:
        """Return a step's payloads as (bytes, offsets), and their labels where they have some."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        start = step * self._per_lane
        shard, row = self._order.slots(self._lanes, start, start + self._per_lane)
        real = shard >= 0
        batch = self._reader.rows(self._order.ids, shard[real], row[real], self._columns)
        payload, *labels = batch.columns
        whole = packed(payload)
        parts = [whole.data, whole.offsets, *(label.to_numpy() for label in labels)]
        with warnings.catch_warnings(action="ignore"):  # Arrow's memory is read-only
            return tuple(torch.from_numpy(part) for part in parts)


def _images(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the images of a batch without the padding that ends an epoch."""
    real = batch["weight"] > 0
    return batch["image"] if bool(real.all()) else batch["image"][real]
