"""MosaicML Streaming: MDS shards, read from the local disk."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.base import Read, data_loader, records, shard_nbytes
from benchmarks.workloads import Corpus

if find_spec("torchvision") is None:
    # The package imports torchvision for datasets of its own that are not used here.
    sys.modules["streaming.vision"] = ModuleType("streaming.vision")

from streaming import MDSWriter, StreamingDataset

COLUMNS = {"img": {"payload": "bytes", "label": "int"}, "txt": {"payload": "str"}}


class MosaicMl:
    """Samples are dicts."""

    key = "payload"

    def output(self, folder: Path) -> Path:
        """Return the folder of the shards."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write shards."""
        columns = COLUMNS[corpus.workload.name]
        limit = shard_nbytes(corpus)
        with MDSWriter(columns=columns, out=str(folder), size_limit=limit) as writer:
            for record in records(corpus):
                writer.write(record)

    def batches(self, read: Read) -> Iterable[Any]:
        """Read shards in its shuffled order."""
        dataset = StreamingDataset(local=str(read.folder), shuffle=True, batch_size=read.batch)
        return data_loader(dataset, read, self.key)
