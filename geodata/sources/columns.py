"""The columns of files that each have a schema, united by name without loss.

Every piece states its columns; united they give the schema. Where types alone do not allow it
(int64 with float64), the ranges that the pieces state may.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.schema import KEY, SUBJECT, SYSTEM, plain_type, tensor_field
from geodata.sources.base import Scan, first_rows
from geodata.sources.corpus import Corpus
from geodata.sources.observed import INT64, UINT64, check_name, with_text
from geodata.sources.tensors import is_fixed, is_varying, value_type
from geodata.sources.unite import Clash, bare, united

Range = tuple[int, int]
"""Smallest and largest integer of a column, or 0."""

Place = tuple[int, int]
"""Number of the file, number of the row in it; 0 where it holds for the whole file."""


STATED, SUBJECTS, DIFFERS = "stated", "subjects", "differs"
"""Parts of `Scan.columns`: what `Stated` says of each column; whether any subject is not null; the
column and row where a file differs from the name of its folder."""

_EXACT = 1 << 53
_KEPT_METADATA = (b"geodata.media", b"geodata.tensor")
_MEND = "Mend the source, or keep the first type and reject the rest: --on-error skip"


@dataclass(frozen=True, slots=True)
class Stated:
    """What a piece says of one of its columns.

    `types` are its values' with the row of the piece where each is first, 0 where the file has but
    one; `span` is the range of its integers, None where it is not known.
    """

    field: pa.Field
    types: tuple[tuple[pa.DataType, int], ...]
    span: Range | None = None


def wider(one: Range | None, other: Range | None) -> Range | None:
    """Return the range that holds both, None where one is not known."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def stated(schema: pa.Schema, spans: Mapping[str, Range | None]) -> list[Stated]:
    """Return what a file states that has one schema; `spans` are those of its integers."""
    return [
        Stated(_cleared(f), ((f.type, 0),), spans.get(f.name, type_span(f.type))) for f in schema
    ]


def type_span(kind: pa.DataType) -> Range | None:
    """Return the range of a type of integers, None for one of 64 bits."""
    if not pa.types.is_integer(kind):
        return 0, 0
    if kind.bit_width == 64:
        return None
    high = 1 << (kind.bit_width - (1 if pa.types.is_signed_integer(kind) else 0))
    return (-high if pa.types.is_signed_integer(kind) else 0), high - 1


def integer_fields(schema: pa.Schema) -> list[str]:
    """Return the columns of integers, those in dictionaries among them."""
    kinds = (f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema)
    return [
        name for name, kind in zip(schema.names, kinds, strict=True) if pa.types.is_integer(kind)
    ]


def unite_columns(corpus: Corpus, scans: Sequence[Scan], *, first_wins: bool) -> pa.Schema:
    """Return the schema that holds all columns stated; SchemaError names both types and files.

    When `first_wins`, columns that cannot be, for their names or types, are left out unless all
    are: no record fits that has them.
    """
    columns: dict[str, _Column] = {}
    faults: list[SchemaError] = []
    for scan, first_row in zip(scans, first_rows(scans), strict=True):
        found = [*_faults(corpus, scan, first_row, columns, first_wins)]
        faulty = {fault.fields["column"] for fault in found}
        for said in scan.columns.get(STATED, ()):
            name = said.field.name
            if name in SYSTEM or name in faulty:
                continue
            known = columns.get(name) or _Column(said.field)
            try:
                known.add(said, scan.file, first_row)
                columns[name] = known
            except SchemaError as error:
                found.append(_in_file(error, corpus.shown(scan.file)))
        if found and not first_wins:
            raise found[0]
        faults += found
    if faults and not columns:
        raise faults[0]
    return with_text([column.united(corpus, first_wins) for column in columns.values()])


@dataclass(slots=True)
class _Column:
    """What all pieces say of one column: its types in order, each with its first place."""

    field: pa.Field
    types: list[tuple[pa.DataType, Place]] = field(default_factory=list)
    span: Range | None = (0, 0)
    known: list[pa.DataType] = field(default_factory=list)
    """The types as files have them."""

    def add(self, said: Stated, file: int, first_row: int) -> None:
        """Note what one more piece says."""
        for kind, row in said.types:
            if not any(map(kind.equals, self.known)):
                self.known.append(kind)
                plain = bare(plain_type(kind, self.field.name))
                if not any(plain.equals(other) for other, _ in self.types):
                    self.types.append((plain, (file, row and row + first_row)))
        self.span = wider(self.span, said.span)

    def united(self, corpus: Corpus, first_wins: bool) -> pa.Field:
        """Return the field that holds all values."""
        kind = self._type(corpus, first_wins)
        if is_varying(kind) and any(is_fixed(other) for other, _ in self.types):
            return tensor_field(self.field.name, value_type(kind))
        return self.field.with_type(kind)

    def _type(self, corpus: Corpus, first_wins: bool) -> pa.DataType:
        kind, _ = self.types[0]
        for other, place in self.types[1:]:
            try:
                kind = united(kind, other, self.field.name, first_wins=False)
            except Clash:
                wide = self._by_range()
                if wide is not None:
                    return wide
                if not first_wins:
                    raise self._conflict(corpus, other, place) from None
                kind = united(kind, other, self.field.name, first_wins=True)
        return kind

    def _by_range(self) -> pa.DataType | None:
        """Return the type of numbers whose types alone have none, if what they hold allows it."""
        kinds = [kind for kind, _ in self.types]
        floats = any(pa.types.is_floating(kind) for kind in kinds)
        if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
            return None
        if self.span is None:
            return None
        low, high = self.span
        if floats:
            return pa.float64() if low >= -_EXACT and high <= _EXACT else None
        if high in INT64:
            return pa.int64()
        return pa.uint64() if low in UINT64 else None

    def _conflict(self, corpus: Corpus, other: pa.DataType, place: Place) -> SchemaError:
        path, one, two, first = self.field.name, self.types[0][0], other, self.types[0][1]
        for kind, seen in self.types:
            try:
                united(kind, other, path, first_wins=False)
            except Clash as clash:
                path, one, two, first = clash.path, clash.one, clash.other, seen
                break
        return SchemaError(
            f"the column holds {one} (first in {_at(corpus, first)}) "
            f"and {two} (first in {_at(corpus, place)})",
            column=path,
            file=corpus.shown(place[0]),
            row=place[1] or None,
            hint=_MEND,
        )


def _at(corpus: Corpus, place: Place) -> str:
    file, row = place
    return f"{corpus.shown(file)} row {row}" if row else corpus.shown(file)


def _faults(
    corpus: Corpus, scan: Scan, first_row: int, known: Collection[str], first_wins: bool
) -> Iterator[SchemaError]:
    """Yield what is wrong with names, keys, subjects, and folders; each tells its column.

    `known` are names that were found sound before. Folders that lie are found row by row when
    `first_wins`.
    """
    where = {"file": corpus.shown(scan.file)}
    names = [said.field.name for said in scan.columns.get(STATED, ())]
    for name in names:
        if name not in known and name not in SYSTEM:
            try:
                check_name(name, (scan.file, 0), corpus.files)
            except SchemaError as error:
                yield error
    if len(set(names)) < len(names):
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield SchemaError("two columns have one name", column=name, **where)
    if KEY in names and not _is_text(scan.columns[STATED][names.index(KEY)].field.type):
        yield SchemaError("the key is not a string", column=KEY, **where)
    if scan.columns.get(SUBJECTS):
        hint = "Rename the column; pseudonyms are made when records are tagged"
        yield SchemaError("the name is reserved", column=SUBJECT, hint=hint, **where)
    if scan.columns.get(DIFFERS) and not first_wins:
        name, row = scan.columns[DIFFERS]
        yield SchemaError(
            "the column differs from the name of the file's folder",
            column=name,
            row=first_row + row,
            hint="Rename the folder, or take the column out of the file",
            **where,
        )


def _in_file(error: SchemaError, file: str) -> SchemaError:
    return SchemaError(error.message, hint=error.hint, **{**error.fields, "file": file})


def _is_text(kind: pa.DataType) -> bool:
    return plain_type(kind, KEY) in (pa.string(), pa.large_string())


def _cleared(column: pa.Field) -> pa.Field:
    """Return the field with no metadata but what says how its values are meant."""
    kept = {k: v for k, v in (column.metadata or {}).items() if k in _KEPT_METADATA}
    return pa.field(column.name, column.type, metadata=kept or None)
