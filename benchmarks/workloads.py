"""The workloads: a corpus on disk, and what whoever reads all of it must have been given."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCUMENTS = "documents.jsonl"
SIDE = 224
"""Pixels of an image, either way."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of corpus, and in which batches it is read."""

    name: str
    samples: str
    """What its samples are called."""
    batch: int
    count: int
    """Samples of a full corpus."""
    smoke: int
    """Samples of a corpus that only shows that everything runs."""


WORKLOADS = {
    "img": Workload("img", "images", batch=256, count=20_000, smoke=600),
    "txt": Workload("txt", "documents", batch=1024, count=200_000, smoke=4_000),
}


@dataclass(slots=True)
class Tally:
    """What was handed over; equal tallies hold the same samples, in whatever order.

    `characters` equals `nbytes` but for text; `checksum` is the sum of the samples' CRC-32.
    """

    samples: int = 0
    nbytes: int = 0
    characters: int = 0
    checksum: int = 0

    def add(self, payload: Any) -> None:
        """Count a sample: text, or bytes of any kind."""
        data = payload.encode() if isinstance(payload, str) else payload
        self.samples += 1
        self.nbytes += len(data)
        self.characters += len(payload)
        self.checksum += zlib.crc32(data)

    def same_samples(self, other: Tally) -> bool:
        """Return whether both hold the same samples, be it as text or as its bytes."""
        ours, theirs = ((t.samples, t.nbytes, t.checksum) for t in (self, other))
        return ours == theirs


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus: JPEG files in a folder for each class, or one file of JSON lines."""

    workload: Workload
    folder: Path

    @property
    def source(self) -> Path:
        """Return what `geodata convert` is given."""
        return self.folder if self.workload.name == "img" else self.folder / DOCUMENTS

    def images(self) -> list[tuple[Path, int]]:
        """Return the files, sorted by name, with the number of their class."""
        classes = sorted(path for path in self.folder.iterdir() if path.is_dir())
        return [(file, i) for i, path in enumerate(classes) for file in sorted(path.iterdir())]

    def samples(self) -> Iterator[tuple[Any, int]]:
        """Yield each sample: (bytes of a JPEG, class) or (text, 0)."""
        if self.workload.name == "img":
            for path, label in self.images():
                yield path.read_bytes(), label
        else:
            with self.source.open(encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)["text"], 0

    def tally(self) -> Tally:
        """Return what the corpus holds."""
        tally = Tally()
        for payload, _label in self.samples():
            tally.add(payload)
        return tally


def open_corpus(root: Path, name: str) -> Corpus | None:
    """Return the corpus that `python -m benchmarks corpus` wrote below `root`; None without one."""
    corpus = Corpus(WORKLOADS[name], root / name)
    return corpus if corpus.source.exists() else None
