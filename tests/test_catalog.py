"""Versions: one commit wins, damage is named, newer files are refused."""

import json
import shutil

import pytest

import geodata
from geodata.catalog import Catalog, locate, make_access, visible_set
from geodata.config import load_config
from geodata.errors import CommitConflict, ConfigError, FormatVersionError, ManifestError
from geodata.manifest import Index, Shard, Units, list_bytes, parse_list
from geodata.tags import STAGING


@pytest.fixture
def staging(workspace):
    geodata.convert(workspace / "posts.jsonl", workspace / "data/raw", workers=1)
    root = workspace / "data/raw"
    return Catalog(str(root), make_access(root / "audit", STAGING, "test"))


def outdated(catalog, known):
    """Return the catalog as one whose first look at the versions was before another's commit."""
    twin = Catalog(catalog.root, catalog.access)
    looks = iter([known])
    twin.versions = lambda: next(looks, None) or catalog.versions()
    return twin


def test_two_committers_one_wins_and_the_other_is_told(staging):
    index, known = staging.index(), staging.versions()
    shards = {STAGING: staging.shards(index, STAGING)}
    mine, theirs = (index.model_copy(update={"plan_digest": name}) for name in ("mine", "theirs"))
    assert staging.commit(mine, shards).version == "v000002"
    with pytest.raises(CommitConflict, match="another writer committed v000002") as caught:
        outdated(staging, known).commit(theirs, shards)
    assert caught.value.exit_code == 4
    assert [str(v) for v in staging.versions()] == ["v000001", "v000002"]
    assert staging.index().plan_digest == "mine"


def test_the_same_plan_committed_twice_is_one_version(staging):
    index, known = staging.index(), staging.versions()
    shards = {STAGING: staging.shards(index, STAGING)}
    mine = index.model_copy(update={"plan_digest": "mine"})
    assert staging.commit(mine, shards).version == "v000002"
    assert outdated(staging, known).commit(mine, shards).version == "v000002"
    assert [str(v) for v in staging.versions()] == ["v000001", "v000002"]


def test_lists_and_sidecars_round_trip_and_damage_is_named(staging, workspace):
    index = staging.index()
    shards = staging.shards(index, STAGING)
    assert parse_list(list_bytes(shards)) == shards
    units = staging.units(index, STAGING, shards[0])
    assert Units.from_bytes(units.to_bytes(), "x") == units
    assert sum(p.length for p in (*units.units, *units.frame)) == shards[0].main.nbytes
    path = workspace / "data/raw" / index.regions[STAGING].listing.path
    path.write_bytes(path.read_bytes().replace(b'"live":', b'"lives":'))
    with pytest.raises(ManifestError, match="list does not match its digest"):
        staging.shards(index, STAGING)
    sidecar = workspace / "data/raw" / shards[0].files["units"].path
    sidecar.write_bytes(b"{}")
    with pytest.raises(ManifestError, match="sidecar does not match"):
        staging.units(index, STAGING, shards[0])
    with pytest.raises(ManifestError, match="damaged line"):
        Shard.from_line(b'{"shard_id": 1}')


def test_a_newer_or_damaged_index_is_refused(staging, workspace):
    path = workspace / "data/raw/metadata/v000001.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, "dataset": "another"}))
    with pytest.raises(ManifestError, match=r"not match its digest.*v000001\.json.*geodata repair"):
        staging.index()
    shutil.rmtree(path.parent / "copies")  # as of an earlier release
    assert staging.index().dataset == "another"
    path.write_text(json.dumps({**record, "format_version": 99}))
    with pytest.raises(FormatVersionError, match=r"none that this release reads.*pip install -U"):
        staging.index()
    path.write_text(json.dumps({**record, "colour": "red"}))
    with pytest.raises(ManifestError, match="damaged index: colour"):
        staging.index()
    path.write_text("{")
    with pytest.raises(ManifestError, match="not the JSON of one"):
        staging.index()
    with pytest.raises(ManifestError, match="not the JSON of one"):
        Index.from_bytes(b"[]", "x")


def test_references(posts_dataset, monkeypatch):
    config = load_config(posts_dataset)
    root = posts_dataset.parent / "data/posts"
    assert locate("posts@v1", config).root == str(root)
    assert str(locate(f"{root}@latest", None).root) == str(root)
    with pytest.raises(ConfigError, match="no dataset 'psts'.*the config names 'posts'"):
        locate("psts", config)
    with pytest.raises(ConfigError, match=r"no version v000009.*There are v000001"):
        geodata.inspect("posts@v9", config=config)
    with pytest.raises(ConfigError, match="region this machine stands in"):
        geodata.inspect(str(root))


def test_what_a_region_sees(posts_dataset):
    config = load_config(posts_dataset)
    catalog = Catalog.at(locate("posts", config), "test")
    index = catalog.index()
    seen = visible_set(catalog, index, "us-east", "test")
    assert {home for home, _ in seen.shards} == set(index.regions)
    assert all(not shard.tag.personal or home == "us-east" for home, shard in seen.shards)
    assert {rule for _, _, rule in seen.denied} == {"home-only"}
    total = sum(s.live for _, s in seen.shards) + sum(s.live for _, s, _ in seen.denied)
    assert total == index.records == 300
