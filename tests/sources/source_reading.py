"""Reads a whole source the way the conversion does, checking what holds for every kind."""

import pickle
from collections import Counter
from dataclasses import dataclass, field, replace

import pyarrow as pa

from geodata.schema import KEY, SUBJECT, dataset_schema
from geodata.sources import Reject, first_rows
from geodata.sources.base import Countable


@dataclass
class Read:
    """All that a source gave: records by key in order, the rejected ones, the schema.

    `ignored` is what its files hold beside records.
    """

    schema: pa.Schema
    records: dict[str, dict]
    rejects: list[Reject]
    batches: list[pa.RecordBatch]
    ignored: Counter[str] = field(default_factory=Counter)

    def column(self, name):
        return [record[name] for record in self.records.values()]

    def reasons(self):
        return [(reject.row, reject.reason) for reject in self.rejects]


def read_all(source, target_bytes=1 << 30, *, first_wins=False, schema=None):
    """Read a source in pieces of about `target_bytes`."""
    source = pickle.loads(pickle.dumps(source))
    pieces = source.pieces(target_bytes)
    scans = pickle.loads(pickle.dumps([source.scan(piece) for piece in pieces]))
    if isinstance(source, Countable):
        for piece, scan in zip(pieces, scans, strict=True):
            assert source.count(piece) == replace(scan, columns={})
    columns = source.merge(scans, first_wins=first_wins)
    names = {}
    for scan in scans:
        for column, seen in scan.labels.items():
            names.setdefault(column, set()).update(seen)
    labels = {column: sorted(seen, key=str.encode) for column, seen in names.items()}
    stored = dataset_schema(columns) if schema is None else schema
    ignored = sum((scan.ignored for scan in scans), Counter())
    read = Read(columns, {}, [], [], ignored)
    for piece, scan, first_row in zip(pieces, scans, first_rows(scans), strict=True):
        before = len(read.records) + len(read.rejects)
        for batch in source.read(piece, first_row, stored, labels, read.rejects.append):
            assert batch.schema.equals(stored, check_metadata=True)
            batch.validate(full=True)
            assert batch.nbytes <= 9 << 20 or batch.num_rows == 1
            assert batch.num_rows > 0
            assert batch.column(SUBJECT).null_count == batch.num_rows
            read.batches.append(batch)
            for record in batch.to_pylist():
                key = record.pop(KEY)
                del record[SUBJECT]
                assert key is not None
                assert key not in read.records
                read.records[key] = record
        assert len(read.records) + len(read.rejects) - before == scan.rows
    return read
