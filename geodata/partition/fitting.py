"""Makes records of a staging dataset those of a dataset that is there: its columns, its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import SchemaError
from geodata.schema import is_label
from geodata.sources.batches import Unfit
from geodata.sources.unite import conform


@dataclass(frozen=True, slots=True)
class Fitting:
    """The dataset's schema, and for each label column the new number of each old one.

    `grown` are the dataset's label maps with the names that are new.
    """

    schema: dict[str, Any]
    labels: Mapping[str, tuple[int, ...]]
    grown: Mapping[str, list[str]]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records; columns that they have not are null."""
        schema = schemas.from_json(self.schema)
        present = set(batch.schema.names)
        arrays = [
            self._column(batch.column(field.name), field)
            if field.name in present
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if is_label(field) and field.name in self.labels:
            return pa.array(self.labels[field.name], field.type).take(array)
        try:
            return conform(array, field.type, field.name)
        except Unfit as error:
            raise SchemaError(
                f"a record does not fit the dataset: {error}", column=field.name
            ) from error
