"""The whole file: the dataset, the regions with their caches, and the sections of others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from geodata.config.base import Section, Size
from geodata.config.loader import LoaderSection
from geodata.config.tagging import TaggingSection
from geodata.tags import check_jurisdiction, check_region


def _a_folder(path: str) -> str:
    if "://" in path:
        raise ValueError(f"'{path}' is a URL; give a folder")
    return path


Folder = Annotated[str, AfterValidator(_a_folder)]


class DatasetSection(Section):
    """The dataset's name and its index root."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    root: Folder


def _redis_url(url: str) -> str:
    if "@" in url:
        raise ValueError("no credentials in a URL; give `username` and `password_file`")
    if url != "embedded" and not re.match(r"(rediss?|unix)://.", url):
        raise ValueError("give a URL (redis://, rediss://, unix://), or `embedded`")
    return url


def _short_form(redis: Any) -> Any:
    return {"url": redis} if isinstance(redis, str) else redis


class RedisSection(Section):
    """A Redis or Valkey that the nodes of a region share; its short form is the URL alone."""

    url: Annotated[str, AfterValidator(_redis_url)] = Field(
        description="redis://, rediss:// (TLS), unix://, or `embedded`: a server of our own."
    )
    memory: Size = Field(1 << 30, description="Bytes that our entries may take.")
    ttl: int = Field(7 * 86_400, ge=1, description="Seconds that an unused entry is kept.")
    timeout: float = Field(2.0, gt=0, description="Seconds an answer may take.")
    username: str | None = None
    password_file: Path | None = Field(None, description="Holds the password, and nothing else.")
    ca_file: Path | None = Field(None, description="Of the server's TLS certificate.")
    cert_file: Path | None = Field(None, description="Our own TLS certificate.")
    key_file: Path | None = None


class CacheSection(Section):
    """Tiers of a region's cache, the nearest first: `nvme`, then `redis`, then the store."""

    nvme: Path | None = Field(None, description="A folder on a fast local disk.")
    size: Size = Field(64 << 30, description="Upper bound of the folder, such as 2TiB.")
    redis: Annotated[RedisSection, BeforeValidator(_short_form)] | None = None

    @model_validator(mode="after")
    def _files_lie_somewhere(self) -> CacheSection:
        if self.redis is not None and self.nvme is None:
            raise ValueError("redis needs `nvme` too: the folder in which shards are opened")
        return self


class RegionSection(Section):
    """A region: the country whose law holds there, and where its bytes lie."""

    jurisdiction: Annotated[
        str,
        BeforeValidator(check_jurisdiction),
        Field(pattern=r"^[A-Z]{2}$", description="ISO 3166-1 alpha-2 code."),
    ]
    root: Folder | None = Field(
        None, description="Where `shard` writes the region's bytes; default: dataset.root."
    )
    store: str | None = Field(None, description="Where `push` sends the region's shards.")
    cache: CacheSection | None = None
    subject_key: Path | None = Field(None, description="The secret for pseudonyms of subjects.")


class AuditSection(Section):
    """Where the audit log lies."""

    dir: Path = Path("audit")


class GeodataConfig(Section):
    """The whole file."""

    dataset: DatasetSection | None = None
    here: str | None = Field(None, description="The region this machine stands in.")
    regions: dict[str, RegionSection] = Field({})
    tagging: TaggingSection | None = None
    loader: LoaderSection = LoaderSection()
    audit: AuditSection = AuditSection()
    train: dict[str, Any] = Field({}, description="Read by the trainer.")
    _base: Path = PrivateAttr(Path())

    @model_validator(mode="after")
    def _regions_exist(self) -> GeodataConfig:
        for name in self.regions:
            check_region(name)
        named: list[tuple[str, str | None]] = [("here", self.here)]
        if self.tagging:
            named.append(("tagging.unknown", self.tagging.unknown))
            named.append(("tagging.region.constant", self.tagging.region.constant))
            named.extend(("tagging.region.map", name) for name in self.tagging.region.map or ())
        for where, region in named:
            if region is not None and region not in self.regions:
                raise ValueError(f"{where}: '{region}' is not one of the regions")
        return self

    def resolve(self, path: str | Path) -> Path:
        """Return a path of the file as an absolute path."""
        return (self._base / Path(path).expanduser()).absolute()
