"""Each region's bytes at a root of its own."""

import shutil
from pathlib import Path

import pytest
from pipeline import convert, digests, rows_of, shard

import geodata
from geodata.catalog import Catalog, locate
from geodata.config import load_config
from geodata.errors import ConfigError, StoreError
from geodata.loader import build_loader


@pytest.fixture
def roots(workspace):
    """The posts, whose European and American bytes have roots of their own."""
    config = workspace / "geodata.yaml"
    text = config.read_text()
    text = text.replace("jurisdiction: DE,", "jurisdiction: DE, root: eu,")
    config.write_text(text.replace("jurisdiction: US,", "jurisdiction: US, root: disk/us,"))
    return workspace


def files(folder):
    return {path.relative_to(folder).parts[:2] for path in folder.rglob("*") if path.is_file()}


def test_bytes_and_lists_lie_in_their_regions_root(roots):
    convert(roots)
    report = shard(roots)
    assert report.records_out == 300
    kept = {("metadata", "copies"), ("metadata", "lists")}
    assert files(roots / "eu/posts") == {("data", "region=eu-central"), *kept}
    assert files(roots / "disk/us/posts") == {("data", "region=us-east"), *kept}
    at_index = files(roots / "data/posts")
    assert at_index == {
        ("data", "region=ap-northeast"),
        *kept,
        ("metadata", "sources"),
        ("metadata", "v000001.json"),
    }
    config = load_config(roots / "geodata.yaml")
    assert geodata.verify("posts", config=config, workers=1).ok
    assert len(rows_of(roots)) == 300
    assert geodata.inspect("posts", config=config).regions["us-east"]["root"] == str(
        roots / "disk/us/posts"
    )


def test_the_shards_are_those_of_one_root(roots):
    convert(roots)
    shard(roots)
    apart = digests(roots)
    shutil.rmtree(roots / "data/posts")
    text = (roots / "geodata.yaml").read_text()
    (roots / "geodata.yaml").write_text(text.replace("root: eu,", "").replace("root: disk/us,", ""))
    shard(roots)
    assert digests(roots) == apart


def test_other_roots_are_another_version(roots):
    convert(roots)
    first = shard(roots)
    assert shard(roots).unchanged
    config = roots / "geodata.yaml"
    config.write_text(config.read_text().replace("root: eu", "root: europe"))
    assert (first.version, shard(roots).version) == ("v000001", "v000002")
    assert files(roots / "europe/posts") == files(roots / "eu/posts")


def test_a_region_that_moved_is_read_where_the_config_says(roots):
    convert(roots)
    shard(roots)
    config = roots / "geodata.yaml"
    expected = [b["sample"].tolist() for b in build_loader(config, region="us-east")]
    (roots / "disk/us").rename(roots / "moved")
    with pytest.raises(StoreError, match=r"list of shards.*regions\.us-east\.root") as caught:
        build_loader(config, region="us-east")
    assert (caught.value.fields["region"], caught.value.exit_code) == ("us-east", 4)
    config.write_text(config.read_text().replace("root: disk/us", "root: moved"))
    found = [b["sample"].tolist() for b in build_loader(config, region="us-east")]
    assert found == expected
    assert geodata.verify("posts", config=load_config(config), workers=1).ok


def test_a_version_stays_where_it_was_written(roots):
    convert(roots)
    shard(roots, shard_size=4_000)
    first = rows_of(roots)
    config = roots / "geodata.yaml"
    config.write_text(config.read_text().replace("root: eu", "root: europe"))
    shard(roots)
    assert rows_of(roots, "posts@v1") == first
    assert geodata.verify("posts@v1", config=load_config(config), workers=1).ok
    assert geodata.verify("posts@v2", config=load_config(config), workers=1).ok


@pytest.mark.parametrize(
    ("eu", "us"), [("one", "one"), ("one", "./one/../one"), ("one", "one/posts/x"), ("data", "us")]
)
def test_two_roots_are_two_places(roots, eu, us):
    convert(roots)
    config = roots / "geodata.yaml"
    text = config.read_text().replace("root: eu,", f"root: {eu},")
    config.write_text(text.replace("root: disk/us,", f"root: {us},"))
    with pytest.raises(ConfigError, match="keep this dataset in one folder"):
        shard(roots)


@pytest.mark.parametrize("root", ["s3://bucket/x", "file:///tmp/x"])
def test_a_url_is_no_folder(roots, root):
    config = roots / "geodata.yaml"
    config.write_text(config.read_text().replace("root: eu,", f"root: '{root}',"))
    with pytest.raises(ConfigError, match=r"regions\.eu-central\.root: .* is a URL"):
        load_config(config)
    with pytest.raises(ConfigError, match=r"dataset\.root: .* is a URL"):
        load_config(config, ["regions.eu-central.root=eu", f"dataset.root={root}"])


def test_a_root_reached_by_a_link_is_the_same(roots):
    convert(roots)
    shard(roots)
    (roots / "link").symlink_to(roots / "data")
    config = load_config(roots / "geodata.yaml", ["dataset.root=link/posts"])
    assert geodata.verify(str(roots / "data/posts"), config=config, workers=1).ok


def test_an_index_knows_the_roots_without_a_config(roots):
    convert(roots)
    shard(roots)
    config = load_config(roots / "geodata.yaml")
    place = locate(str(roots / "data/posts"), None)
    index = Catalog(place.root, Catalog.at(locate("posts", config), "test").access).index()
    assert {name: entry.root for name, entry in index.regions.items()} == {
        "ap-northeast": ".",
        "eu-central": str(roots / "eu/posts"),
        "us-east": str(roots / "disk/us/posts"),
    }


def test_another_destination_takes_it_all(roots):
    convert(roots)
    report = shard(roots, dest=str(roots / "trial"))
    assert report.dest == str(roots / "trial")
    assert not (roots / "eu").exists() and not (roots / "disk").exists()
    assert ("data", "region=eu-central") in files(roots / "trial")


def test_no_secret_lies_in_a_regions_root(roots):
    convert(roots)
    config = roots / "geodata.yaml"
    text = config.read_text()
    config.write_text(text.replace("root: eu,", "root: eu, subject_key: eu/posts/secret,"))
    with pytest.raises(ConfigError, match="may not lie in the dataset"):
        shard(roots)
    assert not Path(roots / "eu/posts/secret").exists()
