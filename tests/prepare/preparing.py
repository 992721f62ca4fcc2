"""Runs steps over records as the conversion does."""

import pickle

import pyarrow as pa

from geodata.prepare import Preparing, prepared_schema, run_steps, steps_of
from geodata.schema import KEY, dataset_schema
from geodata.sources.batches import assemble


def records(columns, fields):
    """Return a batch of these columns, with keys k0, k1, …"""
    schema = dataset_schema(pa.schema(fields))
    count = len(next(iter(columns.values())))
    arrays = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
    return assemble(schema, [f"k{number}" for number in range(count)], arrays)


def prepared(batch, **asked):
    """Return what the steps make of a batch, and the rejects as (row, reason, raw)."""
    rejects = []
    steps = steps_of(pickle.loads(pickle.dumps(Preparing(**asked))))
    wanted = prepared_schema(batch.schema, steps)
    made = run_steps(batch, steps, lambda *reject: rejects.append(reject))
    made.validate(full=True)
    assert made.schema.equals(wanted, check_metadata=True)
    assert made.num_rows + len(rejects) == batch.num_rows
    kept = [f"k{row}" for row in range(batch.num_rows) if row not in {r[0] for r in rejects}]
    assert made.column(KEY).to_pylist() == kept
    return made, rejects
