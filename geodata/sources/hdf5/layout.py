"""Which groups of an HDF5 file are its records, if they are."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from geodata.sources.hdf5.file import Link, links_of

_PEEKED = 64
"""Links that are looked at."""

_SURELY_MANY = 16
_MOST_DEPTH = 8
_NUMBERED = re.compile(rb".*\d", re.DOTALL)


def samples_in(root: Any) -> Any | None:
    """Return the group whose groups are the records of a file; None if there is none.

    It holds nothing else but scalars, and its groups have a name within them in common. Besides,
    their own names end in digits, or they are many, or a scalar is among what they hold; but a few
    groups of parallel arrays, without digits, are tables. It may stand in a group that holds it
    alone.
    """
    group = root
    for _ in range(_MOST_DEPTH):
        links = list(links_of(group, Counter(), 0, _PEEKED))
        groups = [link for link in links if link.is_group]
        if not groups or any(not (link.is_group or link.is_scalar) for link in links):
            return None
        if _are_samples(groups, int(group.get_num_objs())):
            return group
        if len(groups) > 1:
            return None
        group = groups[0].target
    return None


def _are_samples(groups: list[Link], count: int) -> bool:
    below = [list(links_of(group.target, Counter(), 0, _PEEKED)) for group in groups]
    names = [{link.raw for link in links} for links in below]
    numbered = all(_NUMBERED.fullmatch(group.raw) for group in groups)
    scalar = any(link.is_scalar for links in below for link in links)
    if len(groups) == 1:
        return numbered and scalar
    if not set.intersection(*names):
        return False
    if numbered or count >= _SURELY_MANY:
        return True
    return scalar and not all(map(_is_table, below))


def _is_table(links: list[Link]) -> bool:
    """Return whether a group holds several arrays of one length."""
    shapes = [link.target.shape for link in links if link.is_array]
    return len(shapes) > 1 and len({shape[0] for shape in shapes}) == 1
