"""What a subject of the measurements is, which there are, and what they share.

All are given the same corpus and hand over the same samples, each in its own order, in batches of
the same size, through a torch DataLoader with the same number of workers and the same prefetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.workloads import SIDE, Corpus

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from torch.utils.data import DataLoader

PREFETCH = 2
SHARD_NBYTES = 64 << 20
FEWEST_SHARDS = 8
OURS = "geodata/"
"""Begins the names of this project's formats."""


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of what a subject has written into `folder`; `decode`: JPEG to uint8."""

    corpus: Corpus
    folder: Path
    workers: int
    decode: bool = False

    @property
    def batch(self) -> int:
        """Return the samples of a batch."""
        return self.corpus.workload.batch


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch in one buffer: sample i is data[offsets[i]:offsets[i + 1]]."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def length(self) -> int:
        """Return the bytes of all samples."""
        return int(self.offsets[-1] - self.offsets[0])

    def __iter__(self) -> Iterator[memoryview]:
        view = memoryview(self.data)
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield view[start:stop]


class Subject(Protocol):
    """A library, or a format of ours; it is imported in the process that measures it.

    Each of its steps (`steps_of`) is a method of (corpus, folder) that is measured on its own.
    """

    key: int | str
    """Where the payload stands in a sample, if batches are lists of samples."""

    def output(self, folder: Path) -> Path:
        """Return where the data lies that is read."""

    def batches(self, read: Read) -> Iterable[Any]:
        """Open what the steps have written; return an epoch of batches.

        A batch is a list of samples or `Packed`; decoded, a tensor uint8 [B, 224, 224, 3] or with
        the colours second.
        """


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a peer's adapter is, which distributions it needs, and how its data are made."""

    path: str
    packages: tuple[str, ...] = ()
    steps: tuple[str, ...] = ("convert",)


PEERS = {
    "files": Peer("benchmarks.peers.files:Files", steps=()),
    "pyarrow": Peer("benchmarks.peers.pyarrow:Rows", ("pyarrow",)),
    "pyarrow-batches": Peer("benchmarks.peers.pyarrow:Batches", ("pyarrow",)),
    "h5py": Peer("benchmarks.peers.h5py:H5py", ("h5py",)),
    "tfrecord": Peer("benchmarks.peers.tfrecord:TfRecord", ("tfrecord",)),
    "webdataset": Peer("benchmarks.peers.webdataset:WebDataset", ("webdataset",)),
    "hf-datasets": Peer("benchmarks.peers.hf_datasets:HfDatasets", ("datasets",)),
    "litdata": Peer("benchmarks.peers.litdata:LitData", ("litdata",)),
    "mosaicml": Peer("benchmarks.peers.mosaicml:MosaicMl", ("mosaicml-streaming",)),
}


def steps_of(name: str) -> tuple[str, ...]:
    """Return the methods that turn the corpus into what is read, in order."""
    return PEERS[name].steps if name in PEERS else ("convert", "shard")


def names(formats: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Return the subjects: our formats, then the peers."""
    return [f"{OURS}{name}" for name in formats] + list(peers)


def load(name: str) -> Subject:
    """Import a subject."""
    if name.startswith(OURS):
        from benchmarks.peers.ours import Ours

        return Ours(name.removeprefix(OURS))
    module, _, attribute = PEERS[name].path.partition(":")
    made: Subject = getattr(import_module(module), attribute)()
    return made


def missing(name: str) -> str | None:
    """Return the first distribution that a subject lacks."""
    for package in PEERS[name].packages if name in PEERS else ():
        try:
            version(package)
        except PackageNotFoundError:
            return package
    return None


def describe(subjects: Sequence[str]) -> list[str]:
    """Return the distributions whose versions belong to the results."""
    peers = [package for name in subjects if name in PEERS for package in PEERS[name].packages]
    ours = ["geodata-train", "numpy", "pyarrow", "simplejpeg", "torch"]
    return sorted({*ours, *peers})


def shard_nbytes(corpus: Corpus) -> int:
    """Return how large shards are at most: 64 MiB, and less for a small corpus."""
    files = [path for path, _label in corpus.images()] if _has_images(corpus) else [corpus.source]
    total = sum(path.stat().st_size for path in files)
    return min(SHARD_NBYTES, max(total // FEWEST_SHARDS, 1))


def _has_images(corpus: Corpus) -> bool:
    return corpus.workload.name == "img"


def records(corpus: Corpus) -> Iterator[dict[str, Any]]:
    """Yield the samples as a peer is given them: `payload`, and with images `label`."""
    for payload, label in corpus.samples():
        yield {"payload": payload, "label": label} if _has_images(corpus) else {"payload": payload}


def record_runs(corpus: Corpus, length: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the samples in runs of at most `length`."""
    left = records(corpus)
    while run := list(islice(left, length)):
        yield run


def data_loader(
    dataset: Any, read: Read, key: int | str, *, shuffle: bool | None = None
) -> DataLoader[Any]:
    """Return a DataLoader of batches as lists of samples, or of decoded images."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=read.batch,
        shuffle=shuffle,
        num_workers=read.workers,
        prefetch_factor=PREFETCH if read.workers else None,
        collate_fn=collate(read, key),
    )


def loader_of_batches(dataset: Any, read: Read) -> DataLoader[Any]:
    """Return a DataLoader whose dataset makes the batches itself."""
    from torch.utils.data import DataLoader

    prefetch = PREFETCH if read.workers else None
    return DataLoader(dataset, batch_size=None, num_workers=read.workers, prefetch_factor=prefetch)


def collate(read: Read, key: int | str) -> Any:
    """Return what turns a list of samples into a batch, in the process that has read them."""
    return partial(_decode_samples, key=key) if read.decode else list


def _decode_samples(samples: Sequence[Any], key: int | str) -> torch.Tensor:
    return decode([sample[key] for sample in samples])


def decode(payloads: Sequence[Any]) -> torch.Tensor:
    """Decode JPEGs of 224×224 into a tensor uint8 [B, 224, 224, 3]."""
    import simplejpeg
    import torch

    out = np.empty((len(payloads), SIDE, SIDE, 3), np.uint8)
    for image, payload in zip(out, payloads, strict=True):
        simplejpeg.decode_jpeg(payload, buffer=image)
    return torch.from_numpy(out)


def packed(column: pa.Array) -> Packed:
    """Return a column of bytes or text without nulls, uncopied."""
    import pyarrow as pa

    wide = column.type in (pa.large_binary(), pa.large_string())
    _validity, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    bounds = bounds[column.offset : column.offset + len(column) + 1]
    return Packed(np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0])
