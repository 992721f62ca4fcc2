"""Plain files: one a sample, or one of JSON lines whose offsets are found when it is opened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from benchmarks.peers.base import Read, data_loader


class Files:
    """The corpus as it is."""

    key = 0

    def output(self, folder: Path) -> Path:
        """Return nothing of its own: the corpus is read."""
        return folder

    def batches(self, read: Read) -> Iterable[Any]:
        """Read by random access, shuffled."""
        if read.corpus.workload.name == "img":
            return data_loader(Images(read.corpus.images()), read, self.key, shuffle=True)
        return data_loader(Lines(read.corpus.source), read, self.key, shuffle=True)


class Images(Dataset[tuple[bytes, int]]):
    """One file a sample."""

    def __init__(self, files: list[tuple[Path, int]]):
        self._files = [(str(path), label) for path, label in files]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, label = self._files[index]
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(), label


class Lines(Dataset[tuple[str]]):
    """One line a sample."""

    def __init__(self, path: Path):
        data = np.memmap(path, np.uint8, "r")
        self._ends = np.flatnonzero(data == ord("\n")) + 1
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[str]:
        start = int(self._ends[index - 1]) if index else 0
        line = os.pread(self._file, int(self._ends[index]) - start, start)
        return (json.loads(line)["text"],)
