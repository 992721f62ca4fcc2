"""One version of a dataset as one region reads it: what it may see, and in which order.

What a region may see is fixed when an epoch begins. A resume keeps to that: a shard denied since
gives empty slots, one granted since waits for the next epoch.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from geodata.cache import Cache
from geodata.catalog import Catalog, Visible, visible_set
from geodata.errors import ConfigError, OrderMismatch
from geodata.formats.joined import is_sidecar
from geodata.loader.filters import RowFilter
from geodata.manifest import Index, Shard
from geodata.order import EpochOrder, OrderSpec, ShardRows, excluded_digest, shards_digest
from geodata.policy import Movement
from geodata.reader import Reader

log = logging.getLogger("geodata.loader")

Bools = npt.NDArray[np.bool_]


class Stream:
    """The shards of one version that a region reads, and the order of an epoch over them."""

    def __init__(
        self,
        catalog: Catalog,
        index: Index,
        *,
        lanes: int,
        seed: int,
        memory_budget: int,
        row_filter: RowFilter | None,
        filters: Path | None,
        cache: Cache | None,
    ):
        self._catalog, self._index = catalog, index
        self._lanes, self._seed, self._budget = lanes, seed, memory_budget
        self._filter, self._folder, self._cache = row_filter, filters, cache
        self.region = catalog.access.here
        self.see(None)

    def see(self, excluded: Sequence[str] | None) -> None:
        """Compute what the region may read now; with `excluded`, keep to an epoch already begun."""
        seen = visible_set(self._catalog, self._index, self.region, self._catalog.access.purpose)
        denied = {shard.shard_id: (home, shard) for home, shard, _rule in seen.denied}
        homes = {shard.shard_id: (home, shard) for home, shard in seen.shards}
        left_out = set(denied if excluded is None else excluded)
        self.denied = frozenset(set(denied) - left_out)
        self.excluded = sorted(left_out)
        self.homes: dict[str, tuple[str, Shard]] = {
            name: place for name, place in {**homes, **denied}.items() if name not in left_out
        }
        self.denied_records = sum(shard.live for _home, shard in denied.values())
        self._seen = seen
        self._rows: list[ShardRows] | None = None
        self._spec: OrderSpec | None = None
        self._reader: Reader | None = None
        _tell(self.region, seen)
        if not self.homes:
            raise ConfigError(
                f"{self.region} may read no record of '{self._index.dataset}'",
                hint="geodata inspect shows the tags; train federated instead",
            )

    def keep_to(self, digest: str, excluded: Sequence[str]) -> None:
        """Go on in an epoch that began with the excluded shards of that digest."""
        if excluded_digest(self.excluded) == digest:
            return
        if excluded_digest(excluded) != digest:
            raise OrderMismatch(
                "the list of excluded shards is not the one of the state",
                hint="Pass the list that was saved beside it",
            )
        self.see(list(excluded))

    @property
    def reader(self) -> Reader:
        """Return the reader of the epoch, whose shards have passed the gate."""
        self._prepare()
        assert self._reader is not None
        return self._reader

    @property
    def spec(self) -> OrderSpec:
        """Return all that fixes the order."""
        if self._spec is None:
            rows = self._prepare()
            self._spec = OrderSpec(
                version=self._index.id.base,
                shards=shards_digest(rows),
                lanes=self._lanes,
                seed=self._seed,
                filter=_filter_digest(self._filter, rows),
            )
        return self._spec

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch; ConfigError if the filter leaves no record."""
        order = EpochOrder(self._prepare(), lanes=self._lanes, seed=self._seed, epoch=epoch)
        if order.records == 0:
            raise ConfigError(
                f"no record of what {self.region} may read is left",
                hint="loader.split and loader.where leave none",
            )
        return order

    def _prepare(self) -> list[ShardRows]:
        """Pass the gate once for every shard, then evaluate the row filter."""
        if self._rows is None:
            if self._cache is not None:
                self._cache.require(max(_cached_bytes(shard) for _h, shard in self.homes.values()))
            self._reader = Reader(
                self._catalog,
                self._index,
                self.homes,
                cache=self._cache,
                memory_budget=self._budget,
                admitted=self._admit(),
            )
            self._rows = [
                ShardRows(name, shard.slots, self._keep(self._reader, name))
                for name, (_home, shard) in sorted(self.homes.items())
            ]
            self._reader.close()
        return self._rows

    def _admit(self) -> frozenset[str]:
        """Write every decision about the epoch to the audit log; return the shards allowed."""
        gate = self._catalog.access.gate
        for home, shard, _rule in self._seen.denied:
            gate.record(self._movement(home, shard))
        allowed = self.homes.keys() - self.denied
        for name in sorted(allowed):
            gate.check(self._movement(*self.homes[name]))
        return frozenset(allowed)

    def _movement(self, home: str, shard: Shard) -> Movement:
        purpose, about = self._catalog.access.purpose, shard.shard_id
        return Movement("read", shard.tag, home, self.region, purpose, about, shard.live)

    def _keep(self, reader: Reader, name: str) -> Bools | None:
        if self._filter is None:
            return None
        columns = [field["name"] for field in self._index.schema_["fields"]]
        folder = self._folder / self._index.id.base if self._folder else None
        return self._filter.bitmap(reader, name, columns, folder)


def _cached_bytes(shard: Shard) -> int:
    """Return the bytes of a shard's files that a reader has open together."""
    return sum(ref.nbytes for part, ref in shard.files.items() if not is_sidecar(part))


def _filter_digest(row_filter: RowFilter | None, rows: Sequence[ShardRows]) -> str:
    """Return the digest of a filter and of the rows that it kept."""
    if row_filter is None:
        return ""
    whole = hashlib.sha256(row_filter.digest.encode())
    for row in rows:
        if row.keep is not None:
            whole.update(row.shard_id.encode() + np.packbits(row.keep).tobytes())
    return whole.hexdigest()


def _tell(region: str, seen: Visible) -> None:
    log.info("%s may read %d records", region, sum(shard.live for _home, shard in seen.shards))
    for home, rule in sorted({(home, rule) for home, _shard, rule in seen.denied}):
        count = sum(s.live for h, s, r in seen.denied if (h, r) == (home, rule))
        log.warning("%s may not read %d records of %s: %s", region, count, home, rule)
