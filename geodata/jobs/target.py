"""The dataset that appended records must fit: its schema and its label maps stay what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from geodata import schema as schemas
from geodata.errors import SchemaError
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
        """Return `read` with the dataset's fields where these hold whatever the source has."""
        known = {field.name: field for field in self.schema}
        return pa.schema(
            [
                known[field.name]
                if field.name in known and _holds(known[field.name], field)
                else field
                for field in read
            ]
        )

    def check(self, made: pa.Schema) -> None:
        """Raise SchemaError naming the first column that the dataset cannot hold."""
        known = {field.name: field for field in self.schema}
        for field in made:
            if field.name in SYSTEM or (field.name not in known and pa.types.is_null(field.type)):
                continue  # a column that never has a value is none
            if field.name not in known:
                raise SchemaError(
                    f"the dataset has no such column; the source has it as {_shown(field)}",
                    column=field.name,
                    hint="A dataset's schema stays: convert all of it into a new one",
                )
            if not _holds(known[field.name], field):
                raise SchemaError(
                    f"the dataset holds {_shown(known[field.name])}, the source {_shown(field)}",
                    column=field.name,
                    hint="Declare its type with --schema, or convert all of it into a new dataset",
                )

    def grown(self, names: Mapping[str, set[str]]) -> dict[str, list[str]]:
        """Return the label maps with these names; those that are new come at the end."""
        made = {column: list(known) for column, known in self.labels.items()}
        for column, seen in names.items():
            known = made.setdefault(column, [])
            known += sorted(seen.difference(known), key=str.encode)
        return made


def _holds(known: pa.Field, found: pa.Field) -> bool:
    """Return whether a column can take values of a source's, each as it is.

    Where that depends on the values (integers as float64, positive ones as uint64), reading tells.
    """
    if pa.types.is_null(found.type):
        return True
    if _role(known) != _role(found):
        return False
    kind = bare(known.type)
    try:
        return bool(united(kind, _aimed(bare(found.type), kind), "", first_wins=False).equals(kind))
    except Clash:
        return False


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
