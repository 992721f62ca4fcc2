"""Appending to the classified dataset of tests, and what is in it."""

from editing_cases import config_of

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


def verified(root):
    return geodata.verify("posts", config=config_of(root), workers=1).ok
