"""Looks at a raw corpus and writes a commented config to start from."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata.durable import create_exclusive
from geodata.errors import ConfigError
from geodata.jobs.base import SCHEMA_VERSION
from geodata.sources.base import Source
from geodata.sources.opening import open_source
from geodata.sources.options import AS_FOUND, Reading

LOOK_BYTES = 1 << 20
COUNTRY_FIELDS = ("country", "country_code", "countrycode", "iso_country", "region", "locale")
SUBJECT_FIELDS = ("author_email", "email", "user_id", "author", "subject")


@dataclass(slots=True)
class InitReport:
    """What was found and what was written."""

    source: str
    kind: str
    files: int
    bytes: int
    columns: list[str]
    config: str
    next: str
    summary: str

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def init(
    source: Path, out: Path, *, kind: str | None = None, reading: Reading = AS_FOUND
) -> InitReport:
    """Write a config for the corpus at `source`; ConfigError if `out` exists."""
    opened = open_source(source, kind=kind, reading=reading)
    columns = _columns(opened)
    names = [field.name for field in columns]
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", source.resolve().name.partition(".")[0]).strip("-_")
    name = stem or "dataset"
    if not create_exclusive(out, _config(name, names).encode()):
        raise ConfigError("the file exists", file=str(out), hint="Move it, or give --out")
    nbytes = sum(file.nbytes for file in opened.files)
    listed = ", ".join(f"{field.name} ({field.type})" for field in columns)
    return InitReport(
        source=str(source),
        kind=opened.kind,
        files=len(opened.files),
        bytes=nbytes,
        columns=names,
        config=str(out),
        next=f"  geodata convert {shlex.quote(str(source))} data/raw\n  geodata shard data/raw",
        summary=f"{source.name} · {opened.kind} · files: {len(opened.files):,} · {listed}",
    )


def _columns(source: Source) -> pa.Schema:
    """Return the columns that the first piece of a corpus shows."""
    pieces = source.pieces(LOOK_BYTES)
    if not pieces:
        raise ConfigError("the source holds no records", file=str(source.root))
    return source.merge([source.scan(pieces[0])], first_wins=True)


def _config(name: str, columns: Sequence[str]) -> str:
    place = next((c for c in columns if c.lower() in COUNTRY_FIELDS), None)
    subject = next((c for c in columns if c.lower() in SUBJECT_FIELDS), None)
    if place:
        region = (
            f"  region: {{field: {place}, map: {{eu-central: [DE, FR, IT], us-east: [US, CA]}}}}"
        )
    else:
        region = (
            "  # No field looks like a country. Take the region from the key, such as a folder:\n"
            '  # region: {pattern: "^[^/]+/([a-z]{2})/", map: {eu-central: [de, fr]}}\n'
            "  region: {constant: eu-central}"
        )
    subject_line = f"  subject: {subject}" if subject else "  # subject: author_email"
    rules = "  rules: []"
    if subject:
        tag = "{data_category: PersonalData}"
        rules = f"  rules:\n    - {{when: {{field: {subject}, present: true}}, tag: {tag}}}"
    return f"""\
# {name}: where its records may live, and how they are read. `geodata config check` validates it.
dataset: {{name: {name}, root: data/{name}}}

here: eu-central        # the region this machine stands in; GEODATA_REGION overrides it

# A region has the country whose law holds there, and may have a cache on a fast local disk:
#   eu-central: {{jurisdiction: DE, cache: {{nvme: /nvme/cache, size: 200GiB}}}}
regions:
  eu-central: {{jurisdiction: DE}}
  us-east: {{jurisdiction: US}}

tagging:
{region}
  unknown: eu-central   # records whose region is not found go here, as personal data
  # The first rule that matches decides; a record that no rule matches is personal data, which
  # stays in its region. Say what is not, and on which basis the rest is held:
  #   - when: {{field: author_email, present: true}}
  #     tag: {{data_category: PersonalData, legal_basis: "eu-gdpr:A6-1-f",
  #           purposes: [ModelTraining], retention: 24 months}}
  #   - {{when: {{region: known}}, tag: {{data_category: NonPersonalData}}}}
{rules}
  # The field that identifies a person is replaced by a keyed pseudonym:
{subject_line}

loader: {{global_batch: 64, seed: 0, split: {{heldout: 0.02}}}}
"""
