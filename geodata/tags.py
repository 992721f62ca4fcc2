"""What a shard may do: regions, jurisdictions and the GDPR tag.

Names of categories, measures and purposes are those of the W3C Data Privacy Vocabulary (DPV 2.3).
A shard carries exactly one `Tag`; everything the policy needs to decide is in it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from geodata.errors import ConfigError, ManifestError

Kind = Literal["data", "unclassified", "metadata", "derived"]

STAGING = "_staging"
"""The region of data that `shard` has not classified yet."""

Category = Literal[
    "NonPersonalData",
    "AnonymisedData",
    "SyntheticData",
    "PseudonymisedData",
    "PersonalData",
]
CATEGORIES: tuple[Category, ...] = get_args(Category)
"""Data categories, from the freest to the strictest."""

PERSONAL = frozenset({"PseudonymisedData", "PersonalData"})

EEA = frozenset(
    "AT BE BG HR CY CZ DK EE FI FR DE GR HU IE IT LV LT LU MT NL PL PT RO SK SI ES SE "
    "IS LI NO AX GP GF MQ RE YT MF".split()
)
"""ISO 3166-1 codes inside the EEA, with the territories that belong to it."""

LAWS = {
    "GB": "uk-gdpr",
    "CH": "ch-fadp",
    "CN": "cn-pipl",
    "RU": "ru-152fz",
    "IN": "in-dpdp",
    "BR": "br-lgpd",
    "KR": "kr-pipa",
    "JP": "jp-appi",
}

_REGION = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")
_LEGAL_BASIS = re.compile(r"^[a-z]{2}-[a-z0-9]+:A\d+(-\d+)?(-[a-z])?$")


def check_region(name: str) -> str:
    """Return `name` if it can be a region's name, else raise ConfigError."""
    if not _REGION.match(name):
        raise ConfigError(f"'{name}' is no region name", hint="Use a name such as eu-central")
    return name


def check_jurisdiction(code: str) -> str:
    """Return `code` unless it is one that is often taken for a country's, else ConfigError."""
    if code in ("UK", "EU"):
        other = "GB" if code == "UK" else "a member state's, such as DE"
        raise ConfigError(f"'{code}' is no ISO 3166-1 code", hint=f"Write {other}")
    return code


def law_of(jurisdiction: str) -> tuple[str, ...]:
    """Return the data protection regimes of an ISO country code."""
    if jurisdiction in EEA:
        return ("eu-gdpr",)
    return (LAWS[jurisdiction],) if jurisdiction in LAWS else ()


def check_legal_basis(basis: str) -> str:
    """Return `basis` if it is written like eu-gdpr:A6-1-f, else raise ConfigError."""
    if not isinstance(basis, str) or not _LEGAL_BASIS.match(basis):
        raise ConfigError(f"'{basis}' is no legal basis", hint="Write it like eu-gdpr:A6-1-f")
    return basis


@dataclass(frozen=True, slots=True)
class Tag:
    """What policy needs to know of a shard.

    `kind` is "data" for classified records; "unclassified" stays in its own store; "metadata"
    (no keys, no values) may travel; "derived" holds the strictest tag of what fed a model.
    """

    kind: Kind = "data"
    region: str = ""
    jurisdiction: str = ""
    applicable_law: tuple[str, ...] = ()
    data_category: Category = "PersonalData"
    special_categories: tuple[str, ...] = ()
    purposes: tuple[str, ...] = ()
    legal_basis: str | None = None
    controller: str | None = None
    retention_until: str | None = None

    @property
    def personal(self) -> bool:
        """Return whether the tagged data count as personal."""
        return self.kind != "metadata" and self.data_category in PERSONAL

    def to_json(self) -> dict[str, Any]:
        """Return the tag as plain JSON; empty fields are left out."""
        values = ((name, value) for name, value in asdict(self).items() if value not in ("", ()))
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values if v is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tag:
        """Return the tag that `to_json` wrote; an unknown field is a ManifestError."""
        unknown = set(data) - {field.name for field in fields(cls)}
        if unknown:
            raise ManifestError(f"unknown tag fields {sorted(unknown)}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**values)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON of the tag."""
        text = json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


UNCLASSIFIED = Tag(kind="unclassified", region=STAGING)
METADATA = Tag(kind="metadata", data_category="NonPersonalData")


def derived(tags: Iterable[Tag], region: str) -> Tag:
    """Return the tag of what was made from `tags` in `region`: the strictest of them."""
    seen = list(tags)
    if not seen:
        return Tag(kind="derived", region=region, data_category="NonPersonalData")
    strictest = max(seen, key=lambda tag: CATEGORIES.index(tag.data_category))
    dates = sorted(tag.retention_until for tag in seen if tag.retention_until)
    purposes = set(seen[0].purposes).intersection(*(tag.purposes for tag in seen))
    return replace(
        strictest,
        kind="derived",
        region=region,
        applicable_law=tuple(sorted({law for tag in seen for law in tag.applicable_law})),
        special_categories=tuple(sorted({c for tag in seen for c in tag.special_categories})),
        purposes=tuple(sorted(purposes)),
        retention_until=dates[0] if dates else None,
    )


def quarter_floor(day: dt.date) -> dt.date:
    """Return the first day of the quarter of `day`: retention is rounded to the earliest."""
    return dt.date(day.year, (day.month - 1) // 3 * 3 + 1, 1)
