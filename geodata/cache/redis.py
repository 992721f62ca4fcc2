"""A Redis or Valkey that nodes share: whole files in parts, least recently used out first.

    geodata:1:SHA256      the head, written last: how many parts and bytes
    geodata:1:SHA256:N    part N
    geodata:1:index       entries by last use (microseconds of the server's clock)
    geodata:1:sizes       their bytes, and the sum of their costs under `used`

The tier may cost time, never a wrong byte and never the run: every answer has a bound, all that
fails is a miss, and a server that failed is left alone for a while.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from geodata.cache.base import CacheStats
from geodata.cache.connection import Connection, Refused, Server, Unanswered
from geodata.errors import GeodataError

PREFIX = "geodata:1:"

INDEX, SIZES = f"{PREFIX}index", f"{PREFIX}sizes"

PART = (4 << 20) - 1024
"""Bytes of a part: with its header still in the allocator's class of 4 MiB, not the next one."""

WINDOW = 2
"""Parts asked for at once; a process holds about three times as many."""

KEY_COST = 1024
"""Bytes that a server spends on a key besides its value, about."""

PACE = 10_000_000
"""Bytes a second that a server must give or take, beyond `timeout`, or it counts as failed."""

PAUSE = 30.0
"""Seconds that a server is left alone after a failure."""

SCRIPT = (
    f"local PREFIX, PART, KEY_COST = '{PREFIX}', {PART}, {KEY_COST}"
    + """
local index, sizes = KEYS[1], KEYS[2]
local task, sha = ARGV[1], ARGV[2]
local nbytes, memory, ttl = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function whole(number) return string.format('%.0f', number) end
local function parts(bytes) return math.ceil((bytes or 0) / PART) end
local function cost(bytes) return (bytes or 0) + KEY_COST * (parts(bytes) + 2) end
local function size(of) return tonumber(redis.call('HGET', sizes, of) or '') end
local function used() return size('used') or 0 end

local function each(of, bytes, command, ...)
  local done = redis.call(command, PREFIX .. of, ...)
  for part = 0, parts(bytes) - 1 do
    done = done + redis.call(command, PREFIX .. of .. ':' .. part, ...)
  end
  return done
end

local function head(bytes) return parts(bytes) .. ' ' .. whole(bytes) end

local function complete()
  return redis.call('MGET', PREFIX .. sha)[1] == head(nbytes)
    and each(sha, nbytes, 'EXISTS') == parts(nbytes) + 1
end

local function forget(of)
  local bytes = size(of)
  redis.call('ZREM', index, of)
  redis.call('HDEL', sizes, of)
  if bytes then
    redis.call('HINCRBY', sizes, 'used', whole(-cost(bytes)))
  end
end

local function drop(of, bytes)
  each(of, math.max(bytes or 0, size(of) or 0), 'UNLINK')
  forget(of)
end

local function note(of, bytes)
  forget(of)
  redis.call('HSET', sizes, of, whole(bytes))
  redis.call('HINCRBY', sizes, 'used', whole(cost(bytes)))
  redis.call('ZADD', index, whole(now), of)
  for _, key in ipairs({index, sizes}) do
    if redis.call('TTL', key) < ttl then redis.call('EXPIRE', key, ttl) end
  end
end

-- The server may have evicted one of the two, and others may have written under our names.
local function heal()
  for key, kind in pairs({[index] = 'zset', [sizes] = 'hash'}) do
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then redis.call('UNLINK', key) end
  end
  if redis.call('ZCARD', index) == math.max(redis.call('HLEN', sizes) - 1, 0) then return end
  local sum = 0
  for _, of in ipairs(redis.call('HKEYS', sizes)) do
    if of ~= 'used' and redis.call('ZSCORE', index, of) then
      sum = sum + cost(size(of))
    elseif of ~= 'used' then
      each(of, size(of), 'UNLINK')
      redis.call('HDEL', sizes, of)
    end
  end
  for _, of in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    if not size(of) then redis.call('ZREM', index, of) end
  end
  redis.call('HSET', sizes, 'used', whole(sum))
end

local function expire()
  for _, of in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', whole(now - ttl * 1000000))) do
    drop(of, size(of))
  end
end

heal()
if task == 'reserve' then
  expire()
  if cost(nbytes) > memory then return 0 end
  if complete() then
    note(sha, nbytes)
    return 2
  end
  forget(sha)
  while used() + cost(nbytes) > memory do
    local oldest = redis.call('ZRANGE', index, 0, 0)[1]
    if not oldest then redis.call('DEL', sizes) break end
    drop(oldest, size(oldest))
  end
  note(sha, nbytes)
  return 1
elseif task == 'commit' then
  redis.call('SET', PREFIX .. sha, head(nbytes))
  if redis.call('ZSCORE', index, sha) and complete() then
    each(sha, nbytes, 'EXPIRE', ttl)
    note(sha, nbytes)
    return 1
  end
elseif task == 'renew' and redis.call('EXPIRE', PREFIX .. sha, ttl) == 1 then
  each(sha, nbytes, 'EXPIRE', ttl)
  note(sha, nbytes)
  return 1
end
drop(sha, nbytes)
return 0
"""
)
"""Keeps the index, atomically. `reserve` answers 0 if the entry is too large, 1 if its room is
held, 2 if it is there already; `commit` and `renew` answer 1 if it is there; `drop` removes it.
"""

log = logging.getLogger("geodata.cache")
T = TypeVar("T")


@dataclass(slots=True)
class Breaker:
    """Keeps us from a server for PAUSE seconds after a failure."""

    clock: Callable[[], float] = time.monotonic
    until: float = -math.inf
    told: bool = False

    @property
    def broken(self) -> bool:
        """Return whether the server is to be left alone."""
        return self.clock() < self.until

    def trip(self) -> bool:
        """Begin a pause; return whether this is news, not one more failed try."""
        news, self.told = not self.told, True
        self.until = self.clock() + PAUSE
        return news

    def mend(self) -> None:
        """Note that the server answers."""
        self.told = False


class RedisTier:
    """Entries of at most `memory` bytes in all, each kept for `ttl` seconds after its last use.

    `timeout` bounds each answer; a whole entry may take `nbytes / PACE` seconds longer.
    """

    def __init__(
        self,
        server: Server,
        memory: int,
        ttl: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._server, self._memory, self._ttl, self._timeout = server, memory, ttl, timeout
        self._reads, self._writes = Breaker(clock), Breaker(clock)
        self._warned = False
        self._connection: Connection | None = None
        self.stats = CacheStats()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def check(self) -> bool:
        """Return whether the server answers; a warning says why not."""
        return self._attempt(self._reads, 0, lambda server: server.call("PING")) is not None

    def fetch(self, sha256: str, nbytes: int, path: Path) -> bool:
        """Write the file with that digest to a path; False if the tier does not give it.

        After False the path may hold anything. An OSError is the path's, never the server's.
        """
        found = self._attempt(
            self._reads, nbytes, lambda server: self._copy(server, sha256, nbytes, path)
        )
        if not found:
            self.stats.misses += found is False
            return False
        self.stats.hits += 1
        self.stats.bytes_served += nbytes
        self._attempt(self._writes, 0, lambda server: self._run(server, "renew", sha256, nbytes))
        return True

    def offer(self, sha256: str, path: Path) -> bool:
        """Store the file with that digest; return whether the tier has taken it."""
        try:
            with path.open("rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
                taken = self._attempt(
                    self._writes, nbytes, lambda server: self._store(server, sha256, nbytes, file)
                )
        except OSError:  # evicted from its folder meanwhile, say
            taken = False
        self.stats.bypassed += taken is False
        return bool(taken)

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _attempt(
        self, breaker: Breaker, nbytes: int, action: Callable[[Connection], T]
    ) -> T | None:
        """Do something with the server; None if it is left alone, or fails."""
        if breaker.broken:
            self.stats.bypassed += 1
            return None
        try:
            server = self._connected()
            with server.within(self._patience(nbytes)):
                done = action(server)
        except (Unanswered, GeodataError) as error:
            self._failed(breaker, error)
            return None
        breaker.mend()
        return done

    def _connected(self) -> Connection:
        """Return this process's connection; a parent's is left to the parent."""
        if self._connection is None or self._connection.pid != os.getpid():
            self._connection = Connection(self._server.address(), self._timeout)
        return self._connection

    def _patience(self, nbytes: int) -> float:
        return self._timeout + nbytes / PACE

    def _failed(self, breaker: Breaker, error: Exception) -> None:
        """Leave the server alone; where it only refused, then for this kind of use."""
        self.stats.errors += 1
        refused = isinstance(error, Refused)
        if not refused:
            self.close()
        news = [each.trip() for each in ([breaker] if refused else [self._reads, self._writes])]
        if any(news):
            log.warning("the Redis cache fails and is left alone for %.0f s: %s", PAUSE, error)

    def _run(self, server: Connection, task: str, sha256: str, nbytes: int) -> Any:
        """Run the script; any answer may come from what is no Redis."""
        entry, limits = (task, sha256, nbytes), (self._memory, self._ttl)
        return server.call("EVAL", SCRIPT, 2, INDEX, SIZES, *entry, *limits)

    def _copy(self, server: Connection, sha256: str, nbytes: int, path: Path) -> bool:
        """Write an entry's bytes; what is there but not whole is removed."""
        (head,) = _values(server, [PREFIX + sha256])
        if head is None:
            return False
        stated = head == f"{-(-nbytes // PART)} {nbytes}".encode()
        whole = stated and self._write(server, sha256, nbytes, path)
        if not whole:
            self._run(server, "drop", sha256, nbytes)
        return whole

    def _write(self, server: Connection, sha256: str, nbytes: int, path: Path) -> bool:
        """Write the parts of an entry; False if one is lost, or the digest is another."""
        digest = hashlib.sha256()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            for part in _parts(server, sha256, nbytes):
                if part is None:
                    return False
                digest.update(part)
                file.write(part)
            file.truncate()
            if file.tell() == nbytes and digest.hexdigest() == sha256:
                return True
        if not self._warned:
            log.warning("the Redis cache held wrong bytes, which were dropped: %s", sha256[:12])
            self._warned = True
        return False

    def _store(self, server: Connection, sha256: str, nbytes: int, file: BinaryIO) -> bool:
        """Make room, write the parts, then the head. Parts without a head go by themselves."""
        room = self._run(server, "reserve", sha256, nbytes)
        if room != 1:
            return bool(room == 2)
        seconds = math.ceil(self._patience(nbytes)) + 60
        try:
            for number in range(-(-nbytes // PART)):
                key = f"{PREFIX}{sha256}:{number}"
                server.call("SET", key, file.read(PART), "EX", min(seconds, self._ttl))
            if self._run(server, "commit", sha256, nbytes) != 1:
                return False
        except Refused:
            self._run(server, "drop", sha256, nbytes)
            raise
        self.stats.bytes_filled += nbytes
        return True


def _parts(server: Connection, sha256: str, nbytes: int) -> Iterator[bytes | None]:
    """Yield the parts of an entry in order, None for one that is lost."""
    keys = [f"{PREFIX}{sha256}:{number}" for number in range(-(-nbytes // PART))]
    for start in range(0, len(keys), WINDOW):
        yield from _values(server, keys[start : start + WINDOW])


def _values(server: Connection, keys: list[str]) -> list[bytes | None]:
    """Return the strings under keys; None for one that is missing or no string."""
    found = server.call("MGET", *keys)
    strings = isinstance(found, list) and all(v is None or isinstance(v, bytes) for v in found)
    if not strings or len(found) != len(keys):
        raise Unanswered("the server gave no answer of its protocol")
    return list(found)
