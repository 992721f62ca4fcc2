"""Whole blocks of line JSON, parsed by Arrow where that surely means the same as line by line.

`parsed` returns the records of a block, or None; then the lines are to be looked at one by one, and
only there is decided what is wrong. It answers where Arrow's grammar and Python's agree, and leaves
to the caller's own eyes:

* a line that is not just one object: each must begin with `{`, end with `}`, and give one record,
* bytes that are no UTF-8, a key twice, a field that is not in the schema: Arrow refuses them,
* a float that may come of an integer which no float64 holds, of `-0`, or of what is not JSON.

`expected` and `news` do the same for types: what was seen so far must hold for all of the block.
`counted` only counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from geodata.sources.batches import most_rows
from geodata.sources.observed import INT64, NEGATIVE, ODD, UINT64, Seen

MAX_DEPTH = 32
"""Levels of lists and objects, the record's own included: Parquet readers refuse deeper ones."""

_EXACT = 1 << 53
"""Integers below it have a float64 of their own."""

_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"

_LEAVES = (pa.null(), pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.string())


def parsed(schema: pa.Schema, data: bytes, *, types_only: bool = False) -> pa.RecordBatch | None:
    """Return the records of lines in exactly these columns, if nothing about them is in doubt.

    With `types_only` a text among them may not be UTF-8: what it is rejected for is found later.
    """
    lines = _objects(data)
    if not lines or lines > most_rows(schema) or not _all_known(schema, MAX_DEPTH - 1):
        return None
    reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pj.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=False,
        unexpected_field_behavior="error",
    )
    try:
        table = pj.read_json(pa.BufferReader(data), reading, parsing)
        table.validate(full=not types_only)
        (batch,) = table.to_batches()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return None
    sound = batch.schema.equals(schema) and batch.num_rows == lines
    return batch if sound and all(map(_is_exact, batch.columns)) else None


def counted(data: bytes) -> pa.RecordBatch | None:
    """Return as many records as there are lines, bare ones, if each surely is one; else None."""
    lines = _objects(data)
    return pa.record_batch([pa.nulls(lines)], [""]) if lines else None


def _objects(data: bytes) -> int:
    """Return how many lines there are, if each begins and ends as an object does; else 0."""
    if not (data.startswith(b"{") and data.endswith((b"}", b"}\n", b"}\r\n"))):
        return 0
    view = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(view[:-1] == _NEWLINE)
    last = view[ends - 1]
    if (last == _RETURN).any():
        last = np.where(last == _RETURN, view[ends - 2], last)
    plain = (last == _CLOSE).all() and (view[ends + 1] == _OPEN).all()
    return len(ends) + 1 if plain else 0


def _all_known(fields: Iterable[pa.Field], levels: int) -> bool:
    """Return whether all types are such as JSON gives, with at most so many levels below."""
    return all(_is_known(field.type, levels) for field in fields)


def _is_known(kind: pa.DataType, levels: int) -> bool:
    if pa.types.is_struct(kind):
        return levels > 0 and _all_known(kind, levels - 1)
    if pa.types.is_list(kind):
        return levels > 0 and _is_known(kind.value_type, levels - 1)
    return kind in _LEAVES


def _is_exact(array: pa.Array) -> bool:
    """Return whether each float can only be the one that its text means."""
    if pa.types.is_struct(array.type):
        return all(map(_is_exact, array.flatten()))
    if pa.types.is_list(array.type):
        return _is_exact(array.flatten())
    if not pa.types.is_float64(array.type):
        return True
    doubtful = pc.or_(
        pc.invert(pc.less(pc.abs(array), float(_EXACT))),  # of NaN, too
        pc.and_(pc.equal(array, 0.0), pc.less(pc.divide(1.0, array), 0.0)),
    )
    return not pc.any(doubtful).as_py()


def expected(fields: dict[str, Seen]) -> pa.Schema | None:
    """Return the schema of all that was seen; None where it has none that says it all."""
    kinds = {name: _type_of(seen) for name, seen in fields.items()}
    if not kinds or None in kinds.values():
        return None
    return pa.schema(list(kinds.items()))


def _type_of(seen: Seen) -> pa.DataType | None:
    kinds = seen.first.keys() - {"null"}
    if not kinds:
        return pa.null()
    if kinds == {"struct"}:
        below = expected(seen.fields)
        return None if below is None else pa.struct(list(below))
    if kinds == {"list"}:
        items = _type_of(seen.items or Seen())
        return None if items is None else pa.list_(items)
    if kinds <= {"int64", NEGATIVE, ODD}:
        return pa.int64()
    if kinds <= {"int64", "uint64", ODD}:
        return pa.uint64()
    if kinds <= {"int64", NEGATIVE, "double"}:
        return pa.float64()
    if kinds == {"bool"}:
        return pa.bool_()
    return pa.string() if kinds == {"string"} else None


def news(array: pa.Array, seen: Seen) -> bool:
    """Return whether the array, of the type expected, may hold a kind of value not seen yet."""
    if pa.types.is_struct(array.type):
        below = zip(array.type, array.flatten(), strict=True)
        return any(news(child, seen.fields[field.name]) for field, child in below)
    if pa.types.is_list(array.type):
        return news(array.flatten(), seen.items or Seen())
    if pa.types.is_float64(array.type):
        whole = pc.and_(pc.equal(array, pc.trunc(array)), pc.less(array, 0.0))
        return NEGATIVE not in seen.first and bool(pc.any(whole).as_py())
    if not pa.types.is_integer(array.type):
        return False
    known = _integers(seen.first)
    least, most = pc.min_max(array).as_py().values()
    return least is not None and not (least in known and most in known)


def _integers(kinds: dict[str, tuple[int, int]]) -> range:
    """Return integers of which each is of one of these kinds, and no other."""
    top = _EXACT
    if ODD in kinds:
        top = UINT64.stop if "uint64" in kinds else INT64.stop
    low = -min(top, INT64.stop) if NEGATIVE in kinds else 0
    return range(low, top if "int64" in kinds else 0)
