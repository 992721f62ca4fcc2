"""Columns of plain Python values: which types were seen, which one holds them all, the arrays.

What JSON has unites as in line JSON. Narrow numbers of NumPy keep their type while no others stand
in the column; tensors have a fixed shape if all have one; times take the finest unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.schema import is_tensor, media_field, tensor_field
from geodata.sources import values
from geodata.sources.batches import Unfit
from geodata.sources.function.values import DATE, TIME, Picture, Typed
from geodata.sources.observed import Chooser, Place, Seen, integer_kinds, see
from geodata.sources.unite import Clash, united

_WIDE = "wide number"
"""Noted beside the kind of each number that is not a narrow one of NumPy's."""

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TIMES = [
    kind
    for unit in _UNITS
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "UTC"), pa.duration(unit))
]
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()]
_NARROW = {str(kind): kind for kind in (*_INTEGERS, pa.float16(), pa.float32())}
_OTHERS = {str(kind): kind for kind in (pa.binary(), DATE, TIME, *_TIMES)}
_ITEMS = {
    **_NARROW,
    **{str(kind): kind for kind in (pa.bool_(), pa.int64(), pa.uint64(), pa.float64())},
}
_IMAGE = "image"
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TENSOR = re.compile(r"tensor of (\w+)(?: \[([\d, ]*)\])?")
_MOST_DIGITS = 38
_NAMES = {bool: "bool", int: "int64", float: "double", str: "string", bytes: "binary"}


def note_record(fields: dict[str, Seen], record: dict[str, Any], place: Place) -> None:
    """Note the types of a record's fields."""
    for name, value in record.items():
        note(fields.setdefault(name, Seen()), value, place)


def note(seen: Seen, value: Any, place: Place) -> None:
    """Note the type of a plain value."""
    if isinstance(value, list):
        seen.first.setdefault("list", place)
        seen.items = seen.items or Seen()
        for item in value:
            note(seen.items, item, place)
    elif isinstance(value, dict):
        seen.first.setdefault("struct", place)
        note_record(seen.fields, value, place)
    else:
        for kind in _kinds(seen, value):
            seen.first.setdefault(kind, place)
        if type(value) in (bool, int, float, str) or value is None:
            see(seen, value, place)


def _kinds(seen: Seen, value: Any) -> Iterable[str]:
    """Return the kinds of a value beside those of JSON."""
    if type(value) in (int, float):
        return (_WIDE,)
    if isinstance(value, Typed):
        if isinstance(value.value, float):
            return str(value.kind), "double"
        narrow = str(value.kind) in _NARROW
        return str(value.kind), *(integer_kinds(value.value) if narrow else ())
    if isinstance(value, bytes):
        return (_IMAGE,) if isinstance(value, Picture) else ("binary",)
    if isinstance(value, Decimal):
        return (str(_decimal(value)),)
    if isinstance(value, np.ndarray):
        return (_tensor_kind(seen, value),)
    return ()


def _decimal(value: Decimal) -> pa.DataType:
    """Return the narrowest decimal that holds the value."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return pa.decimal128(1, 0)  # NaN and infinity fit no decimal: `fit` says so
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    return pa.decimal128(min(precision, _MOST_DIGITS), min(scale, _MOST_DIGITS))


def _tensor_kind(seen: Seen, array: npt.NDArray[Any]) -> str:
    """Return the array's kind; without a shape where another one was seen."""
    kind = f"tensor of {pa.from_numpy_dtype(array.dtype)}"
    shaped = f"{kind} {list(array.shape)}"
    others = any(known != shaped and known.startswith(kind + " ") for known in seen.first)
    return kind if others else shaped


class PyChooser(Chooser):
    """Chooses the type of each column and of each path inside it."""

    def family(self, kind: str) -> str:
        """Return the name of the types with which `kind` may have a common one."""
        if kind == _WIDE or kind in _NARROW:
            return "number"
        if kind.startswith(("tensor of ", "decimal", "duration")):
            return re.split(r"[ (\[\d]", kind)[0]
        if kind.startswith("timestamp"):
            return "instant" if "UTC" in kind else "timestamp"
        return "binary" if kind == _IMAGE else super().family(kind) if kind not in _OTHERS else kind

    def field_of(self, seen: Seen, name: str) -> pa.Field:
        """Return the column: a tensor or a medium where its values are such."""
        kind = self.type_of(seen, name)
        if pa.types.is_struct(kind) and "struct" not in seen.first:
            return tensor_field(name, kind.field("data").type.value_type)
        medium = _IMAGE if _IMAGE in seen.first else name
        if kind == pa.binary() and medium in ("image", "audio"):
            return media_field(name, medium)
        return pa.field(name, kind)

    def in_family(self, family: str, seen: Seen, path: str) -> pa.DataType:
        """Return the type that holds all values of one family."""
        if family == "number" and _WIDE not in seen.first:
            narrow = [_NARROW[kind] for kind in seen.first if kind in _NARROW]
            try:
                return self._all(narrow, path) if narrow else super().in_family(family, seen, path)
            except Clash:
                return super().in_family(family, seen, path)
        if family == "tensor":
            return self._tensor(seen, path)
        if family == "decimal":
            found = [_DECIMAL.fullmatch(kind) for kind in seen.first]
            return self._all([pa.decimal128(int(m[1]), int(m[2])) for m in found if m], path)
        if family in ("timestamp", "instant", "duration"):
            kinds = [k for k in seen.first if k in _OTHERS and self.family(k) == family]
            return self._all([_OTHERS[kind] for kind in kinds], path)
        if family in _OTHERS:
            return _OTHERS[family]
        return super().in_family(family, seen, path)

    def _all(self, kinds: Sequence[pa.DataType], path: str) -> pa.DataType:
        kind = kinds[0]
        for other in kinds[1:]:
            kind = united(kind, other, path, first_wins=False)
        return kind

    def _tensor(self, seen: Seen, path: str) -> pa.DataType:
        order = sorted((place, kind) for kind, place in seen.first.items())
        found = [(p, k, m) for p, k in order if (m := _TENSOR.fullmatch(k))]
        item = _ITEMS[found[0][2][1]]
        for place, kind, match in found[1:]:
            try:
                item = united(item, _ITEMS[match[1]], path, self.first_wins)
            except Clash:
                raise self.conflict(path, found[0][:2], (place, kind)) from None
        shapes = {match[2] for _, _, match in found}
        shape = shapes.pop()
        if shapes or not shape or "0" in shape.split(", "):
            return tensor_field(path, item).type
        return pa.fixed_shape_tensor(item, [int(size) for size in shape.split(", ")])


def column_of(found: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return plain values as a column; raise Unfit for the first that it cannot hold."""
    if is_tensor(field):
        return _tensors(found, field)
    kinds = set(map(type, found))
    try:
        if kinds <= {bool, int, float, str, type(None)}:
            return values.array_of(found, field.type, field.name)
        return pa.array([fit(value, field.type, field.name) for value in found], field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise Unfit(f"'{field.name}' is {field.type} here, which cannot hold the value") from error


def fit(value: Any, kind: pa.DataType, path: str) -> Any:
    """Return the value as `pa.array` takes it for `kind`, equal to the one given; else Unfit."""
    if value is None:
        return None
    if isinstance(value, list) and pa.types.is_list(kind):
        return [fit(item, kind.value_type, f"{path}[]") for item in value]
    if isinstance(value, dict) and pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        for name in value.keys() - known.keys():
            raise Unfit(f"'{path}.{name}' is not in the schema")
        return {n: fit(value.get(n), below, f"{path}.{n}") for n, below in known.items()}
    if isinstance(value, Typed):
        return _fit_typed(value, kind, path)
    if type(value) in (bool, int, float, str):
        return values.fitted(value, kind, path)
    if isinstance(value, bytes) and pa.types.is_binary(kind):
        return value
    if isinstance(value, Decimal) and pa.types.is_decimal(kind):
        return _fit_decimal(value, kind, path)
    raise Unfit.of(path, kind, _shown(value))


def _fit_typed(value: Typed, kind: pa.DataType, path: str) -> Any:
    if isinstance(value.value, float):
        if not pa.types.is_floating(kind) or kind.bit_width < value.kind.bit_width:
            raise Unfit.of(path, kind, str(value.kind))
        return np.float16(value.value) if kind == pa.float16() else value.value
    if pa.types.is_integer(value.kind):
        if pa.types.is_floating(kind) and kind != pa.float64():
            return _fit_narrow(value, kind, path)
        return values.fitted(value.value, kind, path)
    if value.kind == kind:
        return value.value
    same = pa.types.is_timestamp, pa.types.is_duration
    zones = getattr(value.kind, "tz", None) == getattr(kind, "tz", None)
    if not zones or not any(check(kind) and check(value.kind) for check in same):
        raise Unfit.of(path, kind, str(value.kind))
    count, rest = divmod(value.value * _UNITS[kind.unit], _UNITS[value.kind.unit])
    if rest or count not in range(-(1 << 63), 1 << 63):
        raise Unfit.of(path, kind, f"a value of {value.kind} that it cannot hold")
    return count


def _fit_narrow(value: Typed, kind: pa.DataType, path: str) -> Any:
    """Return a narrow integer as a narrow float that holds every integer of its type."""
    held = (kind == pa.float32() and value.kind.bit_width <= 16) or value.kind.bit_width == 8
    if not held:
        raise Unfit.of(path, kind, str(value.kind))
    return np.float16(value.value) if kind == pa.float16() else float(value.value)


def _fit_decimal(value: Decimal, kind: pa.DataType, path: str) -> Decimal:
    if not value.is_finite():
        raise Unfit.of(path, kind, "a decimal that is not finite")
    return value


def _tensors(found: Sequence[Any], field: pa.Field) -> pa.Array:
    fixed = isinstance(field.type, pa.FixedShapeTensorType)
    item = field.type.value_type if fixed else field.type.field("data").type.value_type
    shape = tuple(field.type.shape) if fixed else None
    for array in found:
        if array is not None and not isinstance(array, np.ndarray):
            raise Unfit.of(field.name, "a tensor", _shown(array))
        if array is not None and shape not in (None, array.shape):
            raise Unfit.of(field.name, f"a tensor of shape {shape}", f"one of {array.shape}")
    missing = pa.array([array is None for array in found])
    flat = [_flat(array, item, field.name) for array in found if array is not None]
    if fixed:
        return _of_fixed_shape(flat, [a is not None for a in found], field.type, missing)
    lengths = [0 if array is None else array.size for array in found]
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())
    data = pa.ListArray.from_arrays(
        ends, _joined(flat, item), type=field.type.field("data").type, mask=missing
    )
    shapes = [None if array is None else list(array.shape) for array in found]
    sizes = pa.array(shapes, field.type.field("shape").type)
    return pa.StructArray.from_arrays([data, sizes], fields=list(field.type), mask=missing)


def _of_fixed_shape(
    flat: list[pa.Array], there: list[bool], kind: pa.FixedShapeTensorType, missing: pa.Array
) -> pa.Array:
    storage = kind.storage_type
    nothing = pa.array(np.zeros(storage.list_size, np.uint8)).cast(kind.value_type)
    given = iter(flat)
    items = _joined([next(given) if known else nothing for known in there], kind.value_type)
    made = pa.FixedSizeListArray.from_arrays(items, type=storage, mask=missing)
    return pa.ExtensionArray.from_storage(kind, made)


def _joined(arrays: list[pa.Array], item: pa.DataType) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else pa.array([], item)


def _flat(array: npt.NDArray[Any], item: pa.DataType, path: str) -> pa.Array:
    made = pa.array(array.reshape(-1))
    try:
        if not united(item, made.type, path, first_wins=False).equals(item):
            raise Unfit.of(path, f"a tensor of {item}", f"one of {made.type}")
    except Clash as clash:
        raise Unfit.of(path, f"a tensor of {item}", f"one of {made.type}") from clash
    return made.cast(item)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "a tensor"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a struct"
    return "decimal" if isinstance(value, Decimal) else _NAMES.get(type(value), "binary")
