"""A column of every type that a dataset can hold, with nulls, empties and extreme values."""

from decimal import Decimal

import numpy as np
import pyarrow as pa

NAN, INF = float("nan"), float("inf")


def _viewed(kind, values):
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, width).view(kind)


def _numbers():
    for bits in (8, 16, 32, 64):
        yield pa.array([0, None, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1], f"int{bits}")
        yield pa.array([0, None, 1, 2**bits - 1], f"uint{bits}")
    for width in (2, 4, 8):
        values = pa.array(np.array([0.0, -0.0, 1.5, NAN, INF, -INF, 1 / 3], f"f{width}"))
        yield pa.concat_arrays([values, pa.nulls(1, values.type)])
    if hasattr(pa, "decimal32"):
        yield pa.array([Decimal("1.25"), None, Decimal("-99999.99")], pa.decimal32(7, 2))
        yield pa.array([Decimal("1.25"), None, Decimal("-0.01")], pa.decimal64(18, 2))
    yield pa.array([Decimal("1.25"), None, Decimal("9" * 36 + ".99")], pa.decimal128(38, 2))
    yield pa.array([Decimal("12E2"), None], pa.decimal128(10, -2))
    yield pa.array([bytes([12] + [0] * 15), None], pa.binary(16)).view(pa.decimal128(3, 5))
    yield pa.array([Decimal("-" + "9" * 74 + ".25"), None], pa.decimal256(76, 2))


def _times():
    yield _viewed(pa.date32(), [0, None, -719162, 2932896, -800000, 2932897, 2**31 - 1])
    yield _viewed(pa.date64(), [0, None, 86400000, -86400000])
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Berlin", "+01:30"):
            yield _viewed(pa.timestamp(unit, zone), [0, None, 1, -1, 1234567890, -(2**35), 2**52])
        yield _viewed(pa.duration(unit), [0, None, -5, 2**62])
    yield _viewed(pa.time32("s"), [0, None, 86399])
    yield _viewed(pa.time32("ms"), [0, None, 86399999])
    yield _viewed(pa.time64("us"), [0, None, 86399999999])
    yield _viewed(pa.time64("ns"), [0, None, 86399999999999])
    yield pa.array([pa.MonthDayNano([1, -2, 2**62]), None], pa.month_day_nano_interval())


def _ragged():
    for kind in (pa.string(), pa.large_string()):
        yield pa.array(["", "a\0b", None, "ü€😀", 'say "\\"\n', "\0"], kind)
    for kind in (pa.binary(), pa.large_binary()):
        yield pa.array([b"", b"a\0b", None, bytes(range(256)), b"\0"], kind)
    yield pa.array([b"abc", None, b"\0\0\0"], pa.binary(3))
    yield pa.array([b"", None, b""], pa.binary(0))


def _nested():
    for of in (pa.list_, pa.large_list):
        yield pa.array([[1, None], None, [], [3]], of(pa.int32()))
        yield pa.array([[[1], None, []], None, [], [[3, None]]], of(of(pa.int32())))
    yield pa.array([[NAN, -0.0], [INF, None, 0.5]], pa.list_(pa.float32()))
    yield pa.array([["", None, "a\0"], None], pa.list_(pa.string()))
    yield pa.array([[b"", None, b"\xff"], None], pa.list_(pa.binary()))
    yield pa.array([[1, None], None, [4, 5]], pa.list_(pa.int32(), 2))
    yield pa.array([[], None], pa.list_(pa.int32(), 0))
    yield pa.array([[[1, None], None], None, []], pa.list_(pa.list_(pa.int32(), 2)))
    yield pa.array([[1, None], None], pa.list_(pa.timestamp("s", "UTC")))
    yield pa.array([[pa.MonthDayNano([1, 2, 3]), None]], pa.list_(pa.month_day_nano_interval()))
    yield pa.array([[], None], pa.list_(pa.null()))


def _structs():
    pair = pa.struct([("a", pa.int8()), ("b", pa.string())])
    yield pa.array([{"a": 1, "b": ""}, None, {"a": None, "b": None}], pair)
    yield pa.array([[{"a": 1, "b": "x"}, None], None, []], pa.list_(pair))
    deep = pa.struct([("a", pa.list_(pair)), ("x.y", pa.struct([("f", pa.float64())]))])
    yield pa.array([{"a": [None], "x.y": {"f": 0.5}}, None, {"a": None, "x.y": None}], deep)
    yield pa.array([{"f": NAN}, None, {"f": -0.0}], pa.struct([("f", pa.float64())]))
    yield pa.array([{}, None], pa.struct([]))
    yield pa.array([{"a": {}}, {"a": None}, None], pa.struct([("a", pa.struct([]))]))
    yield pa.array([[{}, None], None, []], pa.list_(pa.struct([])))
    yield pa.array([{"t": 5}, None], pa.struct([("t", pa.time32("s"))]))
    yield pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int32()))
    yield pa.array([[(1, [b"x", None])], None], pa.map_(pa.int8(), pa.list_(pa.binary())))
    yield pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.timestamp("s")))


def _extensions():
    stored = pa.array([[1, 2, 3, 4, 5, 6], None, [7] * 6], pa.list_(pa.float32(), 6))
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["row", "column"])
    yield pa.ExtensionArray.from_storage(tensor, stored)
    turned = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    yield pa.ExtensionArray.from_storage(turned, stored)
    yield pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16))
    )


def _arrays():
    yield pa.nulls(3)
    yield pa.array([True, None, False])
    for group in (_numbers, _times, _ragged, _nested, _structs, _extensions):
        yield from group()


COLUMNS = {str(array.type): array for array in _arrays()}
"""Arrays by the name of their type."""
