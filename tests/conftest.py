"""Fixtures that the tests share."""

import pytest
from posts import CONFIG, make_posts


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty working directory with `posts.jsonl` and `geodata.yaml`."""
    monkeypatch.chdir(tmp_path)
    make_posts(tmp_path / "posts.jsonl")
    (tmp_path / "geodata.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture(scope="session")
def posts_dataset(tmp_path_factory):
    """A sharded dataset of 300 posts; a test must not change it. Returns its config's path."""
    import geodata
    from geodata.config import load_config

    folder = tmp_path_factory.mktemp("posts")
    make_posts(folder / "posts.jsonl")
    (folder / "geodata.yaml").write_text(CONFIG)
    geodata.convert(folder / "posts.jsonl", folder / "data/raw", shard_size=16_000, workers=1)
    config = load_config(folder / "geodata.yaml")
    geodata.shard(str(folder / "data/raw"), config=config, shard_size=4_000, workers=1)
    return folder / "geodata.yaml"


def pytest_addoption(parser):
    """Take the folder of real corpora for the soak tests."""
    parser.addoption("--corpora", metavar="DIR", help="Real corpora for tests/soak.")
