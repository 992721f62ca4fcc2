"""Repair: what can be made anew of shards is, the rest is named, and left out on demand."""

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from editing_cases import config_of
from pipeline import convert, killed_at
from version_cases import make_twice

import geodata
from geodata.catalog import Catalog
from geodata.config import load_config
from geodata.errors import StoreError
from geodata.jobs.history import history
from geodata.jobs.repair import repair


@pytest.fixture
def twice(workspace):
    return make_twice(workspace)


def shards_here(config):
    """Return the shards whose records may be read in this region."""
    return [s for s in geodata.list_files("posts", config=config).shards if s.region == config.here]


def test_indexes_and_sidecars_are_made_anew(twice):
    config = config_of(twice)
    one, other = shards_here(config)[:2]
    index, sidecar = Path(f"{one.file}.index"), Path(f"{other.file}.units.json")
    whole = index.read_bytes(), sidecar.read_bytes()
    index.write_bytes(whole[0][:-7])
    sidecar.unlink()
    dry = repair("posts", config=config, dry_run=True, workers=1)
    assert (len(dry.repaired), dry.lost) == (2, []) and not sidecar.exists()
    report = repair("posts", config=config, workers=1)
    assert {Path(entry["file"]).name for entry in report.repaired} == {index.name, sidecar.name}
    assert (report.ok, report.version) == (True, "v000002")
    assert (index.read_bytes(), sidecar.read_bytes()) == whole
    assert geodata.verify("posts", config=config, workers=1).ok
    again = repair("posts", config=config, workers=1)
    assert (again.repaired, again.ok) == ([], True)


def test_what_is_beyond_repair_is_listed_and_left_out_on_demand(twice):
    config = config_of(twice)
    damaged, lost = geodata.list_files("posts", config=config).shards[:2]
    path = Path(damaged.file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    Path(lost.file).unlink()
    report = repair("posts", config=config, workers=1)
    assert not report.ok and report.dropped == 0 and report.version == "v000002"
    told = {entry["shard"]: entry["problem"] for entry in report.lost}
    assert told == {damaged.shard: "does not match its digest", lost.shard: "is missing"}
    report = repair("posts", config=config, drop_lost=True, workers=1)
    assert report.ok and report.version == "v000003"
    assert report.dropped == damaged.records + lost.records
    assert geodata.verify("posts", config=config, workers=1).ok
    assert geodata.inspect("posts", config=config).records == 300 - report.dropped


def test_what_cannot_be_read_or_written_now_is_not_lost(twice, monkeypatch):
    config = config_of(twice)
    Path(f"{shards_here(config)[0].file}.index").unlink()

    def fails(error):
        def called(*_args):
            raise OSError(error, os.strerror(error))

        return called

    form = "geodata.formats.webdataset.shard.WebDatasetFormat"
    for place, error, match in [
        (f"{form}.write_index", errno.ENOSPC, "cannot write"),
        ("geodata.jobs.repair.file_ref", errno.EACCES, "cannot be read"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(place, fails(error))
            with pytest.raises(StoreError, match=match):
                repair("posts", config=config, drop_lost=True, workers=1)
    assert len(history("posts", config=config).versions) == 2
    assert repair("posts", config=config, drop_lost=True, workers=1).dropped == 0


def test_an_index_is_not_made_anew_where_its_keys_may_not_be_read(twice):
    shards = geodata.list_files("posts", config=config_of(twice)).shards
    personal = [shard for shard in shards if shard.category == "PersonalData"]
    one = next(shard for shard in personal if shard.region == "us-east")
    index, sidecar = Path(f"{one.file}.index"), Path(f"{one.file}.units.json")
    index.unlink()
    sidecar.unlink()
    assert config_of(twice).here == "eu-central"
    report = repair("posts", config=config_of(twice), drop_lost=True, workers=1)
    assert ([entry["dropped"] for entry in report.lost], report.ok) == ([False], False)
    assert "denied by rule home-only" in report.lost[0]["problem"]
    assert (index.exists(), sidecar.exists(), report.version) == (False, True, "v000002")
    here = load_config(twice / "geodata.yaml", ["here=us-east"])
    assert repair("posts", config=here, workers=1).ok and index.exists()


def test_a_repair_on_top_of_an_append_keeps_what_the_dataset_is_made_of(workspace, monkeypatch):
    convert(workspace)
    next((workspace / "data/raw/data").rglob("*.parquet")).write_bytes(b"damaged")
    more = workspace / "more.jsonl"
    more.write_text('{"text": "more"}\n')
    amend, raw = Catalog.amend, str(workspace / "data/raw")

    def second(catalog, base, change, check=None):
        monkeypatch.setattr(Catalog, "amend", amend)
        geodata.append(more, raw, workers=1)
        return amend(catalog, base, change, check)

    monkeypatch.setattr(Catalog, "amend", second)
    assert repair(raw, drop_lost=True, workers=1).version == "v000003"
    assert geodata.append(more, raw, workers=1).unchanged


def test_repairs_killed_anywhere_are_whole_in_the_end(twice):
    config = config_of(twice)
    index = Path(f"{shards_here(config)[0].file}.index")
    whole = index.read_bytes()
    context = multiprocessing.get_context("fork")
    for number in range(1, 100):
        index.write_bytes(whole[:-7])
        mend = lambda _root: repair("posts", config=config, workers=1)  # noqa: E731
        victim = context.Process(target=killed_at, args=(number, mend, twice))
        victim.start()
        victim.join(60)
        mend(twice)
        assert index.read_bytes() == whole
        assert geodata.verify("posts", config=config, workers=1).ok
        if victim.exitcode == 0:
            break
    assert 3 < number < 99
