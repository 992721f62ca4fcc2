"""Shards of our own as raw corpora, and records of every type for them."""

import pyarrow as pa
from formats.typematrix import COLUMNS

from geodata.formats import get_format
from geodata.schema import dataset_schema


def write_own(name, path, batch, unit_bytes=20_000):
    """Write a shard of the format `name`."""
    writer = get_format(name).create(path, batch.schema, unit_bytes=unit_bytes, metadata={})
    writer.write(batch)
    writer.close()
    return path


def typed(name):
    """Return records with the values of a type in the column `value`."""
    array = COLUMNS[name]
    schema = dataset_schema(pa.schema([("value", array.type)]))
    keys = pa.array([f"dir/row {i}.x" for i in range(len(array))])
    subjects = pa.nulls(len(array), pa.string())
    return pa.RecordBatch.from_arrays([keys, subjects, array], schema=schema)


def batches_of(source):
    """Return all of a source that has one piece, as one batch."""
    (piece,) = source.pieces(1 << 30)
    columns = source.merge([source.scan(piece)])
    rejects = []
    found = list(source.read(piece, 0, dataset_schema(columns), {}, rejects.append))
    assert rejects == []
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0]
