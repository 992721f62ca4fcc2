"""Hugging Face datasets, map-style: Arrow files, mapped into memory and read by random access."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value, concatenate_datasets

from benchmarks.peers.base import Read, data_loader, records
from benchmarks.workloads import Corpus


class HfDatasets:
    """Samples are dicts of Python objects."""

    key = "payload"

    def output(self, folder: Path) -> Path:
        """Return the folder of the Arrow files."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write Arrow files from a generator, in one process."""
        images = corpus.workload.name == "img"
        features = {"payload": Value("binary" if images else "string")}
        if images:
            features["label"] = Value("int64")
        Dataset.from_generator(
            records,
            features=Features(features),
            cache_dir=str(folder),
            gen_kwargs={"corpus": corpus},
        )

    def batches(self, read: Read) -> Iterable[Any]:
        """Read by random access, shuffled."""
        files = sorted(read.folder.rglob("*.arrow"))
        dataset = concatenate_datasets([Dataset.from_file(str(path)) for path in files])
        return data_loader(dataset, read, self.key, shuffle=True)
