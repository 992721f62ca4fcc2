"""Parquet by hand: row groups in random order, their rows shuffled, split over the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.peers.base import (
    Read,
    data_loader,
    decode,
    loader_of_batches,
    packed,
    record_runs,
)
from benchmarks.workloads import Corpus

FILE = "data.parquet"
GROUP_ROWS = {"img": 64, "txt": 1024}
MIXED_GROUPS = 4
"""Row groups that are shuffled together where batches are cut from tables."""


class Parquet:
    """One Parquet file; images are stored as they are, text with pyarrow's default compression."""

    key = 0

    def output(self, folder: Path) -> Path:
        """Return the folder of the file."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write row groups."""
        folder.mkdir(parents=True)
        images = corpus.workload.name == "img"
        label = [pa.field("label", pa.int64())] if images else []
        schema = pa.schema([pa.field("payload", pa.binary() if images else pa.string()), *label])
        stored: dict[str, Any] = {"compression": "none", "use_dictionary": False} if images else {}
        with pq.ParquetWriter(folder / FILE, schema, **stored) as file:
            for run in record_runs(corpus, GROUP_ROWS[corpus.workload.name]):
                file.write_table(pa.Table.from_pylist(run, schema))


class Rows(Parquet):
    """Samples as Python objects, batched by the DataLoader."""

    def batches(self, read: Read) -> Iterable[Any]:
        """Read row groups, and hand over their rows."""
        return data_loader(RowDataset(read.folder / FILE), read, self.key)


class Batches(Parquet):
    """Batches as Arrow record batches, without a Python object for each sample."""

    def batches(self, read: Read) -> Iterable[Any]:
        """Read row groups, and hand over tables cut to the size of a batch."""
        dataset = BatchDataset(read.folder / FILE, read.batch, read.decode)
        loader = loader_of_batches(dataset, read)
        return loader if read.decode else (packed(batch.column("payload")) for batch in loader)


class RowDataset(IterableDataset[tuple[Any, ...]]):
    """The rows of the row groups of this worker."""

    def __init__(self, path: Path):
        self._path = path

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for table in _tables(self._path, 1):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


class BatchDataset(IterableDataset[Any]):
    """Record batches of the row groups of this worker; decoded, tensors."""

    def __init__(self, path: Path, rows: int, decoded: bool):
        self._path, self._rows, self._decoded = path, rows, decoded

    def __iter__(self) -> Iterator[Any]:
        for table in _tables(self._path, MIXED_GROUPS):
            for batch in table.combine_chunks().to_batches(max_chunksize=self._rows):
                if self._decoded:
                    yield decode(list(packed(batch.column("payload"))))
                else:
                    yield batch


def _tables(path: Path, together: int) -> Iterator[pa.Table]:
    """Yield this worker's row groups, some together, in random order with their rows shuffled."""
    rng = np.random.default_rng(0)
    worker = get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    file = pq.ParquetFile(path, memory_map=True)
    groups = rng.permutation(file.num_row_groups)[first::step]
    for start in range(0, len(groups), together):
        table = file.read_row_groups(groups[start : start + together].tolist(), use_threads=False)
        yield table.take(rng.permutation(table.num_rows))
