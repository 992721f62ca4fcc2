"""Tars for tests, made and read."""

import bz2
import gc
import gzip
import io
import lzma
import tarfile
import warnings

import numpy as np
import pyarrow as pa
import webdataset
from source_reading import read_all

from geodata.sources import open_source

JPG = b"\xff\xd8\xff\xe0" + b"x" * 300


def tar_bytes(*members, form=tarfile.PAX_FORMAT):
    """Return a tar of (name, content) in order; a TarInfo stands for itself."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def write_tar(path, *members, **options):
    path.write_bytes(tar_bytes(*members, **options))
    return path


def special(name, kind, **more):
    info = tarfile.TarInfo(name)
    info.type = kind
    for attribute, value in more.items():
        setattr(info, attribute, value)
    return info


def zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACKERS = {".tar.gz": gzip.compress, ".tgz": gzip.compress, ".tar.bz2": bz2.compress}
PACKERS |= {".tar.zst": zstd, ".tar.xz": lzma.compress}


def read(path, target=1 << 30, **options):
    return read_all(open_source(path, kind="webdataset", source_id="s"), target, **options)


def stock(path, decode=False):
    """Return what webdataset's own reader reads; it leaves its file open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
        found = list(dataset.decode() if decode else dataset)
        del dataset
        gc.collect()
    return found


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tensor(array):
    return {"data": array.reshape(-1).tolist(), "shape": list(array.shape)}


def rejected(path):
    return [(bad.file, bad.row, bad.reason) for bad in read(path).rejects]
