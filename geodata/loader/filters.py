"""Row filters as bitmaps: which rows of a shard the order keeps.

A bitmap is evaluated once per shard and stored under (shard id, filter digest), so an erasure
inside an epoch does not change the order.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from geodata.config import Condition, LoaderSection, SplitSection
from geodata.durable import write_bytes
from geodata.errors import ConfigError
from geodata.order import hash_keys
from geodata.reader import Reader
from geodata.schema import KEY
from geodata.tagging import holds

Bools = npt.NDArray[np.bool_]
Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A split by a hash of the key and a condition on the record, as far as they are given."""

    split: Split | None = None
    share: float = 0.0
    seed: int = 0
    where: dict[str, Any] | None = None

    @classmethod
    def of(cls, section: LoaderSection, split: Split | None) -> RowFilter | None:
        """Return the filter of a loader section, or None where all rows are kept."""
        where = section.where.model_dump(by_alias=True) if section.where else None
        if split is None or (split == "train" and section.split == SplitSection()):
            return cls(where=where) if where else None
        if section.split.heldout == 0 and split == "heldout":
            raise ConfigError("nothing is held out", hint="Set loader.split.heldout, such as 0.02")
        return cls(split, section.split.heldout, section.split.seed, where)

    @property
    def digest(self) -> str:
        """Return the digest of all that decides which rows are kept."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def bitmap(self, reader: Reader, shard: str, folder: Path | None) -> Bools:
        """Return the rows of a shard to keep, from `folder` if it was evaluated before."""
        path = folder / f"{shard}-{self.digest[:16]}.bits" if folder else None
        if path is not None and path.exists():
            data = path.read_bytes()
            count = int.from_bytes(data[:8], "little")
            packed = np.frombuffer(data, np.uint8, offset=8)
            return np.unpackbits(packed, count=count).astype(np.bool_)
        keep = self._evaluate(reader, shard)
        if path is not None:
            write_bytes(path, len(keep).to_bytes(8, "little") + np.packbits(keep).tobytes())
        return keep

    def _evaluate(self, reader: Reader, shard: str) -> Bools:
        condition = Condition.model_validate(self.where) if self.where else None
        columns = [KEY]
        if condition is not None and condition.field not in (None, KEY):
            columns.append(str(condition.field).partition(".")[0])
        kept = []
        for batch in reader.batches(shard, columns):
            keep = np.ones(batch.num_rows, np.bool_)
            if self.split is not None:
                hashes = hash_keys(batch.column(KEY).to_pylist(), "split", self.seed)
                heldout = hashes < np.uint64(int(self.share * 2**64))
                keep &= heldout if self.split == "heldout" else ~heldout
            if condition is not None:
                keep &= holds(condition, batch)
            kept.append(keep)
        return np.concatenate(kept) if kept else np.zeros(0, np.bool_)
