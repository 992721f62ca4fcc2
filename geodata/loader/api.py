"""`build_loader`: a torch DataLoader over the records a region may read, in the exact order."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from geodata import schema as schemas
from geodata.cache import NvmeCache
from geodata.catalog import Catalog, Visible, locate, make_access, visible_set
from geodata.config import GeodataConfig, RegionSection, TextSection, load_config
from geodata.errors import ConfigError, GeodataError, OrderMismatch
from geodata.loader.dataset import Batch, Columns, StepDataset, choose_columns
from geodata.loader.decode import ImageDecoder, make_tokenizer
from geodata.loader.filters import RowFilter, Split
from geodata.manifest import Shard, Version
from geodata.order import (
    EpochOrder,
    OrderSpec,
    ShardRows,
    StreamState,
    check_same,
    default_lanes,
    excluded_digest,
    rank_lanes,
    shards_digest,
)
from geodata.policy import Movement
from geodata.reader import Reader
from geodata.tags import derived

PURPOSE = "ModelTraining"

log = logging.getLogger("geodata.loader")


def build_loader(
    config: str | Path | GeodataConfig,
    *,
    region: str | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
    split: Split | None = None,
    filters: Path | None = None,
) -> Loader:
    """Return the loader of a data-parallel rank in `region` (default: the config's `here`).

    `split` chooses the training or the held-out part of `loader.split`; None is all records.
    `filters` is a folder that keeps row filters for the run's resumes.
    """
    read = config if isinstance(config, GeodataConfig) else load_config(Path(config))
    return Loader(read, region, dp_rank, dp_size, split, filters)


class Loader:
    """Batches of one rank; `iter` gives the rest of the current epoch, then the next one.

    Every rank takes the same number of steps. A batch is a dict of tensors: `weight` [B] (0 marks
    padding and erased records), `sample` [B] (a stable id, -1 where the weight is 0), and by
    column `tokens` and `labels` [B, T], `image` [B, 3, S, S] uint8, numbers [B].
    """

    def __init__(
        self,
        config: GeodataConfig,
        region: str | None,
        dp_rank: int,
        dp_size: int,
        split: Split | None,
        filters: Path | None,
    ):
        if config.dataset is None:
            raise ConfigError("the config has no dataset:", hint="Set dataset.name and root")
        section = config.loader
        place = locate(config.dataset.name, config)
        self.region = region or place.here()
        if self.region not in config.regions:
            raise ConfigError(f"'{self.region}' is not one of the regions")
        self.lanes = section.lanes or default_lanes(section.global_batch)
        if section.global_batch % self.lanes:
            raise ConfigError(
                f"{self.lanes} lanes do not divide a global batch of {section.global_batch}"
            )
        self._section = section
        self._rank_lanes = rank_lanes(self.lanes, dp_rank, dp_size)
        self._per_lane = section.global_batch // self.lanes
        self.batch_size = -(-self.lanes // dp_size) * self._per_lane
        self._catalog = Catalog(place.root, make_access(place.audit, self.region, PURPOSE))
        pinned = Version.parse(section.version) if section.version else None
        self._index = self._catalog.index(pinned)
        self._filter = RowFilter.of(section, split)
        self._filters = filters
        self._cache = _cache(config.regions[self.region], config)
        self._columns = self._choose(config)
        self._epoch, self._slot = 0, 0
        self._dataset: StepDataset | None = None
        self._spec: OrderSpec | None = None
        self._see(None)

    def _choose(self, config: GeodataConfig) -> Columns:
        section = self._section
        schema = schemas.from_json(self._index.schema_)
        text, image, numbers = choose_columns(schema, section.columns, section.text, section.image)
        tokenizer = make_tokenizer(text, config.resolve) if text else None
        return Columns(text, tokenizer, ImageDecoder(image) if image else None, numbers)

    @property
    def epoch(self) -> int:
        """Return the epoch of the next batch."""
        return self._epoch

    @property
    def text(self) -> TextSection | None:
        """Return how text becomes tokens; None without a text column."""
        return self._columns.text

    @property
    def vocab_size(self) -> int:
        """Return how many token ids there are; 0 without a text column."""
        return self._columns.tokenizer.vocab_size if self._columns.tokenizer else 0

    @property
    def eos_id(self) -> int:
        """Return the token that ends a text; -1 without a text column."""
        return self._columns.tokenizer.eos_id if self._columns.tokenizer else -1

    @property
    def records(self) -> int:
        """Return the records of an epoch over all ranks of the region."""
        return self._epoch_order().records

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps of the current epoch, the same on every rank."""
        return len(self._steps().starts(0))

    @property
    def order_digest(self) -> str:
        """Return the digest of the order; ranks that read one stream must agree on it."""
        return self._order_spec().digest

    @property
    def excluded(self) -> list[str]:
        """Return the shards that this epoch leaves out because policy denied them at its start."""
        return list(self._excluded)

    def _see(self, excluded: Sequence[str] | None) -> None:
        """Compute what the region may read now; with `excluded`, keep to an epoch already begun."""
        seen = visible_set(self._catalog, self._index, self.region, PURPOSE)
        self._homes = {shard.shard_id: (home, shard) for home, shard in seen.shards}
        denied = {shard.shard_id: (home, shard) for home, shard, _rule in seen.denied}
        if excluded is None:
            self._excluded = sorted(denied)
            self._denied: frozenset[str] = frozenset()
        else:
            self._excluded = sorted(excluded)
            self._denied = frozenset(set(denied) - set(excluded))
            self._homes.update({name: denied[name] for name in self._denied})
            for name in set(excluded) & set(self._homes):
                del self._homes[name]
        self._dataset = self._spec = None
        self._tell(seen)
        if not self._homes:
            raise ConfigError(
                f"{self.region} may read no record of '{self._index.dataset}'",
                hint="geodata inspect shows the tags; train federated instead",
            )

    def _tell(self, seen: Visible) -> None:
        allowed = sum(shard.live for _home, shard in seen.shards)
        log.info("%s may read %d records", self.region, allowed)
        for home, rule in sorted({(home, rule) for home, _shard, rule in seen.denied}):
            shards = [s for h, s, r in seen.denied if (h, r) == (home, rule)]
            count = sum(shard.live for shard in shards)
            log.warning("%s may not read %d records of %s: %s", self.region, count, home, rule)

    def _order_spec(self) -> OrderSpec:
        if self._spec is None:
            rows = [ShardRows(name, shard.slots) for name, (_h, shard) in self._homes.items()]
            self._spec = OrderSpec(
                version=self._index.id.base,
                shards=shards_digest(rows),
                lanes=self.lanes,
                seed=self._section.seed,
                filter=self._filter.digest if self._filter else "",
            )
        return self._spec

    def _epoch_order(self) -> EpochOrder:
        return self._steps().order

    def _steps(self) -> StepDataset:
        """Return the dataset of the current epoch."""
        if self._dataset is not None and self._dataset.order.epoch == self._epoch:
            return self._dataset
        reader = Reader(
            self._catalog,
            self._index,
            self._homes,
            cache=self._cache,
            memory_budget=self._section.memory_budget,
        )
        shards = [
            ShardRows(name, shard.slots, self._keep(reader, name))
            for name, (_home, shard) in sorted(self._homes.items())
        ]
        reader.close()
        order = EpochOrder(shards, lanes=self.lanes, seed=self._section.seed, epoch=self._epoch)
        self._dataset = StepDataset(
            reader,
            order,
            self._columns,
            self._rank_lanes,
            self._per_lane,
            self.batch_size,
            self._denied,
            self._section.on_error == "skip",
        )
        return self._dataset

    def _keep(self, reader: Reader, shard: str) -> Any:
        if self._filter is None or shard in self._denied:
            return None
        return self._filter.bitmap(reader, shard, self._filters)

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the current epoch; after its end, the whole of the next."""
        if self._slot >= self._epoch_order().lane_slots:
            self._epoch, self._slot = self._epoch + 1, 0
            self._see(None)
        steps = self._steps()
        self._admit()
        for batch in self._data_loader(steps, steps.starts(self._slot)):
            if isinstance(batch, GeodataError):
                raise batch
            self._slot += self._per_lane
            yield batch

    def _admit(self) -> None:
        """Pass the gate once per shard and epoch, cached or not."""
        gate = self._catalog.access.gate
        for home, shard in self._homes.values():
            if shard.shard_id not in self._denied:
                gate.check(_movement(home, shard, self.region))

    def _data_loader(self, steps: StepDataset, starts: range) -> DataLoader[Any]:
        section = self._section
        workers = min(section.workers, len(starts))
        method = section.start_method or ("fork" if workers else None)
        return DataLoader(
            steps,
            batch_size=None,
            sampler=starts,
            num_workers=workers,
            prefetch_factor=section.prefetch if workers else None,
            multiprocessing_context=method if workers else None,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_outlive_signals if workers else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch handed out, as plain JSON."""
        excluded = excluded_digest(self._excluded)
        return StreamState(self._order_spec(), self._epoch, self._slot, excluded).to_json()

    def load_state_dict(self, state: dict[str, Any], excluded: Sequence[str] = ()) -> None:
        """Go on from a position; `excluded` is the list that lies beside the checkpoint.

        OrderMismatch names the setting that differs from the run that saved it.
        """
        saved = StreamState.from_json(state)
        if excluded_digest(self._excluded) != saved.excluded:
            if excluded_digest(excluded) != saved.excluded:
                raise OrderMismatch(
                    "the list of excluded shards is not the one of the state",
                    hint="Pass the list that was saved beside it",
                )
            self._see(list(excluded))
        check_same(saved.spec, self._order_spec())
        self._epoch, self._slot = saved.epoch, saved.slot

    def lineage(self) -> dict[str, Any]:
        """Return what this loader feeds: dataset, version, region, shards, and the derived tag."""
        tags = [shard.tag for _home, shard in self._homes.values()]
        return {
            "dataset": self._index.dataset,
            "version": self._index.version,
            "region": self.region,
            "order_digest": self.order_digest,
            "records": sum(shard.live for _home, shard in self._homes.values()),
            "shards": [
                {"shard_id": name, "sha256": shard.main.sha256, "home": home}
                for name, (home, shard) in sorted(self._homes.items())
            ],
            "excluded": self.excluded,
            "tag": derived(tags, self.region).to_json(),
        }

    def close(self) -> None:
        """Release files and decoded units."""
        if self._dataset is not None:
            self._dataset.reader.close()


def _outlive_signals(_worker: int) -> None:
    """Leave signals to the parent: one sent to the whole group must not break its last step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _movement(home: str, shard: Shard, region: str) -> Movement:
    return Movement("read", shard.tag, home, region, PURPOSE, shard.shard_id, shard.live)


def _cache(section: RegionSection, config: GeodataConfig) -> NvmeCache | None:
    if section.cache is None or section.cache.nvme is None:
        return None
    return NvmeCache(config.resolve(section.cache.nvme), section.cache.size)
