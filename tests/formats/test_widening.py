"""A type widens to those that hold all its values, and every value stays what it is."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from geodata.formats.widening import widened, widens

I8, I64, F32, F64 = pa.int8(), pa.int64(), pa.float32(), pa.float64()
TEXT = pa.string()


def struct(**fields):
    return pa.struct(list(fields.items()))


def decimals(*values):
    return [decimal.Decimal(value) for value in values]


WIDENING = [
    (pa.null(), TEXT, [None, None]),
    (pa.null(), pa.fixed_shape_tensor(F32, [2]), [None]),
    (pa.null(), struct(a=pa.list_(I8)), [None]),
    (I8, I64, [-128, None, 127]),
    (pa.uint8(), pa.int16(), [255, 0]),
    (pa.uint32(), I64, [2**32 - 1]),
    (pa.uint16(), pa.uint64(), [2**16 - 1]),
    (I8, pa.float16(), [-128, 127]),
    (pa.int16(), F32, [-(2**15), 2**15 - 1]),
    (pa.int32(), F64, [-(2**31), 2**31 - 1]),
    (F32, F64, [-0.0, 1e-45, 3.4028234663852886e38, float("inf"), None]),
    (pa.float16(), F32, [65504.0]),
    (TEXT, pa.large_string(), ["", None, "é\0"]),
    (pa.binary(), pa.large_binary(), [b"", None]),
    (pa.binary(2), pa.binary(), [b"ab", None]),
    (pa.decimal128(3, 1), pa.decimal128(6, 2), decimals("99.9", "-0.1")),
    (pa.decimal128(38, 2), pa.decimal256(40, 4), decimals("1" * 36 + ".25")),
    (pa.date32(), pa.date64(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    (pa.list_(pa.null()), pa.list_(TEXT), [[], None, [None]]),
    (pa.list_(pa.null()), pa.large_list(struct(a=I8)), [[], None, [None]]),
    (pa.list_(I8, 2), pa.list_(F64, 2), [[1, None], None]),
    (pa.map_(TEXT, pa.null()), pa.map_(TEXT, I8), [[("k", None)], [], None]),
    (struct(a=pa.null(), b=I8), struct(b=I64, c=TEXT, a=struct(d=F64)), [{"b": 3}, {}, None]),
    (struct(), struct(a=I8), [{}, None]),
]

STAYING = [
    (I64, F64),
    (pa.int32(), F32),
    (pa.uint64(), I64),
    (I64, pa.uint64()),
    (I8, pa.uint64()),
    (I64, I8),
    (F64, F32),
    (F64, I64),
    (TEXT, pa.binary()),
    (TEXT, pa.null()),
    (pa.large_string(), TEXT),
    (pa.bool_(), I8),
    (pa.decimal128(5, 1), pa.decimal128(6, 3)),
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("s", "UTC"), pa.timestamp("s")),
    (pa.date64(), pa.date32()),
    (pa.list_(I64), pa.list_(F64)),
    (pa.list_(I8), I8),
    (pa.large_list(I8), pa.list_(I8)),
    (pa.list_(I8, 2), pa.list_(I8, 3)),
    (struct(a=I8, b=I8), struct(a=I8)),
    (struct(a=I8), struct(a=TEXT)),
    (pa.map_(I64, I8), pa.map_(F64, I8)),
]


@pytest.mark.parametrize(("kind", "wide", "values"), WIDENING)
def test_a_wider_type_holds_all_values(kind, wide, values):
    array = pa.array(values, kind)
    assert widens(kind, wide) and not widens(wide, kind)
    for part in (array, array.slice(1), array.slice(0, 0)):
        made = widened(part, wide)
        made.validate(full=True)
        assert made.type == wide
        assert [_held(value, kind) for value in made.to_pylist()] == part.to_pylist()
    assert str(widened(array, wide).to_pylist()[0]) == str(pa.array(values, wide).to_pylist()[0])


def _held(value, kind):
    """Return a value without the fields that its type had not."""
    if value is None or not pa.types.is_struct(kind):
        return value
    return {field.name: _held(value[field.name], field.type) for field in kind}


@pytest.mark.parametrize(("kind", "other"), STAYING)
def test_what_may_lose_a_value_or_fail_is_no_wider_type(kind, other):
    assert not widens(kind, other)
    assert not widens(struct(x=pa.list_(kind)), struct(x=pa.list_(other)))


@pytest.mark.parametrize("kind", sorted({str(kind): kind for kind, *_ in WIDENING}.items()))
def test_every_type_holds_its_own_values(kind):
    array = pa.nulls(2, kind[1])
    assert widens(kind[1], kind[1]) and widened(array, kind[1]) is array
