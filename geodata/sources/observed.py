"""The types that were seen in values, each with the place it was seen first.

A node of the tree stands for one path of the records: a field, a field of a struct, the items of a
list. Integers are told apart by what can hold them, so that the type of a number needs no range.
Trees of pieces are united in order, and only then is a type chosen: null widens to anything,
integers to float64 when it holds each of them exactly, structs field by field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from geodata.errors import SchemaError
from geodata.schema import is_reserved, media_field
from geodata.sources.filelist import SourceFile

Place = tuple[int, int]
"""Number of the file, number of the row: in the piece at first, in the file once united."""

INT64 = range(-(1 << 63), 1 << 63)
UINT64 = range(1 << 64)
_DOUBLE = range(-(1 << 53), (1 << 53) + 1)
"""Integers that a float64 surely holds; beyond, only some."""

MAX_FIELDS = 10_000
"""Most fields of a schema, nested ones included."""
TOO_MANY_FIELDS = f"it has more than {MAX_FIELDS:,} fields"

_MOST_SHOWN = 120
"""Characters of a column's name in an error."""

_WIDE = "integer beyond 64 bits"
ODD = "integer that no double holds"
NEGATIVE = "negative int64"

_FAMILIES = {
    "bool": "bool",
    "int64": "number",
    NEGATIVE: "number",
    "uint64": "number",
    _WIDE: "number",
    ODD: "number",
    "double": "number",
    "string": "string",
    "list": "list",
    "struct": "struct",
}

_PLAIN = {type(None): "null", bool: "bool", float: "double", str: "string"}


@dataclass(slots=True)
class Seen:
    """What was seen at one path: the first place of each type, the fields and the items below."""

    first: dict[str, Place] = field(default_factory=dict)
    fields: dict[str, Seen] = field(default_factory=dict)
    items: Seen | None = None

    def absorb(self, later: Seen, first_row: int) -> None:
        """Unite with what was seen in a later piece, before which the file has `first_row` rows."""
        for kind, (file, row) in later.first.items():
            place = (file, row + first_row)
            self.first[kind] = min(self.first.get(kind, place), place)
        for name, below in later.fields.items():
            self.fields.setdefault(name, Seen()).absorb(below, first_row)
        if later.items is not None:
            self.items = self.items or Seen()
            self.items.absorb(later.items, first_row)


def see(seen: Seen, value: object, place: Place) -> None:
    """Note the type of `value`: null, bool, int, float, str, or a list or dict of such."""
    plain = _PLAIN.get(type(value))
    if plain is not None:
        if plain not in seen.first:
            seen.first[plain] = place
    elif isinstance(value, int):
        for kind in integer_kinds(value):
            seen.first.setdefault(kind, place)
    elif isinstance(value, dict):
        seen.first.setdefault("struct", place)
        see_fields(seen.fields, value, place)
    elif isinstance(value, list):
        seen.first.setdefault("list", place)
        if seen.items is None:
            seen.items = Seen()
        for item in value:
            see(seen.items, item, place)


def see_fields(fields: dict[str, Seen], record: dict[str, object], place: Place) -> None:
    """Note the types of the fields of `record`."""
    for name, value in record.items():
        below = fields.get(name)
        if below is None:
            below = fields[name] = Seen()
        see(below, value, place)


def integer_kinds(value: int) -> tuple[str, ...]:
    """Return what `value` is among the kinds of integers."""
    if value in UINT64:
        kind = "int64" if value in INT64 else "uint64"
    else:
        kind = NEGATIVE if value in INT64 else _WIDE
    return (kind,) if value in _DOUBLE or is_double(value) else (kind, ODD)


def is_double(value: int) -> bool:
    """Return whether a float64 holds the integer exactly."""
    try:
        return float(value) == value
    except OverflowError:
        return False


def number_type(kinds: Collection[str]) -> pa.DataType | None:
    """Return the type that holds all numbers of these kinds without loss, or None."""
    if "double" in kinds:
        return None if ODD in kinds else pa.float64()
    if _WIDE in kinds or ("uint64" in kinds and NEGATIVE in kinds):
        return None
    return pa.uint64() if "uint64" in kinds else pa.int64()


def schema_of(
    fields: dict[str, Seen],
    files: Sequence[SourceFile],
    *,
    first_wins: bool,
    choosing: type[Chooser] | None = None,
) -> pa.Schema:
    """Return the schema that holds all records seen, its types chosen by a Chooser of that kind.

    Raises SchemaError for a reserved or empty name, too many fields, or types without a common
    one. When `first_wins` such names are left out, unless all are, and the first type is taken.
    """
    fields = _named(fields, files, first_wins=first_wins)
    if sum(_size(seen) for seen in fields.values()) > MAX_FIELDS:
        raise SchemaError(
            f"the records have more than {MAX_FIELDS} fields in all",
            hint="Make varying names values: a list of {key, value} instead of an object",
        )
    chooser = (choosing or Chooser)(files, first_wins)
    return with_text([chooser.field_of(seen, name) for name, seen in fields.items()])


def _named(
    fields: dict[str, Seen], files: Sequence[SourceFile], *, first_wins: bool
) -> dict[str, Seen]:
    """Return the fields whose names columns can have: no record fits that has others."""
    named: dict[str, Seen] = {}
    faults: list[SchemaError] = []
    for name, seen in fields.items():
        try:
            check_name(name, min(seen.first.values()), files)
            named[name] = seen
        except SchemaError as error:
            faults.append(error)
    if faults and not (first_wins and named):
        raise faults[0]
    return named


def with_text(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of these fields, in which a string named `text` is a medium."""
    text = media_field("text", "text")
    marked = (f.name == "text" and f.type == pa.string() and not f.metadata for f in fields)
    return pa.schema([text if mark else f for f, mark in zip(fields, marked, strict=True)])


def check_name(name: str, place: Place, files: Sequence[SourceFile]) -> None:
    """Raise SchemaError for a column's name that is empty or reserved; row 0 is no row."""
    where = {"column": _shown(name), "file": files[place[0]].name, "row": place[1] or None}
    if not name:
        raise SchemaError("a field has no name", hint="Name it in the source", **where)
    if is_reserved(name):
        hint = "Rename the field in the source"
        raise SchemaError("names in double underscores are reserved", hint=hint, **where)


def _shown(path: str) -> str:
    """Return the name of a column as errors tell it."""
    return path if len(path) <= _MOST_SHOWN else f"{path[:_MOST_SHOWN]}…"


def too_many_fields(record: object) -> bool:
    """Return whether a record alone has more fields than a schema may."""
    seen = Seen()
    see(seen, record, (0, 0))
    return _size(seen) - 1 > MAX_FIELDS


def _size(seen: Seen) -> int:
    return 1 + sum(map(_size, seen.fields.values())) + (_size(seen.items) if seen.items else 0)


@dataclass(frozen=True)
class Chooser:
    """Chooses the type of each path."""

    files: Sequence[SourceFile]
    first_wins: bool

    def family(self, kind: str) -> str:
        """Return the name of the types with which `kind` may have a common one."""
        return _FAMILIES[kind]

    def field_of(self, seen: Seen, name: str) -> pa.Field:
        """Return the column of that name."""
        return pa.field(name, self.type_of(seen, name))

    def type_of(self, seen: Seen, path: str) -> pa.DataType:
        """Return the type that holds all values seen at `path`."""
        order = sorted((place, kind) for kind, place in seen.first.items() if kind != "null")
        if not order:
            return pa.null()
        family = self.family(order[0][1])
        if not self.first_wins:
            for place, kind in order:
                if self.family(kind) != family:
                    raise self.conflict(path, order[0], (place, kind))
        return self.in_family(family, seen, path)

    def in_family(self, family: str, seen: Seen, path: str) -> pa.DataType:
        """Return the type that holds all values of one family."""
        if family == "struct":
            return pa.struct(list(self._fields(seen, path)))
        if family == "list":
            below = seen.items or Seen()
            return pa.list_(self.type_of(below, f"{path}[]"))
        if family == "number":
            return self._number(seen.first, path)
        return pa.bool_() if family == "bool" else pa.string()

    def _fields(self, seen: Seen, path: str) -> Iterator[tuple[str, pa.DataType]]:
        for name, below in seen.fields.items():
            yield name, self.type_of(below, f"{path}.{name}")

    def _number(self, first: dict[str, Place], path: str) -> pa.DataType:
        numbers = {kind: place for kind, place in first.items() if _FAMILIES.get(kind) == "number"}
        common = number_type(numbers)
        if common is not None:
            return common
        if not self.first_wins:
            raise self._number_conflict(numbers, path)
        return _first_number(numbers)

    def _number_conflict(self, numbers: dict[str, Place], path: str) -> SchemaError:
        one, other = ("double", ODD) if "double" in numbers else (NEGATIVE, "uint64")
        if _WIDE in numbers and "double" not in numbers:
            file, row = numbers[_WIDE]
            hint = "Write it as a string, or reject such records: --on-error skip | quarantine"
            name = self.files[file].name
            message = f"the column holds an {_WIDE}"
            return SchemaError(message, hint=hint, column=_shown(path), file=name, row=row)
        return self.conflict(path, (numbers[one], one), (numbers[other], other))

    def conflict(self, path: str, one: tuple[Place, str], other: tuple[Place, str]) -> SchemaError:
        """Return the error of two kinds without a common type, each at its first place."""
        (first, kind), (second, other_kind) = sorted((one, other))
        message = (
            f"the column holds {kind} (first in {self._at(first)}) "
            f"and {other_kind} (first in {self._at(second)})"
        )
        hint = "Mend the source, or keep the first type and reject the rest: --on-error skip"
        file, row = second
        name = self.files[file].name
        return SchemaError(message, hint=hint, column=_shown(path), file=name, row=row)

    def _at(self, place: Place) -> str:
        return f"{self.files[place[0]].name} row {place[1]}"


def _first_number(numbers: dict[str, Place]) -> pa.DataType:
    """Return the type of the number seen first; of integers, the first that decides their sign."""
    order = sorted((place, kind) for kind, place in numbers.items() if kind not in (_WIDE, ODD))
    kinds = [kind for _, kind in order]
    if kinds and kinds[0] == "double":
        return pa.float64()
    deciding = next((kind for kind in kinds if kind in ("uint64", NEGATIVE)), "int64")
    return pa.uint64() if deciding == "uint64" else pa.int64()
