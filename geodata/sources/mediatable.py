"""Media files named by the rows of a table, whose columns come with them."""

from __future__ import annotations

from geodata.sources.listing import Listing
from geodata.sources.options import Reading


def table_of(listing: Listing, reading: Reading) -> str | None:  # noqa: ARG001
    """Return the name of the table among the files of a listing, if there is one."""
    return None
