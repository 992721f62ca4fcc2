"""A column and its parts."""

from __future__ import annotations

import pyarrow as pa

from geodata.formats.layout.parts import (
    OFFSETS,
    VALID,
    VALUES,
    Array,
    Found,
    Int64s,
    Part,
    escape,
)
from geodata.formats.layout.tree import Spot, node_of

__all__ = ["OFFSETS", "VALID", "VALUES", "Array", "Found", "Layout", "Part", "escape"]


class Layout:
    """The layout of one column. `parts` lists all that may be there; validity often is not.

    Raises SchemaError for types that no format stores.
    """

    def __init__(self, field: pa.Field):
        name = escape(field.name)
        self._root = node_of(field.type, Spot(name, name))
        self.parts: tuple[Part, ...] = tuple(self._root.parts())

    def flatten(self, array: pa.Array) -> dict[str, Array]:
        """Return the parts of an array of the column's type by name, validity where it has nulls.

        They are C-contiguous, and read-only views of Arrow's buffers where nothing is copied.
        """
        found: dict[str, Array] = {}
        self._root.flatten(array, None, found)
        return found

    def build(self, found: Found, length: int) -> pa.Array:
        """Return the array of `length` values with these parts; other names are ignored.

        Offsets may start anywhere from 0 up, as those of a piece of a longer column do. Raises
        ValueError where a part is missing, has another dtype or shape, or does not fit the others,
        and where a string is not UTF-8: what it returns is safe to read.
        """
        try:
            return self._root.build(found, length)
        except OverflowError:
            raise ValueError("offsets beyond any array") from None

    def nbytes(self, array: pa.Array) -> Int64s:
        """Return the bytes of each value in its parts; items of lists without validity."""
        return self._root.nbytes(self.flatten(array), len(array)) + 1
