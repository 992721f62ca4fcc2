"""How Arrow values look in a record's JSON; that they come back is the conformance suite's."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from typematrix import COLUMNS, INF, NAN

from geodata.errors import SchemaError
from geodata.formats.webdataset.jsonvalues import JsonColumn, dumps

DAY = 86400


def viewed(kind, value):
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array([value], width).view(kind)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (pa.array([True]), "true"),
        (pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
        (pa.array([-0.0]), "-0.0"),
        (pa.array([1e300]), "1e+300"),
        (pa.array([np.float16(0.5)]), "0.5"),
        (pa.array([[NAN, INF, -INF, None]]), '["NaN","Infinity","-Infinity",null]'),
        (pa.array(['é"\0']), '"é\\"\\u0000"'),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), '"1.50"'),
        (pa.array([b"\0\xff"], pa.binary(2)), '"AP8="'),
        (viewed(pa.date32(), 1), '"1970-01-02"'),
        (viewed(pa.date32(), -719162), '"0001-01-01"'),
        (viewed(pa.date32(), -719163), "-719163"),
        (viewed(pa.date32(), 2932897), "2932897"),
        (viewed(pa.timestamp("s"), DAY), '"1970-01-02T00:00:00"'),
        (viewed(pa.timestamp("ns", "UTC"), -1), '"1969-12-31T23:59:59.999999999Z"'),
        (viewed(pa.timestamp("ms", "Europe/Berlin"), 1500), '"1970-01-01T00:00:01.500Z"'),
        (viewed(pa.timestamp("s"), 2**62), str(2**62)),
        (viewed(pa.date64(), DAY * 1000), "86400000"),
        (viewed(pa.time32("s"), 5), "5"),
        (viewed(pa.duration("us"), -7), "-7"),
        (pa.array([{"a": [1], "b": None}]), '{"a":[1],"b":null}'),
        (pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64())), '[["k",1.5]]'),
        (pa.array([{}], pa.struct([])), "{}"),
    ],
    ids=str,
)
def test_values_have_their_natural_form(array, text):
    column = JsonColumn(pa.field("x", array.type))
    (value,) = column.encode(array)
    assert dumps(value) == text


@pytest.mark.parametrize("kind", COLUMNS)
def test_json_is_strict(kind):
    def refuse(constant):
        raise AssertionError(constant)

    column = JsonColumn(pa.field("x", COLUMNS[kind].type))
    text = dumps(column.encode(COLUMNS[kind]))
    parsed = json.loads(text, parse_constant=refuse)
    assert [value is None for value in parsed] == COLUMNS[kind].is_null().to_pylist()


def test_a_string_that_is_not_utf8_is_refused():
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(SchemaError, match="UTF-8") as caught:
        JsonColumn(pa.field("x", pa.string())).encode(broken)
    assert caught.value.fields == {"column": "x"}
