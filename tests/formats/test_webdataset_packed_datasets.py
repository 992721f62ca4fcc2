"""Datasets of compressed tars, from conversion to repair."""

from pathlib import Path

import pytest

import geodata
from geodata.config import load_config
from geodata.formats import get_format
from geodata.jobs.repair import repair


@pytest.fixture(params=["webdataset+gzip", "webdataset+xz"])
def form(request, workspace):
    """The format in which the posts lie, converted and classified."""
    config = load_config(workspace / "geodata.yaml")
    geodata.convert("posts.jsonl", "data/raw", format=request.param, workers=1, shard_size=40_000)
    geodata.shard("data/raw", config=config, workers=1, shard_size=20_000)
    return request.param


def test_bytes_and_contents_do_not_depend_on_workers_or_compression(form):
    for name, stored, workers in (("twice", form, 2), ("plain", "webdataset", 1)):
        options = {"format": stored, "workers": workers, "shard_size": 40_000}
        geodata.convert("posts.jsonl", f"data/{name}", **options)
    raw, twice, plain = (
        geodata.list_files(f"data/{name}").shards for name in ("raw", "twice", "plain")
    )
    assert len(raw) > 2
    assert [Path(shard.file).name for shard in raw] == [Path(shard.file).name for shard in twice]
    assert [shard.shard for shard in raw] == [shard.shard for shard in plain]


def test_damage_is_found_and_indexes_are_made_anew(form, workspace):
    config = load_config(workspace / "geodata.yaml")
    shards = geodata.list_files("posts", config=config).shards
    first, second = [shard for shard in shards if shard.region == config.here][:2]
    index = Path(f"{first.file}.index")
    whole = index.read_bytes()
    index.unlink()
    report = repair("posts", config=config, workers=1)
    assert (report.ok, len(report.repaired), report.lost) == (True, 1, [])
    assert index.read_bytes() == whole
    assert geodata.verify("posts", config=config, workers=1).ok
    path = Path(second.file)
    unit, data = get_format(form).units(path)[0], bytearray(path.read_bytes())
    data[unit.offset + unit.length // 2] ^= 1
    path.write_bytes(data)
    problems = geodata.verify("posts", config=config, workers=1).problems
    assert {problem["shard"] for problem in problems} == {second.shard}
    assert any("digest" in problem["problem"] for problem in problems)
    assert any("compressed bytes" in problem["problem"] for problem in problems)
