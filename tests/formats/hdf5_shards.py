"""Shards in HDF5 for the tests: written, read, and with a table that lies."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from geodata.formats import get_format
from geodata.schema import dataset_schema

HEAD = 512
both = pytest.mark.parametrize("name", ["hdf5", "hdf5+gzip"])


def write(path, batch, unit_bytes=1 << 20, name="hdf5", **more):
    form = get_format(name)
    writer = form.create(path, batch.schema, unit_bytes=unit_bytes, metadata={}, **more)
    writer.write(batch)
    writer.close()


def open_shard(path):
    return get_format("hdf5").open(path)


def read(path, columns=None):
    reader = open_shard(path)
    return [reader.read_unit(unit, columns) for unit in range(len(reader.unit_slots))]


def records(fields, *columns):
    """Return records with these columns."""
    schema = dataset_schema(pa.schema(fields))
    count = len(columns[0])
    keys = pa.array([f"k{i}" for i in range(count)])
    arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays([keys, pa.nulls(count, pa.string()), *arrays], schema=schema)


def rewrite(path, change):
    """Change the table of a shard, and its digest too."""
    data = bytearray(path.read_bytes())
    head = json.loads(data[:HEAD])
    (start, nbytes), (about, length) = head["table"], head["about"]
    table = np.frombuffer(bytes(data[start : start + nbytes]), np.int64).copy()
    change(table.reshape(len(open_shard(path).unit_slots), -1), len(data))
    data[start : start + nbytes] = table.tobytes()
    content = data[about : about + length] + table.tobytes()
    head["sha256"] = hashlib.sha256(content).hexdigest()
    data[:HEAD] = json.dumps(head).encode().ljust(HEAD)
    path.write_bytes(data)


def run(code, *arguments, env=None):
    """Run code in another process; return its exit code and output."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent.parent)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
