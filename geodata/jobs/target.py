"""The dataset that appended records must fit: its schema, whose types may widen, and label maps.

A column of the dataset takes a source's values as they are; where its type cannot, it widens to one
that holds those that are there and those that come, if `formats.widening` knows that none can be
lost (null to any type, int8 to int64, at any depth). The shards that are there stay as they are.
Other columns than the dataset's are refused: its schema has the columns that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import SchemaError
from geodata.formats.widening import widens
from geodata.jobs.base import digest_of
from geodata.manifest import Index
from geodata.schema import SYSTEM, is_label, is_origin, is_tensor, media_of
from geodata.sources.unite import Clash, bare, united


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset's schema, and its label maps, which grow at their ends alone."""

    schema: pa.Schema
    labels: Mapping[str, list[str]]

    @classmethod
    def of(cls, index: Index) -> Target:
        """Return the target that a version is."""
        return cls(schemas.from_json(index.schema_), index.labels)

    @property
    def digest(self) -> str:
        """Return the digest of schema and labels."""
        return digest_of([schemas.to_json(self.schema), dict(self.labels)])

    @property
    def origin(self) -> str | None:
        """Return the name of the column that says where records stood, if there is one."""
        return next((field.name for field in self.schema if is_origin(field)), None)

    def aimed(self, read: pa.Schema) -> pa.Schema:
        """Return `read` with the fields that the dataset is to have, where it can have them."""
        known = {field.name: field for field in self.schema}
        return pa.schema(
            [
                _holding(known[field.name], field) or field if field.name in known else field
                for field in read
            ]
        )

    def widened(self, made: pa.Schema) -> pa.Schema:
        """Return the dataset's schema as it is to be, so that it holds records of `made`.

        SchemaError naming the first column that it cannot hold.
        """
        found = {field.name: field for field in made if field.name not in SYSTEM}
        for name, field in found.items():
            if name not in self.schema.names and not pa.types.is_null(field.type):
                raise SchemaError(
                    f"the dataset has no such column; the source has it as {_shown(field)}",
                    column=name,
                    hint="A dataset's columns stay: convert all of it into a new one",
                )
        return pa.schema([_widened(known, found.get(known.name)) for known in self.schema])

    def changes(self, schema: pa.Schema, labels: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return what a version's index has in the place of this one's."""
        same = schema.equals(self.schema, check_metadata=True)
        changed = {} if same else {"schema_": schemas.to_json(schema)}
        return changed if labels == self.labels else {**changed, "labels": dict(labels)}

    def grown(self, names: Mapping[str, set[str]]) -> dict[str, list[str]]:
        """Return the label maps with these names; those that are new come at the end."""
        made = {column: list(known) for column, known in self.labels.items()}
        for column, seen in names.items():
            known = made.setdefault(column, [])
            known += sorted(seen.difference(known), key=str.encode)
        return made


def _widened(known: pa.Field, found: pa.Field | None) -> pa.Field:
    """Return a column's field so that it takes a source's values too; SchemaError if none can."""
    if found is None:
        return known
    field = _holding(known, found)
    if field is None:
        raise SchemaError(
            f"the dataset holds {_shown(known)}, the source {_shown(found)}",
            column=known.name,
            hint="Declare its type with --schema, or convert both together: "
            "geodata convert --replace",
        )
    return field


def _holding(known: pa.Field, found: pa.Field) -> pa.Field | None:
    """Return the field that holds a column's values and those of a source, None if none does.

    Where that depends on the values (integers as float64, positive ones as uint64), reading tells.
    """
    if pa.types.is_null(found.type):
        return known
    if pa.types.is_null(known.type):
        return found
    if _role(known) != _role(found):
        return None
    kind = bare(known.type)
    try:
        both = united(kind, _aimed(bare(found.type), kind), "", first_wins=False)
    except Clash:
        return None
    if both.equals(kind):
        return known
    return known.with_type(both) if widens(known.type, both) else None


def _aimed(found: pa.DataType, known: pa.DataType) -> pa.DataType:
    """Return a source's type, with the dataset's at the places where the values decide."""
    if pa.types.is_integer(found) and (pa.types.is_float64(known) or _are_64(found, known)):
        return known
    if pa.types.is_struct(found) and pa.types.is_struct(known):
        below = {field.name: field.type for field in known}
        return pa.struct([(f.name, _aimed(f.type, below.get(f.name, f.type))) for f in found])
    if pa.types.is_list(found) and pa.types.is_list(known):
        return pa.list_(_aimed(found.value_type, known.value_type))
    return found


def _are_64(found: pa.DataType, known: pa.DataType) -> bool:
    return bool(pa.types.is_int64(found) and pa.types.is_uint64(known))


def _role(field: pa.Field) -> tuple[str | None, bool, bool, bool]:
    return media_of(field), is_label(field), is_tensor(field), is_origin(field)


def _shown(field: pa.Field) -> str:
    media, label, *_ = _role(field)
    return media or ("labels" if label else str(field.type))
