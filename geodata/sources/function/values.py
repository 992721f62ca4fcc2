"""Values of Python records, brought to few types that say all about them.

`plain` turns what a function of the user's yields into None, bool, int, float, str, bytes, Decimal,
lists and dicts of such, and three types of our own: `Typed` for what has an Arrow type of its own,
`Picture` for an image, and NumPy's arrays for tensors (columns only; inside of lists and dicts an
array is a list). Instants with a zone are kept as such in UTC, UUIDs as text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.sources.batches import Unfit
from geodata.sources.text.arrowjson import MAX_DEPTH

TIMESTAMP, INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
DATE, TIME, DURATION = pa.date32(), pa.time64("us"), pa.duration("us")

_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=dt.UTC)
_DAY_ONE = _EPOCH.toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)
_AS_THEY_ARE = frozenset({type(None), bool, int, float, bytes, Decimal})
_TENSORS = "biuf"
_EXACT_PNG = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_FINER = {"m": "s", "h": "s", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_DAYS = ("D", "W", "M", "Y")


class Typed(NamedTuple):
    """A number of an Arrow type: a narrow one of NumPy's, or a count of a date's or time's unit."""

    kind: pa.DataType
    value: int | float


class Picture(bytes):
    """The bytes of an encoded image."""


def plain_record(record: object) -> dict[str, Any]:
    """Return the fields of a record in plain values; raise Unfit for what no column can hold."""
    if not isinstance(record, Mapping):
        raise Unfit(f"the function yielded {_named(record)}, not a dict")
    return {
        _name(name, "the record"): _tensor_or_plain(value, name) for name, value in record.items()
    }


def _tensor_or_plain(value: Any, path: str) -> Any:
    array = _array(value, path)
    if array is None:
        return plain(value, path, MAX_DEPTH - 1)
    if array.dtype.kind in _TENSORS and array.ndim and not np.ma.isMaskedArray(array):
        if array.dtype.itemsize > 8:
            raise _no_column(path, array.dtype)
        return np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return _list_of_array(array, path, MAX_DEPTH - 1)


def plain(value: Any, path: str, levels: int) -> Any:
    """Return the value in plain types, at most so many levels of lists and dicts deep."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is str:
        return _text(value, path)
    if isinstance(value, (list, tuple)):
        _descend(levels)
        return [plain(item, f"{path}[]", levels - 1) for item in value]
    if isinstance(value, Mapping):
        _descend(levels)
        return {
            _name(name, f"'{path}'"): plain(below, f"{path}.{name}", levels - 1)
            for name, below in value.items()
        }
    array = _array(value, path)
    return _scalar(value, path) if array is None else _list_of_array(array, path, levels)


def _descend(levels: int) -> None:
    if not levels:
        raise Unfit(f"nested deeper than {MAX_DEPTH} levels")


def _name(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise Unfit(f"{place} has a key that is no string")
    return _text(name, place)


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Unfit(f"'{path}': a string holds half a surrogate pair") from error
    return str.__str__(value)


def _array(value: Any, path: str) -> npt.NDArray[Any] | None:
    """Return what is an array, or gives itself as one, but is no scalar."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return None
    try:
        return np.asarray(value)
    except Exception as error:  # whatever another library raises
        raise _no_column(path, _named(value)) from error


def _list_of_array(array: npt.NDArray[Any], path: str, levels: int) -> Any:
    if array.ndim == 0:
        return plain(array[()], path, levels)
    if array.dtype.kind in "MmO":
        _descend(levels)
        return [plain(item, f"{path}[]", levels - 1) for item in array]
    if array.dtype.kind not in "biufUS":
        raise _no_column(path, array.dtype)
    return plain(array.tolist(), path, levels)


def _scalar(value: Any, path: str) -> Any:
    """Return the plain value of what is neither plain already nor holds other values."""
    if isinstance(value, np.generic):
        return _numpy_scalar(value, path)
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, (dt.date, dt.time, dt.timedelta)):
        return _moment(value, path)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, UUID):
        return str(value)
    for base in (int, float, Decimal):
        if isinstance(value, base):
            return base(value)
    if type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "save"):
        return _picture(value, path)
    raise _no_column(path, _named(value))


def _moment(value: dt.date | dt.time | dt.timedelta, path: str) -> Typed | None:
    if type(value).__name__ == "NaTType":  # of pandas
        return None
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise Unfit(f"'{path}' has nanoseconds: give it as numpy.datetime64")
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            return Typed(TIMESTAMP, (value - _EPOCH) // _MICROSECOND)
        return Typed(INSTANT, (value - _UTC_EPOCH) // _MICROSECOND)
    if isinstance(value, dt.date):
        return Typed(DATE, value.toordinal() - _DAY_ONE)
    if isinstance(value, dt.timedelta):
        return Typed(DURATION, value // _MICROSECOND)
    if value.tzinfo is not None:
        raise Unfit(f"'{path}' is a time of day with a zone: no column has that type")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return Typed(TIME, seconds * 1_000_000 + value.microsecond)


def _numpy_scalar(value: np.generic, path: str) -> Any:
    kind, width = value.dtype.kind, value.dtype.itemsize
    if kind in "Mm":
        return _numpy_moment(value, path)
    if kind in "iuf" and width < 8:
        return Typed(pa.from_numpy_dtype(value.dtype), value.item())
    if (kind in "biufUS" and width <= 8) or kind in "US":
        return plain(value.item(), path, 0)
    raise _no_column(path, value.dtype)


def _numpy_moment(value: Any, path: str) -> Typed | None:
    if np.isnat(value):
        return None
    unit, many = np.datetime_data(value.dtype)
    day = value.dtype.kind == "M" and unit in _DAYS
    wanted = "D" if day else _FINER.get(unit, "s" if unit in ("D", "W") else "")
    if many != 1 or not wanted:
        raise _no_column(path, value.dtype)
    made = value.astype(f"{value.dtype.kind}8[{wanted}]")
    if made.astype(value.dtype) != value:
        raise Unfit(f"'{path}' holds a time that counts more than 64 bits of {wanted}")
    count = int(made.astype(np.int64))
    if day:
        return Typed(DATE, count)
    return Typed(pa.timestamp(wanted) if value.dtype.kind == "M" else pa.duration(wanted), count)


def _picture(image: Any, path: str) -> Picture:
    """Return an image of Pillow's as PNG, pixel for pixel."""
    if image.mode not in _EXACT_PNG:
        raise Unfit(f"'{path}' is an image of mode {image.mode}: give the encoded bytes instead")
    file = BytesIO()
    image.save(file, "PNG")
    return Picture(file.getvalue())


def _named(value: object) -> str:
    return f"a value of type {type(value).__qualname__}"


def _no_column(path: str, what: object) -> Unfit:
    return Unfit(f"'{path}' holds {what}: no column has that type")


def weight(value: Any) -> int:
    """Return about how many bytes a plain value takes in a column."""
    if isinstance(value, (str, bytes)):
        return len(value) + 4
    if isinstance(value, np.ndarray):
        return value.nbytes + 16
    if isinstance(value, list):
        return 4 + sum(map(weight, value))
    return sum(map(weight, value.values())) if isinstance(value, dict) else 9
