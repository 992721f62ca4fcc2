"""`build_loader`: a torch DataLoader over the records a region may read, in the exact order."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader

from geodata import schema as schemas
from geodata.cache import TieredCache, open_cache
from geodata.catalog import Catalog, locate, make_access
from geodata.config import (
    GeodataConfig,
    ImageSection,
    LoaderSection,
    TextSection,
    load_config,
)
from geodata.errors import ConfigError, GeodataError
from geodata.formats import unit_bytes_for
from geodata.loader.dataset import SKIPPED, Batch, Columns, StepDataset, choose_columns
from geodata.loader.filters import RowFilter, Split
from geodata.loader.images import ImageDecoder
from geodata.loader.stream import Stream
from geodata.loader.text import make_tokenizer
from geodata.loader.workers import ended_at_exit, worker_start
from geodata.manifest import Version
from geodata.order import StreamState, check_same, default_lanes, excluded_digest, rank_lanes
from geodata.tags import derived

PURPOSE = "ModelTraining"


def build_loader(
    config: str | Path | GeodataConfig,
    *,
    region: str | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
    split: Split | None = None,
    filters: Path | None = None,
) -> Loader:
    """Return the loader of a data-parallel rank.

    `region` says where the rank stands (default: the config's `here`); it decides what the rank may
    read, and is written to the audit log.

    `split` chooses the training or the held-out part of `loader.split`; None is all records.
    `filters` is a folder that keeps row filters for the run's resumes.
    """
    read = config if isinstance(config, GeodataConfig) else load_config(Path(config))
    return Loader(read, region, dp_rank, dp_size, split, filters)


class Loader:
    """Batches of one rank; `iter` gives the rest of the current epoch, then the next one.

    Every rank takes the same number of steps. A batch is a dict of tensors: `weight` [B] (0 marks
    padding and erased records), `sample` [B] (a stable id, -1 where the weight is 0), and by
    column `tokens` and `labels` [B, T] (with `loader.text.masked` also `attention_mask`), `image`
    [B, 3, S, S] uint8, numbers [B]; a label or a number is -100 or 0 where there is none.
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
            raise ConfigError("the config has no `dataset`", hint="Set dataset.name and root")
        section = config.loader
        place = locate(config.dataset.name, config)
        self.region = region or place.here()
        if self.region not in config.regions:
            raise ConfigError(f"'{self.region}' is not one of the regions")
        self.lanes = section.lanes or default_lanes(section.global_batch)
        self._config, self._section = config, section
        self._rank_lanes = rank_lanes(self.lanes, dp_rank, dp_size)
        self._per_lane = section.global_batch // self.lanes
        self.batch_size = -(-self.lanes // dp_size) * self._per_lane
        self.skipped = 0
        """Bad records left out so far (`loader.on_error: skip`)."""
        access = make_access(place.audit, self.region, PURPOSE)
        self._catalog = Catalog(place.root, access, place.roots)
        self._catalog.access.gate.note("standing", here=config.here, region=self.region)
        self._split = split
        self._filter, self._filters = RowFilter.of(section, split), filters
        self._cache = self._open_cache()
        self._epoch, self._slot, self._iteration = 0, 0, 0
        self._open(Version.parse(section.version) if section.version else None)

    def _open_cache(self) -> TieredCache | None:
        """Return the region's cache, whose opening is written to the audit log first."""
        section = self._config.regions[self.region].cache
        if section is not None:
            redis = section.redis.url if section.redis else None
            nvme = str(section.nvme) if section.nvme else None
            gate = self._catalog.access.gate
            gate.note("cache", region=self.region, nvme=nvme, redis=redis)
        return open_cache(section, self._config.resolve)

    def _open(self, version: Version | None) -> None:
        """Take a version of the dataset; of the newest if None."""
        section = self._section
        self._index = self._catalog.index(version)
        schema = schemas.from_json(self._index.schema_)
        _check_memory(section, schema, len(self._rank_lanes))
        augmented = self._split != "heldout"
        self._columns = _columns(section, schema, self._config, augmented)
        self._stream = Stream(
            self._catalog,
            self._index,
            lanes=self.lanes,
            seed=section.seed,
            memory_budget=section.memory_budget,
            row_filter=self._filter,
            filters=self._filters,
            cache=self._cache,
        )
        self._dataset: StepDataset | None = None

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
        tokenizer = self._columns.tokenizer
        if tokenizer is None:
            return 0
        return max(tokenizer.vocab_size, self.mask_id + 1)

    @property
    def mask_id(self) -> int:
        """Return the token that stands for hidden ones; -1 where the text is not masked."""
        masked = self._columns.text is not None and self._columns.text.masked > 0
        return self._columns.tokenizer.mask_id if masked and self._columns.tokenizer else -1

    @property
    def image(self) -> ImageSection | None:
        """Return how images become tensors; None without an image column."""
        return self._columns.decoder.section if self._columns.decoder else None

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return the names of the classes by label column; a label is an index into them."""
        numbers = self._columns.numbers
        return {name: list(of) for name, of in self._index.labels.items() if name in numbers}

    @property
    def eos_id(self) -> int:
        """Return the token that ends a text; -1 without a text column."""
        return self._columns.tokenizer.eos_id if self._columns.tokenizer else -1

    @property
    def records(self) -> int:
        """Return the records of an epoch over all ranks of the region."""
        return self._steps().order.records

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps of the current epoch, the same on every rank."""
        return len(self._steps().starts(0))

    @property
    def order_digest(self) -> str:
        """Return the digest of the order; ranks that read one stream must agree on it."""
        return self._stream.spec.digest

    @property
    def excluded(self) -> list[str]:
        """Return the shards that this epoch leaves out because policy denied them at its start."""
        return list(self._stream.excluded)

    @property
    def denied_records(self) -> int:
        """Return how many records of the dataset the region may not read."""
        return self._stream.denied_records

    @property
    def cache_stats(self) -> dict[str, dict[str, int]]:
        """Return what this process, its workers not counted, asked of each tier of the cache."""
        return self._cache.statistics() if self._cache else {}

    def _steps(self) -> StepDataset:
        """Return the dataset of the current epoch."""
        if self._dataset is None or self._dataset.order.epoch != self._epoch:
            order = self._stream.order(self._epoch)
            self._dataset = StepDataset(
                self._stream.reader,
                order,
                self._columns,
                self._rank_lanes,
                self._per_lane,
                self.batch_size,
                np.flatnonzero([name in self._stream.denied for name in order.ids]),
                self._section.on_error == "skip",
            )
        return self._dataset

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Generator[Batch, None, None]:
        """Yield the rest of the current epoch; after its end, the whole of the next."""
        return ended_at_exit(self._iterate())

    def _iterate(self) -> Generator[Batch, None, None]:
        if self._slot >= self._steps().order.lane_slots:
            self._epoch, self._slot = self._epoch + 1, 0
            self._stream.see(None)
        steps = self._steps()
        self._iteration += 1
        current = self._iteration
        for batch in self._data_loader(steps, steps.starts(self._slot)):
            if self._iteration != current:
                raise RuntimeError("a newer iteration of this loader has begun")
            if isinstance(batch, GeodataError):
                raise batch
            self.skipped += int(batch.pop(SKIPPED, 0))
            self._slot += self._per_lane
            yield batch

    def _data_loader(self, steps: StepDataset, starts: range) -> DataLoader[Any]:
        section = self._section
        workers = min(section.workers, len(starts))
        method = section.start_method or ("spawn" if sys.platform == "darwin" else "fork")
        return DataLoader(
            steps,
            batch_size=None,
            sampler=starts,
            num_workers=workers,
            prefetch_factor=section.prefetch if workers else None,
            multiprocessing_context=method if workers else None,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=worker_start(method) if workers else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch handed out, as plain JSON."""
        excluded = excluded_digest(self._stream.excluded)
        return StreamState(self._stream.spec, self._epoch, self._slot, excluded).to_json()

    def load_state_dict(self, state: dict[str, Any], excluded: Sequence[str] = ()) -> None:
        """Go on from a position; `excluded` is the list that lies beside the checkpoint.

        A run stays with its version of the dataset, also when a newer one has been committed.
        OrderMismatch names the setting that differs from the run that saved the state.
        """
        saved = StreamState.from_json(state)
        version = Version.parse(saved.spec.version)
        if version.number != self._index.id.number and self._section.version is None:
            self._open(version)
        self._stream.keep_to(saved.excluded, excluded)
        check_same(saved.spec, self._stream.spec)
        self._epoch, self._slot = saved.epoch, saved.slot
        self._iteration += 1
        self._dataset = None

    def lineage(self) -> dict[str, Any]:
        """Return what this loader feeds: dataset, version, region, shards, and the derived tag."""
        tags = [shard.tag for _home, shard in self._stream.homes.values()]
        return {
            "dataset": self._index.dataset,
            "version": self._index.version,
            "region": self.region,
            "order_digest": self.order_digest,
            "records": sum(shard.live for _home, shard in self._stream.homes.values()),
            "shards": [
                {"shard_id": name, "sha256": shard.main.sha256, "home": home}
                for name, (home, shard) in sorted(self._stream.homes.items())
            ],
            "excluded": self.excluded,
            "tag": derived(tags, self.region).to_json(),
        }

    def close(self) -> None:
        """Release files and decoded units."""
        if self._dataset is not None:
            self._dataset.reader.close()


def _columns(
    section: LoaderSection, schema: pa.Schema, config: GeodataConfig, augmented: bool
) -> Columns:
    text, image, numbers = choose_columns(schema, section.columns, section.text, section.image)
    tokenizer = make_tokenizer(text, config.resolve) if text else None
    decoder = ImageDecoder(image, augmented) if image else None
    columns = Columns(text, tokenizer, decoder, numbers)
    columns.schema = pa.schema([schema.field(name) for name in columns.names])
    return columns


def _check_memory(section: LoaderSection, schema: pa.Schema, lanes: int) -> None:
    """Refuse a budget below the working set: each lane reads in a unit of its own."""
    needed = lanes * unit_bytes_for(schema)
    if needed > section.memory_budget:
        raise ConfigError(
            f"{lanes} lanes read in as many units, {needed} bytes; the budget is "
            f"{section.memory_budget}",
            hint=f"Set loader.memory_budget to at least {needed}, or fewer loader.lanes",
        )
