"""Tar shards by webdataset's ShardWriter, read as its documentation shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds

from benchmarks.peers.base import Read, collate, loader_of_batches, records, shard_nbytes
from benchmarks.workloads import Corpus

SHUFFLED_SHARDS, SHUFFLED = 100, 1000
NAMES = {"img": ("jpg", "cls"), "txt": ("txt",)}


class WebDataset:
    """Members are handed over as their bytes."""

    key = 0

    def output(self, folder: Path) -> Path:
        """Return the folder of the shards."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write shards."""
        folder.mkdir(parents=True)
        pattern = str(folder / "data-%05d.tar")
        names = NAMES[corpus.workload.name]
        with wds.ShardWriter(pattern, maxsize=shard_nbytes(corpus), verbose=0) as writer:
            for number, record in enumerate(records(corpus)):
                writer.write(
                    {"__key__": f"{number:08}", **dict(zip(names, record.values(), strict=True))}
                )

    def batches(self, read: Read) -> Iterable[Any]:
        """Read shards in random order, through a shuffle buffer, split over the workers."""
        urls = sorted(str(path) for path in read.folder.glob("*.tar"))
        dataset = (
            wds.WebDataset(urls, shardshuffle=SHUFFLED_SHARDS)
            .shuffle(SHUFFLED)
            .to_tuple(*NAMES[read.corpus.workload.name])
            .batched(read.batch, collation_fn=collate(read, self.key))
        )
        return loader_of_batches(dataset, read)
