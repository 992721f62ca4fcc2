"""Opens a dataset's index and lists, computes what a region may see, and commits versions.

`place` says where a dataset lies, `versions` opens what is there, `commits` adds to it; `copies`
are what damage to an index or a list is found and mended by, in `damage`; `checking` compares
files of shards with their digests.
"""

from geodata.catalog.commits import COMMIT_ATTEMPTS, Catalog, Change, stamp
from geodata.catalog.place import Place, locate, make_access, region_roots
from geodata.catalog.versions import UNREADABLE, Versions, holds, read_units
from geodata.catalog.visible import Visible, tag_of_file, visible_set

__all__ = [
    "COMMIT_ATTEMPTS",
    "UNREADABLE",
    "Catalog",
    "Change",
    "Place",
    "Versions",
    "Visible",
    "holds",
    "locate",
    "make_access",
    "read_units",
    "region_roots",
    "stamp",
    "tag_of_file",
    "visible_set",
]
