"""Gives each record its region and its tag, and the data subject a pseudonym.

The rules are data (the `tagging` section); the first rule that matches decides. A record whose
region is not found goes to the region of `unknown` and is personal there unless a rule says
otherwise; so is a record that no rule matches.
"""

from __future__ import annotations

import datetime as dt
import difflib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.config import Condition, RegionRule, RegionSection, TaggingSection, TagValues
from geodata.durable import create_exclusive
from geodata.errors import ConfigError, SchemaError
from geodata.schema import KEY, SUBJECT, SYSTEM
from geodata.tags import Tag, law_of, quarter_floor

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

SUBJECT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Classes:
    """The tags of a batch: row i has tag `tags[number[i]]`; `unknown` marks rows without region."""

    number: Int64s
    tags: Sequence[Tag]
    unknown: Bools


class Classifier:
    """Tags record batches by the rules of a config, as of a day."""

    def __init__(
        self,
        tagging: TaggingSection,
        regions: Mapping[str, RegionSection],
        today: dt.date,
        keys: Mapping[str, bytes],
    ):
        self._tagging = tagging
        self._regions = sorted(regions)
        self._keys = keys
        tags = self._make_tags(regions, today)
        self.tags = list(dict.fromkeys(tags))
        self._number = np.array([self.tags.index(tag) for tag in tags], np.int64)

    def _make_tags(self, regions: Mapping[str, RegionSection], today: dt.date) -> list[Tag]:
        """Return the tags of each region × (each rule, then no rule), region by region."""
        values = [rule.tag for rule in self._tagging.rules] + [TagValues()]
        return [
            _tag(name, regions[name].jurisdiction, value, today)
            for name in self._regions
            for value in values
        ]

    def classify(self, batch: pa.RecordBatch) -> Classes:
        """Return the tag of each row; ConfigError if a field is missing or a region not found."""
        region = self._region_numbers(batch)
        unknown = region < 0
        if unknown.any():
            if self._tagging.unknown is None:
                key = batch.column(KEY)[int(np.argmax(unknown))].as_py()
                raise ConfigError(
                    "the region of a record is not found",
                    key=key,
                    hint="Complete tagging.region.map, or set tagging.unknown",
                )
            region[unknown] = self._regions.index(self._tagging.unknown)
        rule = np.full(batch.num_rows, len(self._tagging.rules), np.int64)
        for number in range(len(self._tagging.rules) - 1, -1, -1):
            rule[holds(self._tagging.rules[number].when, batch, ~unknown)] = number
        place = region * (len(self._tagging.rules) + 1) + rule
        return Classes(self._number[place], self.tags, unknown)

    def _region_numbers(self, batch: pa.RecordBatch) -> Int64s:
        """Return each row's index into the sorted regions, -1 where it is not found."""
        rule = self._tagging.region
        if rule.constant is not None:
            return np.full(batch.num_rows, self._regions.index(rule.constant), np.int64)
        values = _region_values(rule, batch)
        encoded = values.dictionary_encode()
        known = [self._place(value) for value in encoded.dictionary.to_pylist()]
        index = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        numbers: Int64s = np.array([*known, -1], np.int64)[index]
        return numbers

    def _place(self, value: Any) -> int:
        table = self._tagging.region.map
        if table is None:
            return self._regions.index(value) if value in self._regions else -1
        found = [region for region, values in table.items() if str(value) in values]
        return self._regions.index(found[0]) if found else -1

    def pseudonymise(self, batch: pa.RecordBatch, classes: Classes) -> pa.RecordBatch:
        """Return the batch with `__subject__` set; the identifying field goes, unless kept."""
        rule = self._tagging.subject
        if rule is None:
            return batch
        values = column(batch, rule.field)
        if rule.field not in batch.schema.names:
            raise ConfigError(f"tagging.subject: '{rule.field}' must be a column of its own")
        encoded = _text(values, rule.field).dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), None]
        index = encoded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        pairs, inverse = np.unique(classes.number * len(names) + index, return_inverse=True)
        made = [
            self._subject(pair // len(names), names[pair % len(names)]) for pair in pairs.tolist()
        ]
        subjects = pa.array(made, pa.string()).take(pa.array(inverse))
        place = batch.schema.get_field_index(SUBJECT)
        field = batch.schema.field(place)
        batch = batch.set_column(place, field, subjects)
        return batch if rule.keep else batch.drop_columns([rule.field])

    def _subject(self, tag: int, identifier: str | None) -> str | None:
        """Return the pseudonym of an identifier in the region of a tag."""
        key = self._keys.get(self.tags[tag].region, b"")  # none in a dry run
        return None if identifier is None else pseudonym(key, identifier)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the batches that `pseudonymise` returns; ConfigError as there."""
        rule = self._tagging.subject
        if rule is not None and rule.field.partition(".")[0] not in schema.names:
            raise _no_field(rule.field, schema.names)
        if rule is None or rule.keep or rule.field not in schema.names:
            return schema
        return schema.remove(schema.get_field_index(rule.field))


def _tag(region: str, jurisdiction: str, values: TagValues, today: dt.date) -> Tag:
    return Tag(
        region=region,
        jurisdiction=jurisdiction,
        applicable_law=law_of(jurisdiction),
        data_category=values.data_category,
        special_categories=tuple(sorted(values.special_categories)),
        purposes=tuple(sorted(values.purposes)),
        legal_basis=values.legal_basis,
        controller=values.controller,
        retention_until=_retention(values.retention, today),
    )


def _retention(text: str | None, today: dt.date) -> str | None:
    """Return the date until which data may be kept, rounded to the earliest quarter."""
    if text is None:
        return None
    number, _, unit = text.partition(" ")
    if not unit:
        end = dt.date.fromisoformat(text)
    elif unit.startswith("day"):
        end = today + dt.timedelta(days=int(number))
    else:
        months = today.year * 12 + today.month - 1 + int(number) * (12 if unit[0] == "y" else 1)
        end = dt.date(months // 12, months % 12 + 1, 1)
    return quarter_floor(end).isoformat()


def _region_values(rule: RegionRule, batch: pa.RecordBatch) -> pa.Array:
    if rule.field is not None:
        values = column(batch, rule.field)
        if pa.types.is_floating(values.type):
            raise ConfigError(f"tagging.region.field: {values.type} cannot name a region")
        return _text(values, rule.field)
    pattern = re.compile(rule.pattern or "")
    found = (pattern.search(key) if key else None for key in batch.column(KEY).to_pylist())
    groups = [match and (match[1] if pattern.groups else match[0]) for match in found]
    return pa.array(groups, pa.string())


def holds(condition: Condition, batch: pa.RecordBatch, known: Bools | None = None) -> Bools:
    """Return for which rows a condition holds; `known` marks rows whose region was found."""
    result = np.ones(batch.num_rows, bool)
    if condition.region is not None:
        if known is None:
            raise ConfigError("region: known | unknown is for tagging rules only")
        result &= known if condition.region == "known" else ~known
    if condition.field is None:
        return result
    values = column(batch, condition.field)
    if condition.present is not None:
        result &= _present(values) == condition.present
    if condition.equals is not None:
        result &= _among(values, [condition.equals], condition.field)
    if condition.in_ is not None:
        result &= _among(values, condition.in_, condition.field)
    if condition.matches is not None:
        result &= _matching(_text(values, condition.field), condition.matches)
    return result


def _matching(values: pa.Array, pattern: str) -> Bools:
    try:
        return _mask(pc.match_substring_regex(values, pattern))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"'{pattern}' cannot be matched",
            hint="Patterns of conditions are RE2: no lookaround, no backreferences",
        ) from error


def _mask(array: pa.Array) -> Bools:
    mask: Bools = array.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _present(values: pa.Array) -> Bools:
    """Return which values are there: not null and, for text and bytes, not empty."""
    present = _mask(pc.is_valid(values))
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_bytes(kind):
        present &= _mask(pc.greater(pc.binary_length(values), 0))
    return present


def _among(values: pa.Array, wanted: Sequence[str | int | bool], name: str) -> Bools:
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.bool_)
    try:
        return _mask(pc.is_in(values, value_set=pa.array(wanted).cast(values.type)))
    except (pa.ArrowException, OverflowError) as error:
        raise ConfigError(f"{name} is {values.type}; {wanted} cannot equal it") from error


def column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, or a struct's member by a dotted name; ConfigError with the nearest name."""
    names = batch.schema.names
    if name in names:
        return batch.column(name)
    head, _, rest = name.partition(".")
    if rest and head in names and pa.types.is_struct(batch.column(head).type):
        members = pa.RecordBatch.from_struct_array(batch.column(head))
        return column(members, rest)
    raise _no_field(name, names)


def _no_field(name: str, names: Sequence[str]) -> ConfigError:
    near = difflib.get_close_matches(name, names, 1)
    known = [other for other in names if other not in SYSTEM]
    hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(known[:10])}"
    return ConfigError(f"the records have no field '{name}'", hint=hint)


def _text(values: pa.Array, name: str) -> pa.Array:
    kind = values.type
    extended = isinstance(kind, pa.BaseExtensionType)
    if extended or pa.types.is_nested(kind) or _is_bytes(kind):
        raise ConfigError(f"{name} is {kind}, not text")
    return values.cast(pa.string())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def pseudonym(key: bytes, identifier: str) -> str | None:
    """Return the keyed pseudonym of an identifier (HMAC-SHA-256, first 16 bytes as hex).

    Identifiers that differ only in case, Unicode form or outer space are one person; an empty
    one is nobody.
    """
    normal = unicodedata.normalize("NFKC", identifier).strip().casefold()
    if not normal:
        return None
    return hmac.digest(key, normal.encode(), "sha256")[:SUBJECT_BYTES].hex()


def load_subject_key(path: Path, roots: Sequence[Path]) -> bytes:
    """Return a region's secret for pseudonyms, made on first use; it never lies in a dataset."""
    if any(path.resolve().is_relative_to(root.resolve()) for root in roots):
        raise ConfigError(
            "a subject key may not lie in the dataset", file=str(path), hint="Move subject_key"
        )
    if not path.exists():
        create_exclusive(path, secrets.token_hex(32).encode() + b"\n", mode=0o600)
    try:
        key = bytes.fromhex(path.read_text().strip())
    except ValueError as error:
        raise SchemaError("not a subject key", file=str(path)) from error
    if len(key) < SUBJECT_BYTES:
        raise SchemaError(f"a subject key of {len(key)} bytes is too short", file=str(path))
    return key
