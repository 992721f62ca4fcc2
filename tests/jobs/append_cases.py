"""Appending to the classified dataset of tests, and what is in it."""

import shutil

from editing_cases import config_of
from pipeline import kill_everywhere

import geodata
from geodata.catalog import Catalog, locate


def append(root, source, dataset="posts", **options):
    config = config_of(root)
    return geodata.append(str(root / source), dataset, config=config, **{"workers": 1, **options})


def index_of(root):
    return Catalog.at(locate("posts", config_of(root)), "test").index()


def lines(root):
    catalog = Catalog.at(locate("posts", config_of(root)), "test")
    index = catalog.index()
    return [s.to_line() for region in index.regions for s in catalog.shards(index, region)]


def kill_appends(root, run, step):
    """Kill an append to `posts`, of which data/before is a copy, everywhere; it must go on."""
    expected = lines(root)

    def check():
        assert lines(root) == expected
        assert not list((root / "data").glob("*/.jobs/*"))
        shutil.rmtree(root / "data/posts")
        shutil.copytree(root / "data/before", root / "data/posts")

    check()
    return kill_everywhere(root, run, check, step=step)


def verified(root):
    return geodata.verify("posts", config=config_of(root), workers=1).ok
