"""Which record comes when: exact at any number of processes, and resumable anywhere.

A stream is one dataset as one region reads it. Per epoch its units are shuffled by (seed, epoch)
into one sequence of records, shuffled again inside each unit; the sequence is cut into L lanes
whose lengths differ by at most one. A step takes the same number of slots from every lane. Rank r
of W takes lanes [r·L/W, (r+1)·L/W), so the global batch is the same for every W ≤ L. A lane that
has run out gives slots of weight 0.

All of it is a pure function of what `OrderSpec` holds. Shuffling sorts by keys from splitmix64
(Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), not by a library's
generator, so that a release of a library cannot change the order.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from geodata.errors import ConfigError, OrderMismatch

ALGORITHM = "splitmix64-1"
STATE_VERSION = 1
MAX_LANES = 64
MIX_RESOLUTION = 10_000
"""Mixing weights are exact to one part in this."""

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ShardRows:
    """A shard as the order sees it: rows per unit, and the rows a filter keeps (None: all)."""

    shard_id: str
    slots: tuple[int, ...]
    keep: Bools | None = None


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """All that fixes a stream's order, small enough to lie in every checkpoint."""

    version: str
    shards: str
    lanes: int
    seed: int
    filter: str = ""
    weights: str = ""
    algorithm: str = ALGORITHM

    @property
    def digest(self) -> str:
        """Return the order digest."""
        return _sha256(asdict(self))


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def splitmix64(values: UInt64s) -> UInt64s:
    """Return the splitmix64 output for each 64-bit state."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def hash64(*parts: str | int) -> np.uint64:
    """Return the first 64 bits of the SHA-256 of the parts: a state for `splitmix64`."""
    data = json.dumps(parts).encode()
    return np.uint64(int.from_bytes(hashlib.sha256(data).digest()[:8], "little"))


def hash_keys(keys: Sequence[str | None], *context: str | int) -> UInt64s:
    """Return a stable 64-bit hash of each key under a context; a null key hashes as itself."""
    salt = hashlib.sha256(json.dumps(context).encode()).digest()
    data = b"".join(
        hashlib.blake2b(("\0" if key is None else key).encode(), digest_size=8, key=salt).digest()
        for key in keys
    )
    return np.frombuffer(data, "<u8").astype(np.uint64)


def sample_ids(shard_id: str, rows: Int64s) -> Int64s:
    """Return stable non-negative ids of a shard's rows, for seeding per-sample randomness."""
    mixed = splitmix64(splitmix64(rows.astype(np.uint64)) ^ hash64("sample", shard_id))
    return (mixed >> np.uint64(1)).astype(np.int64)


def default_lanes(slots_per_step: int) -> int:
    """Return the largest divisor of a region's slots per step that is at most 64."""
    return next(n for n in range(MAX_LANES, 0, -1) if slots_per_step % n == 0)


def rank_lanes(lanes: int, rank: int, world_size: int) -> range:
    """Return the lanes of a data-parallel rank in its region; ConfigError if it would get none."""
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not below the world size {world_size}")
    if world_size > lanes:
        raise ConfigError(
            f"{lanes} lanes cannot serve {world_size} ranks",
            hint=f"Set loader.lanes (a divisor of global_batch) to at least {world_size}",
        )
    return range(rank * lanes // world_size, (rank + 1) * lanes // world_size)


class EpochOrder:
    """The sequence of one epoch of one stream."""

    def __init__(self, shards: Sequence[ShardRows], *, lanes: int, seed: int, epoch: int):
        self.shards = sorted(shards, key=lambda shard: shard.shard_id)
        self.ids = [shard.shard_id for shard in self.shards]
        self.lanes, self.seed, self.epoch = lanes, seed, epoch
        shard, unit, start, kept, key = _units(self.shards, seed, epoch)
        sequence = np.lexsort((unit, shard, key))
        self._shard, self._unit, self._start = shard[sequence], unit[sequence], start[sequence]
        self._ends: Int64s = np.cumsum(kept[sequence])
        self._permutations: dict[int, Int64s] = {}

    @property
    def records(self) -> int:
        """Return how many slots the stream's shards hold, tombstones included, filter applied."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def lane_slots(self) -> int:
        """Return the slots of a lane in this epoch; a shorter lane ends with one of weight 0."""
        return -(-self.records // self.lanes)

    def slots(self, lanes: Sequence[int], start: int, stop: int) -> tuple[Int64s, Int64s]:
        """Return (shard, row) of slots [start, stop) of each lane, lane by lane.

        Shard numbers index `self.ids`; both are -1 where a lane has run out.
        """
        lane = np.repeat(np.asarray(lanes, np.int64), stop - start)
        offset = np.tile(np.arange(start, stop, dtype=np.int64), len(lanes))
        first = lane * self.records // self.lanes
        position = first + offset
        inside = position < (lane + 1) * self.records // self.lanes
        shard, row = np.full(len(lane), -1), np.full(len(lane), -1)
        place = np.searchsorted(self._ends, position[inside], side="right")
        shard[inside] = self._shard[place]
        row[inside] = self._rows(place, position[inside])
        return shard.astype(np.int64), row.astype(np.int64)

    def _rows(self, place: Int64s, position: Int64s) -> Int64s:
        """Return row numbers for positions that lie in the units at `place` of the sequence."""
        rows = np.empty(len(place), np.int64)
        for number in np.unique(place):
            chosen = place == number
            first = self._ends[number - 1] if number else 0
            rows[chosen] = self._permutation(int(number))[position[chosen] - first]
        return rows

    def _permutation(self, number: int) -> Int64s:
        """Return the kept rows of the unit at `number` of the sequence, shuffled."""
        known = self._permutations.get(number)
        if known is not None:
            return known
        shard, unit = self.shards[self._shard[number]], int(self._unit[number])
        rows = np.arange(shard.slots[unit], dtype=np.int64)
        start = int(self._start[number])
        if shard.keep is not None:
            rows = rows[shard.keep[start : start + shard.slots[unit]]]
        state = hash64("rows", self.seed, self.epoch, shard.shard_id, unit)
        keys = splitmix64(splitmix64(rows.astype(np.uint64)) ^ state)
        shuffled: Int64s = start + rows[np.lexsort((rows, keys))]
        if len(self._permutations) >= 4 * self.lanes:
            self._permutations.pop(next(iter(self._permutations)))
        self._permutations[number] = shuffled
        return shuffled


def _units(
    shards: Sequence[ShardRows], seed: int, epoch: int
) -> tuple[Int64s, Int64s, Int64s, Int64s, UInt64s]:
    """Return per unit: shard number, unit number, first row, kept rows, and its shuffle key."""
    counts = np.array([len(shard.slots) for shard in shards], np.int64)
    shard = np.repeat(np.arange(len(shards), dtype=np.int64), counts)
    slots = np.array([n for item in shards for n in item.slots], np.int64)
    firsts = np.cumsum(counts) - counts
    unit = np.arange(len(slots), dtype=np.int64) - np.repeat(firsts, counts)
    before = np.concatenate([[0], np.cumsum(slots)])
    start = before[:-1] - np.repeat(before[firsts], counts)
    kept = slots.copy()
    for item, first in zip(shards, firsts, strict=True):
        if item.keep is not None:
            seen = np.concatenate([[0], np.cumsum(item.keep)])
            own = slice(first, first + len(item.slots))
            kept[own] = seen[start[own] + slots[own]] - seen[start[own]]
    state = np.array([hash64("units", seed, epoch, s.shard_id) for s in shards], np.uint64)
    key = splitmix64(splitmix64(unit.astype(np.uint64)) ^ np.repeat(state, counts))
    return shard, unit, start, kept, key


def shards_digest(shards: Sequence[ShardRows]) -> str:
    """Return the digest over shard ids and unit slots that `OrderSpec.shards` holds."""
    return _sha256(sorted((shard.shard_id, list(shard.slots)) for shard in shards))


def excluded_digest(excluded: Sequence[str]) -> str:
    """Return the digest of the shards left out of a stream."""
    return _sha256(sorted(excluded))


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream stands: the next slot of every lane, in an epoch of a fixed order."""

    spec: OrderSpec
    epoch: int
    slot: int
    excluded: str

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        return {
            "state_version": STATE_VERSION,
            "order_digest": self.spec.digest,
            "order": asdict(self.spec),
            "epoch": self.epoch,
            "slot": self.slot,
            "excluded": self.excluded,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamState:
        """Return the state that `to_json` wrote; OrderMismatch if it contradicts itself."""
        if not isinstance(data, Mapping):
            raise OrderMismatch("the state is damaged: it is no mapping")
        if data.get("state_version") != STATE_VERSION:
            raise OrderMismatch(f"state_version {data.get('state_version')} cannot be read")
        try:
            spec = OrderSpec(**data["order"])
            epoch, slot = operator.index(data["epoch"]), operator.index(data["slot"])
            state = cls(spec, epoch, slot, str(data["excluded"]))
        except (KeyError, TypeError, ValueError) as error:
            raise OrderMismatch(f"the state is damaged: {error}") from error
        if spec.digest != data.get("order_digest") or state.epoch < 0 or state.slot < 0:
            raise OrderMismatch("the state is damaged: its order_digest does not fit its order")
        return state


def check_same(saved: OrderSpec, here: OrderSpec) -> None:
    """Raise OrderMismatch naming the first field in which two orders differ."""
    for name, value in asdict(saved).items():
        ours = getattr(here, name)
        if value != ours:
            raise OrderMismatch(
                f"the state belongs to another order: {name} was {value}, is {ours}",
                hint="Resume with the settings of the run, or start a new run",
            )


class Mix:
    """Deals the slots of a lane to datasets by weight, the same way in every lane.

    Slot n goes to the dataset whose due share (n+1)·w is furthest ahead of what it was given
    (largest remainder, ties to the first), so shares hold over time, not in each step.
    """

    def __init__(self, weights: Sequence[float]):
        if not weights or min(weights) <= 0:
            raise ConfigError("mixing weights must be positive")
        self._parts = _apportion(weights, MIX_RESOLUTION if len(weights) > 1 else 1)
        self._period = int(self._parts.sum())
        given = np.zeros(len(weights), np.int64)
        pattern = np.empty(self._period, np.int64)
        for slot in range(self._period):
            pattern[slot] = np.argmax((slot + 1) * self._parts - given * self._period)
            given[pattern[slot]] += 1
        self._pattern = pattern

    def dealt(self, slots: int) -> Int64s:
        """Return how many of a lane's first `slots` slots went to each dataset."""
        whole, rest = divmod(slots, self._period)
        tail = np.bincount(self._pattern[:rest], minlength=len(self._parts))
        dealt: Int64s = whole * self._parts + tail
        return dealt

    def owners(self, start: int, stop: int) -> Int64s:
        """Return the dataset of each of the slots [start, stop)."""
        owners: Int64s = self._pattern[np.arange(start, stop) % self._period]
        return owners


def _apportion(weights: Sequence[float], total: int) -> Int64s:
    """Return integers that sum to `total` in the proportion of `weights`, each at least one."""
    exact = np.asarray(weights, np.float64) / np.sum(weights) * total
    parts = np.maximum(np.floor(exact).astype(np.int64), 1)
    for index in np.argsort(-(exact - np.floor(exact)), kind="stable")[
        : max(total - parts.sum(), 0)
    ]:
        parts[index] += 1
    while parts.sum() > total:
        parts[np.argmax(parts)] -= 1
    reduced: Int64s = parts // np.gcd.reduce(parts)
    return reduced


def assign_streams(
    homes: Mapping[str, str], regions: Sequence[str], assign: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return which region's stream reads each shard of a job over several regions.

    `homes` maps shard ids to home regions; a shard whose home is not in the job goes where
    `assign` (home → region) says, else it is left out: the second value.
    """
    streams: dict[str, list[str]] = {region: [] for region in regions}
    left_out = []
    for shard_id, home in sorted(homes.items()):
        reader = home if home in streams else assign.get(home)
        if reader in streams:
            streams[reader].append(shard_id)
        else:
            left_out.append(shard_id)
    return streams, left_out
