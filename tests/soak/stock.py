"""Records as the stock library of each format reads them, without any code of ours."""

import json

import h5py
import numpy as np
import pyarrow.parquet as pq
import tfrecord
import webdataset

EXTENSIONS = {"txt", "png", "jpg", "webp", "gif", "bmp", "tif", "bin", "wav", "ogg", "flac", "mp3"}


def stock_records(form, file, column):
    """Yield (key, bytes) of a text or media column; null counts as empty."""
    yield from READERS[form](file, column)


def _parquet(file, column):
    for batch in pq.ParquetFile(file).iter_batches(1000, columns=["__key__", column]):
        for key, value in zip(
            *(c.to_pylist() for c in batch.select(["__key__", column])), strict=True
        ):
            yield key, value.encode() if isinstance(value, str) else value or b""


def _webdataset(file, column):
    for sample in webdataset.WebDataset(file, shardshuffle=False):
        record = json.loads(sample["json"])
        if column in record:
            yield record["__key__"], (record[column] or "").encode()
            continue
        found = [value for name, value in sample.items() if name in EXTENSIONS]
        yield record["__key__"], found[0] if found else b""


def _hdf5(file, column):
    with h5py.File(file) as shard:
        keys, values = (
            (shard[f"{name}/data"], shard[f"{name}/offsets"][:]) for name in ("__key__", column)
        )
        for row in range(len(keys[1]) - 1):
            key, value = (
                np.asarray(data[offsets[row] : offsets[row + 1]]).tobytes()
                for data, offsets in (keys, values)
            )
            yield key.decode(), value


def _tfrecord(file, column):
    for record in tfrecord.tfrecord_loader(file, None, None):
        value = record.get(column)
        yield bytes(record["__key__"]).decode(), b"" if value is None else bytes(value)


READERS = {
    "parquet": _parquet,
    "webdataset": _webdataset,
    "webdataset+gzip": _webdataset,
    "webdataset+xz": _webdataset,
    "hdf5": _hdf5,
    "hdf5+gzip": _hdf5,
    "tfrecord": _tfrecord,
}
