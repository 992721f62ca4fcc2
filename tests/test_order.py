"""The order is one sequence, whatever reads it: property tests of the whole layer."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geodata.errors import ConfigError, OrderMismatch
from geodata.order import (
    EpochOrder,
    Mix,
    OrderSpec,
    ShardRows,
    StreamState,
    assign_streams,
    check_same,
    default_lanes,
    excluded_digest,
    rank_lanes,
    sample_ids,
    shards_digest,
    splitmix64,
)


@st.composite
def shard_sets(draw):
    """Random shards with random units; some filtered by a bitmap, some entirely."""
    shards = []
    for number in range(draw(st.integers(1, 6))):
        slots = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
        keep = None
        if draw(st.booleans()):
            bits = st.lists(st.booleans(), min_size=sum(slots), max_size=sum(slots))
            keep = np.array(draw(bits))
        shards.append(ShardRows(f"shard-{number}", slots, keep))
    return shards


def one_process(order, per_lane):
    """All steps of the epoch as one process takes them: [(shard id, row), …] per step."""
    steps = -(-order.lane_slots // per_lane)
    return [ids(order, range(order.lanes), s * per_lane, (s + 1) * per_lane) for s in range(steps)]


def ids(order, lanes, start, stop):
    shard, row = order.slots(lanes, start, stop)
    names = [order.shards[s].shard_id if s >= 0 else None for s in shard]
    return list(zip(names, row.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(
    shards=shard_sets(),
    lanes=st.integers(1, 24),
    per_lane=st.integers(1, 5),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_every_layout_and_resume_gives_the_same_global_steps(
    shards, lanes, per_lane, seed, epoch, data
):
    reference = one_process(EpochOrder(shards, lanes=lanes, seed=seed, epoch=epoch), per_lane)
    worlds = sorted({1, lanes, *(w for w in (2, 3, 5, 7) if w <= lanes)})
    for step, expected in enumerate(reference):
        world = data.draw(st.sampled_from(worlds), label=f"world size at step {step}")
        # a fresh order in another process, given the shards in another sequence: a resume
        mixed = data.draw(st.permutations(shards))
        order = EpochOrder(mixed, lanes=lanes, seed=seed, epoch=epoch)
        start = step * per_lane
        found = []
        for rank in range(world):
            found += ids(order, rank_lanes(lanes, rank, world), start, start + per_lane)
        assert found == expected

    kept = [
        (shard.shard_id, row)
        for shard in shards
        for row in range(sum(shard.slots))
        if shard.keep is None or shard.keep[row]
    ]
    seen = [slot for step in reference for slot in step if slot[0] is not None]
    assert sorted(seen) == sorted(kept)


@settings(max_examples=60, deadline=None)
@given(shards=shard_sets(), lanes=st.integers(1, 24), seed=st.integers(0, 99))
def test_lanes_differ_by_at_most_one_record(shards, lanes, seed):
    order = EpochOrder(shards, lanes=lanes, seed=seed, epoch=0)
    lengths = [
        int((order.slots([lane], 0, order.lane_slots + 3)[0] >= 0).sum()) for lane in range(lanes)
    ]
    assert sum(lengths) == order.records
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) == order.lane_slots


@given(lanes=st.integers(1, 64), data=st.data())
def test_ranks_share_the_lanes_evenly(lanes, data):
    world = data.draw(st.integers(1, lanes))
    shares = [rank_lanes(lanes, rank, world) for rank in range(world)]
    assert [lane for share in shares for lane in share] == list(range(lanes))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert max(map(len, shares)) == -(-lanes // world)


def test_more_ranks_than_lanes_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="4 lanes cannot serve 5 ranks.*at least 5"):
        rank_lanes(4, 0, 5)


def test_epochs_and_seeds_differ_and_units_stay_together():
    shards = [ShardRows(f"s{n}", (10, 10, 10)) for n in range(20)]
    orders = [
        EpochOrder(shards, lanes=1, seed=seed, epoch=epoch)
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    sequences = [ids(order, [0], 0, order.lane_slots) for order in orders]
    assert sequences[0] != sequences[1] != sequences[2] != sequences[0]
    for sequence in sequences:
        units = [(shard, row // 10) for shard, row in sequence]
        changes = sum(a != b for a, b in zip(units, units[1:], strict=False))
        assert changes == 59  # 60 units, each visited once, in one run
        inside = [row % 10 for shard, row in sequence[:10]]
        assert inside != sorted(inside)


def test_the_shuffle_spreads_units_over_the_epoch():
    shards = [ShardRows(f"s{n:03}", (1,) * 10) for n in range(100)]
    order = EpochOrder(shards, lanes=1, seed=3, epoch=0)
    position = [int(name[1:]) for name, _ in ids(order, [0], 0, 1000)]
    correlation = np.corrcoef(np.arange(1000), position)[0, 1]
    assert abs(correlation) < 0.1


def test_golden_order():
    """A change here changes every run's data: only with a new ALGORITHM name."""
    assert splitmix64(np.array([0, 1], np.uint64)).tolist() == [
        16294208416658607535,
        10451216379200822465,
    ]
    order = EpochOrder([ShardRows("a", (3, 2)), ShardRows("b", (4,))], lanes=2, seed=7, epoch=1)
    assert ids(order, [0, 1], 0, 5) == GOLDEN
    assert sample_ids("a", np.array([0, 1])).tolist() == GOLDEN_IDS


GOLDEN = [
    ("a", 2),
    ("a", 0),
    ("a", 1),
    ("a", 3),
    (None, -1),
    ("a", 4),
    ("b", 3),
    ("b", 1),
    ("b", 2),
    ("b", 0),
]
GOLDEN_IDS = [2001841609886806458, 5822940359168842285]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 50_000))
@settings(max_examples=50, deadline=None)
def test_mixing_deals_by_weight_and_is_a_function_of_the_slot_number(weights, start):
    mix = Mix(weights)
    owners = mix.owners(start, start + 500)
    counted = np.bincount(owners, minlength=len(weights))
    assert (mix.dealt(start + 500) - mix.dealt(start) == counted).all()
    due = np.array(weights) / sum(weights) * (start + 500)
    slack = len(weights) + (start + 500) * 2 * len(weights) / 10_000
    assert np.abs(mix.dealt(start + 500) - due).max() <= slack


def test_mixing_is_smooth():
    assert Mix([3, 1]).owners(0, 8).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]


def test_state_round_trips_and_names_the_field_that_differs():
    spec = OrderSpec("v000001", shards_digest([ShardRows("a", (1, 2))]), 8, 7)
    state = StreamState(spec, 2, 40, excluded_digest(["x"]))
    assert StreamState.from_json(json.loads(json.dumps(state.to_json()))) == state
    with pytest.raises(OrderMismatch, match="seed was 7, is 8"):
        check_same(spec, OrderSpec(spec.version, spec.shards, 8, 8))
    damaged = {**state.to_json(), "order_digest": "0"}
    with pytest.raises(OrderMismatch, match="damaged"):
        StreamState.from_json(damaged)
    with pytest.raises(OrderMismatch, match="state_version 99"):
        StreamState.from_json({**state.to_json(), "state_version": 99})


def test_streams_of_a_job_over_regions():
    homes = {"a": "eu", "b": "us", "c": "jp", "d": "jp", "e": "br"}
    streams, left_out = assign_streams(homes, ["eu", "us"], {"jp": "us"})
    assert streams == {"eu": ["a"], "us": ["b", "c", "d"]}
    assert left_out == ["e"]


def test_default_lanes():
    assert [default_lanes(n) for n in (256, 96, 30, 7, 134, 127)] == [64, 48, 30, 7, 2, 1]


def test_an_empty_stream_has_no_slots():
    order = EpochOrder([], lanes=4, seed=0, epoch=0)
    assert (order.records, order.lane_slots) == (0, 0)
    assert order.slots([0, 1], 0, 2)[0].tolist() == [-1, -1, -1, -1]


def test_a_large_index_is_quick_to_open():
    shards = [ShardRows(f"{n:020x}", (800,) * 10) for n in range(2_000)]
    order = EpochOrder(shards, lanes=64, seed=0, epoch=0)
    assert order.records == 16_000_000
    shard, _row = order.slots(range(64), 1000, 1004)
    assert len(shard) == 256
    assert len(np.unique(shard)) > 40
