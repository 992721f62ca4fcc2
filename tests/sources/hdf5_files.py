"""HDF5 files for tests, made and read."""

import h5py
import numpy as np
from source_reading import read_all

from geodata.sources import open_source

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


def write_arrays(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)


def read_file(path, target=1 << 30, **options):
    return read_all(open_source(path, source_id="s"), target, **options)


def tensors_of(read, name):
    kind = read.schema.field(name).type
    return np.concatenate([b.column(name).to_numpy_ndarray() for b in read.batches]), kind


def write_samples(path, count=5):
    with h5py.File(path, "w") as file:
        for i in range(count):
            group = file.create_group(f"sample_{i:04}")
            group["image"] = np.full((4, 4, 3), i, np.uint8)
            group["label"] = i % 2
            group["meta/name"] = f"name {i}"
            group.attrs["weight"] = i / 2
