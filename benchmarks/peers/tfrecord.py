"""One TFRecord file of `tf.train.Example` with its index, by the package `tfrecord`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfrecord import TFRecordWriter
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.torch.dataset import TFRecordDataset

from benchmarks.peers.base import Read, data_loader, records
from benchmarks.workloads import Corpus

FILE, INDEX = "data.tfrecord", "data.index"
SHUFFLED = 1024
"""Records of the shuffle buffer, as in the package's own example."""


class TfRecord:
    """Text is stored as its bytes, and handed over so."""

    key = "payload"

    def output(self, folder: Path) -> Path:
        """Return the folder of the file and its index."""
        return folder

    def convert(self, corpus: Corpus, folder: Path) -> None:
        """Write the records, then the index that splits them over workers."""
        folder.mkdir(parents=True)
        writer = TFRecordWriter(str(folder / FILE))
        for record in records(corpus):
            payload = record["payload"]
            data = payload.encode() if isinstance(payload, str) else payload
            example: dict[str, tuple[Any, str]] = {"payload": (data, "byte")}
            if "label" in record:
                example["label"] = (record["label"], "int")
            writer.write(example)
        writer.close()
        create_index(str(folder / FILE), str(folder / INDEX))

    def batches(self, read: Read) -> Iterable[Any]:
        """Read each worker's part in sequence, through a shuffle buffer."""
        label = {"label": "int"} if read.corpus.workload.name == "img" else {}
        dataset = TFRecordDataset(
            str(read.folder / FILE),
            str(read.folder / INDEX),
            {"payload": "byte", **label},
            shuffle_queue_size=SHUFFLED,
        )
        return data_loader(dataset, read, self.key)
