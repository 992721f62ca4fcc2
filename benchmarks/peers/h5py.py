"""One HDF5 file with values of variable length, read by random access."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch.utils.data import Dataset

from benchmarks.peers.base import Read, data_loader, record_runs
from benchmarks.workloads import Corpus

FILE = "data.h5"
RUN = 256
"""Samples of one write."""


class H5py:
    """Images as arrays of bytes, text as strings."""

    key = 0

    def output(self, folder: Path) -> Path:
        """Return the folder of the file."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write runs of samples."""
        folder.mkdir(parents=True)
        images = corpus.workload.name == "img"
        kind = h5py.vlen_dtype(np.uint8) if images else h5py.string_dtype()
        with h5py.File(folder / FILE, "w") as file:
            stored = {"payload": file.create_dataset("payload", (0,), kind, maxshape=(None,))}
            if images:
                stored["label"] = file.create_dataset("label", (0,), np.int64, maxshape=(None,))
            for run in record_runs(corpus, RUN):
                for name, dataset in stored.items():
                    start = len(dataset)
                    dataset.resize((start + len(run),))
                    dataset[start:] = _column([record[name] for record in run])

    def batches(self, read: Read) -> Iterable[Any]:
        """Read by random access, shuffled."""
        return data_loader(Values(read.folder / FILE), read, self.key, shuffle=True)


class Values(Dataset[tuple[Any, ...]]):
    """The values of the file, which each process opens itself."""

    def __init__(self, path: Path):
        self._path, self._pid = path, 0
        with h5py.File(path) as file:
            self._count = len(file["payload"])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if self._pid != os.getpid():
            file, self._pid = h5py.File(self._path), os.getpid()
            self._columns = [file[name] for name in ("payload", "label") if name in file]
        return tuple(column[index] for column in self._columns)


def _column(values: list[Any]) -> Any:
    if not isinstance(values[0], bytes):
        return values
    column = np.empty(len(values), object)
    column[:] = [np.frombuffer(value, np.uint8) for value in values]
    return column
