"""Versions of a dataset: shards, digests, counts and tags. Pure values, no IO.

    INDEX_ROOT/metadata/v000003.json          `Index`: schema, label maps, per region root and list
    REGION_ROOT/metadata/lists/region=R/<sha256>.jsonl   a region's shards, one `Shard` a line
    REGION_ROOT/data/region=R/<shard_id>-<sha256:12>.parquet, .units.json (`Units`), …

Only the index is global, and it holds no personal data. A revision (`v000003.r1.json`) is made by
erasure alone: same shards, same slots, other bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from geodata.errors import ConfigError, FormatVersionError, ManifestError
from geodata.tags import Tag

FORMAT_VERSION = 2
METADATA_DIR = "metadata"
LISTS_DIR = f"{METADATA_DIR}/lists"

_VERSION = re.compile(r"^v?(\d+)(?:\.r(\d+))?$")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version's number and its revision (0: as first committed)."""

    number: int
    revision: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version written as v3, v000003 or v000003.r1."""
        match = _VERSION.match(text)
        if not match or int(match[1]) < 1:
            raise ConfigError(f"'{text}' is no version", hint="Write it like v3")
        return cls(int(match[1]), int(match[2] or 0))

    @classmethod
    def of_key(cls, key: str) -> Version | None:
        """Return the version whose index has this key; None if it is no key of one."""
        name = key.removeprefix(f"{METADATA_DIR}/").removesuffix(".json")
        match = _VERSION.match(name)
        found = cls(int(match[1]), int(match[2] or 0)) if match else None
        return found if found and found.number and found.key == key else None

    @property
    def base(self) -> str:
        """Return the name without the revision: what an order is pinned to."""
        return f"v{self.number:06}"

    def __str__(self) -> str:
        return f"{self.base}.r{self.revision}" if self.revision else self.base

    @property
    def key(self) -> str:
        """Return the key of the version's index."""
        return f"{METADATA_DIR}/{self}.json"


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file below a region's root, by its digest."""

    path: str
    sha256: str
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the reference as plain JSON."""
        return {"path": self.path, "sha256": self.sha256, "bytes": self.nbytes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FileRef:
        """Return the reference that `to_json` wrote."""
        path, sha256, nbytes = data["path"], data["sha256"], data["bytes"]
        if not (isinstance(path, str) and isinstance(sha256, str) and isinstance(nbytes, int)):
            raise ValueError("a file of another form")
        return cls(path, sha256, nbytes)


@dataclass(frozen=True, slots=True)
class Shard:
    """One line of a region's list.

    `files` has `main`, `units` (the sidecar) and, where the format has one, `index`; for a column
    NAME that was added later `columns/NAME`, `units/NAME` and `index/NAME`. `slots` are rows per
    unit, tombstones included; `live` is how many rows are none. `content_digest` is over all
    columns that the files hold. `summary` says where the tag comes from.
    """

    shard_id: str
    files: Mapping[str, FileRef]
    slots: tuple[int, ...]
    live: int
    content_digest: str
    tag: Tag
    summary: Mapping[str, Any]

    @property
    def main(self) -> FileRef:
        """Return the shard file."""
        return self.files["main"]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all the shard's files."""
        return sum(ref.nbytes for ref in self.files.values())

    def to_line(self) -> str:
        """Return the shard as one line of canonical JSON, without the newline."""
        record = {
            "shard_id": self.shard_id,
            "files": {name: ref.to_json() for name, ref in self.files.items()},
            "slots": list(self.slots),
            "live": self.live,
            "content_digest": self.content_digest,
            "tag": self.tag.to_json(),
            "summary": dict(self.summary),
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Shard:
        """Return the shard of a line; ManifestError if it is none."""
        try:
            record = json.loads(line)
            return cls(
                shard_id=record["shard_id"],
                files={name: FileRef.from_json(ref) for name, ref in record["files"].items()},
                slots=tuple(record["slots"]),
                live=record["live"],
                content_digest=record["content_digest"],
                tag=Tag.from_json(record["tag"]),
                summary=record["summary"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestError(f"a damaged line in a shard list: {error!r}") from error


def list_bytes(shards: Iterable[Shard]) -> bytes:
    """Return the file of a region's list: sorted by shard id, so equal shards give equal bytes."""
    lines = [shard.to_line() for shard in sorted(shards, key=lambda shard: shard.shard_id)]
    return "".join(line + "\n" for line in lines).encode()


def parse_list(data: bytes) -> list[Shard]:
    """Return the shards of a list file."""
    return [Shard.from_line(line) for line in data.splitlines()]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ListRef(_Model):
    """A region's list: its path below the region's root, its digest and size."""

    path: str
    sha256: str
    nbytes: int = Field(alias="bytes")


class TagTotals(_Model):
    """How much of a region carries a tag."""

    tag: dict[str, Any]
    shards: int
    records: int
    nbytes: int = Field(alias="bytes")


class RegionEntry(_Model):
    """A region in an index: where its bytes lie, and its totals.

    `root` is a URL, or "." for the index's own root.
    """

    root: str
    listing: ListRef = Field(alias="list")
    shards: int
    records: int
    nbytes: int = Field(alias="bytes")
    tags: list[TagTotals] = []


class Index(_Model):
    """One version: `v000003.json`."""

    format_version: int = FORMAT_VERSION
    dataset: str
    version: str
    parent: str | None = None
    created_at: str
    created_by: str
    plan_digest: str
    format: str
    schema_: dict[str, Any] = Field(alias="schema")
    labels: dict[str, list[str]] = {}
    regions: dict[str, RegionEntry]
    report: dict[str, Any] = {}

    @property
    def id(self) -> Version:
        """Return the version with its revision."""
        return Version.parse(self.version)

    @property
    def records(self) -> int:
        """Return the records of all regions."""
        return sum(region.records for region in self.regions.values())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all regions' shards."""
        return sum(region.nbytes for region in self.regions.values())

    def to_bytes(self) -> bytes:
        """Return the index file."""
        return (self.model_dump_json(by_alias=True, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Index:
        """Return the index of a file; errors name it."""
        try:
            record = json.loads(data)
            found = record["format_version"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ManifestError("a damaged index: not the JSON of one", file=name) from error
        check_version(found, name)
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            raise ManifestError(f"a damaged index: {where}: {problem['msg']}", file=name) from error


def check_version(found: Any, name: str) -> None:
    """Raise FormatVersionError if a file is from a newer release."""
    if not isinstance(found, int) or not 1 <= found <= FORMAT_VERSION:
        raise FormatVersionError(
            f"format version {found} is none that this release reads (1 to {FORMAT_VERSION})",
            file=name,
            hint="pip install -U geodata-train",
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """A byte range of a shard file and its digest; `slots` is 0 outside of units."""

    offset: int
    length: int
    slots: int
    digest: str


@dataclass(frozen=True, slots=True)
class Units:
    """The sidecar of a shard: its units, and the frame (header, trailer) around them.

    Together the pieces are the whole file, so that a full set of verified pieces is the file.
    `tokens` are those of each slot, by unit, where they were counted; they say nothing of the file,
    and are not compared.
    """

    units: tuple[Piece, ...]
    frame: tuple[Piece, ...]
    tokens: tuple[tuple[int, ...], ...] | None = field(default=None, compare=False)

    def to_bytes(self) -> bytes:
        """Return the sidecar file."""
        record = {
            "format_version": FORMAT_VERSION,
            "units": [[p.offset, p.length, p.slots, p.digest] for p in self.units],
            "frame": [[p.offset, p.length, p.slots, p.digest] for p in self.frame],
            **({} if self.tokens is None else {"tokens": self.tokens}),
        }
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Units:
        """Return the sidecar of a file; errors name it."""
        try:
            record = json.loads(data)
            check_version(record["format_version"], name)
            units, frame = (
                tuple(Piece(*piece) for piece in record[part]) for part in ("units", "frame")
            )
            counts = record.get("tokens")
            tokens = None if counts is None else tuple(tuple(unit) for unit in counts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ManifestError("a damaged sidecar", file=name) from error
        if tokens is not None and [len(unit) for unit in tokens] != [unit.slots for unit in units]:
            raise ManifestError("a sidecar counts the tokens of other slots", file=name)
        return cls(units, frame, tokens)


def totals(root: str, ref: ListRef, shards: Iterable[Shard]) -> RegionEntry:
    """Return the entry of a region with its totals, by tag."""
    by_tag: dict[str, list[Shard]] = {}
    known = list(shards)
    for shard in known:
        by_tag.setdefault(shard.tag.digest, []).append(shard)
    tags = [
        TagTotals(
            tag=group[0].tag.to_json(),
            shards=len(group),
            records=sum(shard.live for shard in group),
            nbytes=sum(shard.nbytes for shard in group),
        )
        for _, group in sorted(by_tag.items())
    ]
    return RegionEntry(
        root=root,
        listing=ref,
        shards=len(known),
        records=sum(shard.live for shard in known),
        nbytes=sum(shard.nbytes for shard in known),
        tags=tags,
    )
