"""LitData: chunks by `optimize` with one process, read by its own dataset and loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import litdata

from benchmarks.peers.base import PREFETCH, Read, collate, record_runs, shard_nbytes
from benchmarks.workloads import Corpus

RUN = 1000
"""Samples of one input of `optimize`."""


class LitData:
    """Samples are dicts, as they were stored."""

    key = "payload"

    def output(self, folder: Path) -> Path:
        """Return the folder of the chunks."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write chunks."""
        litdata.optimize(
            fn=_samples,
            inputs=[corpus],
            output_dir=str(folder),
            chunk_bytes=shard_nbytes(corpus),
            num_workers=1,
            reorder_files=False,
            start_method="fork",
            verbose=False,
        )

    def batches(self, read: Read) -> Iterable[Any]:
        """Read whole chunks, shuffled."""
        dataset = litdata.StreamingDataset(str(read.folder), shuffle=True, drop_last=False)
        return litdata.StreamingDataLoader(
            dataset,
            batch_size=read.batch,
            num_workers=read.workers,
            prefetch_factor=PREFETCH if read.workers else None,
            collate_fn=collate(read, self.key),
        )


def _samples(corpus: Corpus) -> Iterator[dict[str, Any]]:
    for run in record_runs(corpus, RUN):
        yield from run
