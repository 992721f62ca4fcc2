"""The section `tagging`: how records get their region and their tag."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from geodata.config.base import Section
from geodata.tags import Category, check_legal_basis


class Condition(Section):
    """A test of one record; all parts that are given must hold.

    `field` names a column (`__key__` too) to which `present`, `equals`, `in` and `matches` apply;
    `region: known | unknown` asks whether the record's region was found.
    """

    field: str | None = None
    present: bool | None = None
    equals: str | int | bool | None = None
    in_: list[str | int] | None = Field(None, alias="in")
    matches: str | None = Field(None, description="A regular expression found anywhere.")
    region: Literal["known", "unknown"] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Condition:
        tests = (self.present, self.equals, self.in_, self.matches)
        given = any(test is not None for test in tests)
        if given != (self.field is not None):
            raise ValueError("`field` goes with one of present, equals, in, matches")
        if not given and self.region is None:
            raise ValueError("an empty condition; give `field` or `region`")
        if self.matches is not None:
            _check_pattern(self.matches)
        return self


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}") from error


def _retention(text: str) -> str:
    number, _, unit = text.partition(" ")
    if not unit:
        dt.date.fromisoformat(text)
    elif int(number) > {"d": 365_000, "m": 12_000, "y": 1_000}[unit[0]]:
        raise ValueError(f"'{text}' is over a thousand years")
    return text


class TagValues(Section):
    """What a rule says of the records it matches, in the vocabulary of the W3C DPV."""

    data_category: Category = "PersonalData"
    special_categories: list[str] = Field([])
    purposes: list[str] = Field([])
    legal_basis: Annotated[str, BeforeValidator(check_legal_basis)] | None = None
    controller: str | None = Field(None, min_length=1)
    retention: Annotated[str, AfterValidator(_retention)] | None = Field(
        None,
        pattern=r"^(\d{1,6} (days?|months?|years?)|\d{4}-\d{2}-\d{2})$",
        description="24 months from the sharding, or a date; rounded to the earliest quarter.",
    )


class TagRule(Section):
    """Records for which `when` holds get `tag`; the first rule that matches decides."""

    when: Condition
    tag: TagValues


class RegionRule(Section):
    """Where a record's region comes from: a field, a pattern on the key, or a constant.

    `pattern` is a regular expression on `__key__`; its first group (or the whole match) is the
    value. `map` names for each region the values that belong to it; without it the value itself
    must be a region's name.
    """

    field: str | None = None
    pattern: str | None = None
    constant: str | None = None
    map: dict[str, list[str]] | None = None

    @model_validator(mode="after")
    def _one(self) -> RegionRule:
        if sum(x is not None for x in (self.field, self.pattern, self.constant)) != 1:
            raise ValueError("give exactly one of field, pattern, constant")
        if self.pattern is not None:
            _check_pattern(self.pattern)
        owner: dict[str, str] = {}
        for region, values in (self.map or {}).items():
            for value in values:
                if owner.setdefault(value, region) != region:
                    raise ValueError(f"'{value}' belongs to both {owner[value]} and {region}")
        return self


def _long_form(subject: Any) -> Any:
    return {"field": subject} if isinstance(subject, str) else subject


class SubjectRule(Section):
    """The field that identifies the data subject; it becomes a keyed pseudonym.

    The field itself is dropped from the shards unless `keep` is set.
    """

    field: str = Field(pattern=r"^(_?[^_].*|_)$", description="Not a system column.")
    keep: bool = False


class TaggingSection(Section):
    """How records get their region and their tag."""

    region: RegionRule
    unknown: str | None = Field(None, description="Region of records whose own is not found.")
    rules: list[TagRule] = Field([])
    subject: Annotated[SubjectRule, BeforeValidator(_long_form)] | None = None
