"""Row filters as bitmaps: which rows of a shard the order keeps.

A bitmap is evaluated once per shard and stored under (shard id, filter digest), so an erasure
inside an epoch does not change the order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from geodata.config import Condition, LoaderSection, SplitSection
from geodata.durable import write_bytes
from geodata.errors import ConfigError, FormatVersionError
from geodata.order import hash_keys
from geodata.reader import Reader
from geodata.schema import KEY
from geodata.tagging import holds

MAGIC = b"GBM\x01"

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
        condition = section.where
        where = condition.model_dump(by_alias=True, exclude_none=True) if condition else None
        if split is None or (split == "train" and section.split == SplitSection()):
            return cls(where=where) if where else None
        if section.split.heldout == 0 and split == "heldout":
            raise ConfigError("nothing is held out", hint="Set loader.split.heldout, such as 0.02")
        return cls(split, section.split.heldout, section.split.seed, where)

    @property
    def digest(self) -> str:
        """Return the digest of all that decides which rows are kept."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def bitmap(
        self, reader: Reader, shard: str, names: Sequence[str], folder: Path | None
    ) -> Bools:
        """Return the rows of a shard to keep, from `folder` if it was evaluated before.

        `names` are the dataset's columns. A file is a magic of four bytes with the format version,
        the number of rows (uint64), and one bit a row.
        """
        path = folder / f"{shard}-{self.digest[:16]}.bits" if folder else None
        if path is not None and path.exists():
            return _unpack(path)
        keep = self._evaluate(reader, shard, names)
        if path is not None:
            count = len(keep).to_bytes(8, "little")
            write_bytes(path, MAGIC + count + np.packbits(keep).tobytes())
        return keep

    def _evaluate(self, reader: Reader, shard: str, names: Sequence[str]) -> Bools:
        condition = Condition.model_validate(self.where) if self.where else None
        columns = [KEY]
        if condition is not None and condition.field not in (None, KEY):
            name = str(condition.field)
            columns.append(name if name in names else name.partition(".")[0])
        _check_known(columns, names)
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


def _check_known(columns: Sequence[str], names: Sequence[str]) -> None:
    for name in columns:
        if name not in names:
            raise ConfigError(f"loader.where: the records have no field '{name}'")


def _unpack(path: Path) -> Bools:
    data = path.read_bytes()
    if data[:4] != MAGIC:
        raise FormatVersionError("a row filter of another release", file=str(path))
    count = int.from_bytes(data[4:12], "little")
    return np.unpackbits(np.frombuffer(data, np.uint8, offset=12), count=count).astype(np.bool_)
