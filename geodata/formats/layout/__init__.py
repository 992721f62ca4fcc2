"""Arrow's physical layout as named flat arrays, for formats that lack Arrow's types.

A column X becomes a few parts, each a NumPy array of a plain dtype:

    bool, number, time          X            the values (a date, time or timestamp as its integer)
    decimal of over 64 bits, interval, UUID, binary of fixed size
                                X            uint8, shape (n, width): the bytes of each
    string, binary              X/offsets    int64, one more than values; X/data: uint8
    list                        X/offsets    and the parts of all items, X/item
    map                         X/offsets    and the parts of all entries, X/key and X/value
    struct                      -            the parts of each field, X/FIELD
    list of fixed size, tensor  -            the parts of all items under the same name X; a part
                                             of values gets the shape (n, *shape)
    null                        -            nothing
    any of them with nulls      X:valid      bool (the items of a list of fixed size: X:item:valid)

In a name of a column or field the characters "%", "/", ":" and controls are percent-encoded, as is
a whole name of "."; an empty one is "%"; the n-th field whose name its struct has before is NAME:n.
Hence parts cannot clash.

Parts are canonical: offsets start at 0, and under a null all is zero, empty and valid, so neither
slicing nor hidden bytes show. Bytes and numbers are copied only where a null hides something.
"""

from geodata.formats.layout.column import Layout
from geodata.formats.layout.parts import (
    OFFSETS,
    VALID,
    VALUES,
    Array,
    Found,
    Part,
    escape,
)

__all__ = ["OFFSETS", "VALID", "VALUES", "Array", "Found", "Layout", "Part", "escape"]
