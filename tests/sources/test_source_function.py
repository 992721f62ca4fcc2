"""A user's function as a source: the types that hold what it yields."""

import datetime as dt
import math
import uuid
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from function_modules import module_here
from PIL import Image
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.schema import is_tensor, media_of
from geodata.sources.function import source as function_source


@pytest.fixture
def source(tmp_path, monkeypatch):
    with module_here(tmp_path, monkeypatch) as make:
        yield make


@pytest.fixture
def yields(source, monkeypatch):
    """Return what reads given values, each the field `v` of a record."""
    monkeypatch.setattr(function_source, "_given", [], raising=False)

    def read(*values, name="v", **options):
        function_source._given = [{name: value} for value in values]
        code = (
            "from geodata.sources.function import source\n\n"
            "def rows():\n    yield from source._given"
        )
        return read_all(source(code), **options)

    return read


WARSAW = ZoneInfo("Europe/Warsaw")
NEW_YEAR = dt.datetime(2024, 1, 1, 12, 30, 0, 7)
TYPES = [
    ([None, 1, None], pa.int64(), None),
    ([None], pa.null(), None),
    ([1, 2.5], pa.float64(), None),
    ([2**63, 1], pa.uint64(), None),
    ([-1, 2**62], pa.int64(), None),
    ([True, np.bool_(False)], pa.bool_(), [True, False]),
    (["x", np.str_("y"), ""], pa.string(), None),
    (
        [b"x\0", bytearray(b"y"), memoryview(b""), np.bytes_(b"z")],
        pa.binary(),
        [b"x\0", b"y", b"", b"z"],
    ),
    ([NEW_YEAR, None], pa.timestamp("us"), None),
    (
        [np.datetime64("1969-12-31T23:59:59", "s")],
        pa.timestamp("s"),
        [dt.datetime(1969, 12, 31, 23, 59, 59)],
    ),
    (
        [np.datetime64("NaT"), np.datetime64("2024-02", "M")],
        pa.date32(),
        [None, dt.date(2024, 2, 1)],
    ),
    ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), None),
    ([dt.time(23, 59, 59, 999999), dt.time()], pa.time64("us"), None),
    (
        [dt.timedelta(days=-1), np.timedelta64(3, "ms")],
        pa.duration("us"),
        [dt.timedelta(days=-1), dt.timedelta(milliseconds=3)],
    ),
    ([Decimal("1.5"), Decimal("-200"), Decimal("1E+3")], pa.decimal128(5, 1), None),
    ([uuid.UUID(int=1)], pa.string(), [str(uuid.UUID(int=1))]),
    ([np.int8(-3), np.int8(4)], pa.int8(), [-3, 4]),
    ([np.uint8(255), np.int8(-1)], pa.int16(), [255, -1]),
    ([np.uint8(255), 2**40], pa.int64(), [255, 2**40]),
    ([np.float32(0.1), np.float32(math.inf)], pa.float32(), [float(np.float32(0.1)), math.inf]),
    ([np.float32(0.1), 0.1], pa.float64(), [float(np.float32(0.1)), 0.1]),
    ([np.float16(1.5), np.int8(2)], pa.float16(), [1.5, 2.0]),
    ([np.float32(1.5), np.int16(2)], pa.float32(), [1.5, 2.0]),
    ([np.int64(5), np.uint64(2**64 - 1)], pa.uint64(), [5, 2**64 - 1]),
    ([[1, 2.5, None], (3,), []], pa.list_(pa.float64()), [[1, 2.5, None], [3], []]),
    ([[], None], pa.list_(pa.null()), None),
    (
        [{"x": [NEW_YEAR.date()], "y": None}, {"x": None, "y": b"z"}],
        pa.struct([("x", pa.list_(pa.date32())), ("y", pa.binary())]),
        None,
    ),
    ([[np.arange(2), np.array([[1.5]])[0]]], pa.list_(pa.list_(pa.float64())), [[[0, 1], [1.5]]]),
    ([np.array(["a", "bc"])], pa.list_(pa.string()), [["a", "bc"]]),
    ([np.array([NEW_YEAR], "datetime64[us]")], pa.list_(pa.timestamp("us")), [[NEW_YEAR]]),
    ([np.array(3, np.int32), np.array([1, None], object)[0]], pa.int64(), [3, 1]),
]


@pytest.mark.parametrize(("values", "kind", "wanted"), TYPES)
def test_values_have_the_type_that_holds_them_all(yields, values, kind, wanted):
    for order in (values, values[::-1]):
        read = yields(*order)
        assert read.schema.field("v").type == kind
        assert read.rejects == []
        wanted_now = order if wanted is None else wanted[:: 1 if order is values else -1]
        assert read.column("v") == wanted_now


def test_instants_are_kept_in_utc(yields):
    winter, summer = (dt.datetime(2024, month, 1, 12, tzinfo=WARSAW) for month in (1, 7))
    read = yields(winter, summer.astimezone(dt.UTC))
    assert read.schema.field("v").type == pa.timestamp("us", "UTC")
    assert read.column("v") == [winter, summer]


def test_a_finer_unit_holds_the_coarser(yields):
    read = yields(dt.datetime(2024, 1, 1), np.datetime64(1000, "ns"))
    assert read.schema.field("v").type == pa.timestamp("ns")
    assert read.column("v") == [dt.datetime(2024, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 0, 1)]


def test_arrays_of_one_shape_are_tensors_of_fixed_shape(yields):
    arrays = [np.full((2, 3), i, ">f4").T for i in range(3)]
    read = yields(arrays[0], None, arrays[1], arrays[2])
    assert read.schema.field("v").type == pa.fixed_shape_tensor(pa.float32(), [3, 2])
    assert read.column("v") == [[0.0] * 6, None, [1.0] * 6, [2.0] * 6]


def test_arrays_of_several_shapes_are_tensors_of_varying_shape(yields):
    read = yields(np.arange(6, dtype=np.uint8).reshape(2, 3), np.zeros((0, 4), np.uint8), None)
    assert is_tensor(read.schema.field("v"))
    assert read.column("v") == [
        {"data": [0, 1, 2, 3, 4, 5], "shape": [2, 3]},
        {"data": [], "shape": [0, 4]},
        None,
    ]
    wide = yields(*(np.ones(n, np.int8 if n % 2 else np.int32) for n in range(1, 9)))
    assert wide.schema.field("v").type.field("data").type == pa.list_(pa.int32())
    assert [value["shape"] for value in wide.column("v")] == [[n] for n in range(1, 9)]


def test_an_array_that_is_empty_has_no_fixed_shape(yields):
    read = yields(np.zeros((0, 3)), np.zeros((0, 3)))
    assert read.column("v") == [{"data": [], "shape": [0, 3]}] * 2


def test_pictures_are_kept_as_png(yields):
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    read = yields(image, None)
    assert media_of(read.schema.field("v")) == "image"
    assert read.column("v")[0].startswith(b"\x89PNG")
    refused = yields(Image.new("CMYK", (1, 1)), None)
    assert refused.reasons() == [
        (1, "'v' is an image of mode CMYK: give the encoded bytes instead")
    ]


@pytest.mark.parametrize(("name", "value"), [("image", b"x"), ("audio", b"x"), ("text", "x")])
def test_columns_named_so_are_media(yields, name, value):
    assert media_of(yields(value, name=name).schema.field(name)) == name
    assert media_of(yields(1, name=name).schema.field(name)) is None


class Odd:
    """A type that no column has."""


NOT_STORED = [
    ({1, 2}, "'v' holds a value of type set: no column has that type"),
    (Odd(), "'v' holds a value of type Odd: no column has that type"),
    ([1j], "'v[]' holds a value of type complex: no column has that type"),
    (np.complex64(1), "'v' holds complex64: no column has that type"),
    (np.ones(2, np.complex64), "'v' holds complex64: no column has that type"),
    ({1: 2}, "'v' has a key that is no string"),
    ("\ud800", "'v': a string holds half a surrogate pair"),
    ({"\ud800": 1}, "''v'': a string holds half a surrogate pair"),
    (dt.time(1, tzinfo=dt.UTC), "'v' is a time of day with a zone: no column has that type"),
    (np.datetime64(1 << 61, "h"), "'v' holds a time that counts more than 64 bits of s"),
    (np.timedelta64(-(1 << 60), "D"), "'v' holds a time that counts more than 64 bits of s"),
]


@pytest.mark.parametrize(("value", "reason"), NOT_STORED)
def test_what_no_column_holds_is_rejected(yields, value, reason):
    read = yields(None, value, 1)
    assert read.reasons() == [(2, reason)]
    assert read.column("v") == [None, 1]


class NaTType(dt.datetime):
    """What pandas has for a time that is missing, which counts as a datetime."""


def test_a_missing_time_of_pandas_is_null(yields):
    read = yields(NEW_YEAR, NaTType(1, 1, 1))
    assert read.schema.field("v").type == pa.timestamp("us")
    assert read.column("v") == [NEW_YEAR, None]


def test_a_record_that_is_no_dict_is_rejected(source):
    read = read_all(source("def rows():\n    return [{'a': 1}, [1], None, {2: 3}, {'a': 4}]"))
    assert read.column("a") == [1, 4]
    assert read.reasons() == [
        (2, "the function yielded a value of type list, not a dict"),
        (3, "the function yielded a value of type NoneType, not a dict"),
        (4, "the record has a key that is no string"),
    ]
    assert list(read.records) == ["rows#1", "rows#5"]


def test_what_is_nested_too_deep_is_rejected(yields):
    deep, deepest = 1, 1
    for level in range(32):
        deep, deepest = [deep], [deep] if level < 31 else deepest
    assert yields(deep).reasons() == [(1, "nested deeper than 32 levels")]
    assert yields(deepest).column("v") == [deepest]


CONFLICTS = [
    (1, "x", "int64", "string"),
    (True, 1, "bool", "int64"),
    (b"x", "x", "binary", "string"),
    (dt.date(2024, 1, 1), NEW_YEAR, "date32[day]", "timestamp[us]"),
    (NEW_YEAR, NEW_YEAR.replace(tzinfo=dt.UTC), "timestamp[us]", "timestamp[us, tz=UTC]"),
    (Decimal(1), 1.5, "decimal128(1, 0)", "double"),
    (np.ones(2), [1.5], "tensor of double [2]", "list"),
    (np.ones(2), np.ones(2, np.bool_), "tensor of double [2]", "tensor of bool [2]"),
]


@pytest.mark.parametrize(("one", "other", "kind", "other_kind"), CONFLICTS)
def test_a_conflict_names_both_types_and_rows(yields, one, other, kind, other_kind):
    with pytest.raises(SchemaError) as caught:
        yields(None, one, one, other)
    name = caught.value.fields["file"]
    assert caught.value.message == (
        f"the column holds {kind} (first in {name} row 2) and {other_kind} (first in {name} row 4)"
    )
    assert caught.value.fields == {"file": name, "row": 4, "column": "v"}
    read = yields(None, one, one, other, first_wins=True)
    assert [row for row, _ in read.reasons()] == [4]
    assert len(read.column("v")) == 3


def test_a_value_that_its_column_cannot_hold_is_rejected(yields):
    read = yields(np.datetime64(0, "ns"), dt.datetime(9999, 1, 1), Decimal(1), first_wins=True)
    assert len(read.column("v")) == 1
    assert [row for row, _ in read.reasons()] == [2, 3]
    nan = yields(Decimal("1.5"), Decimal("NaN"))
    assert nan.reasons() == [
        (2, "'v' is decimal128(2, 1) here, this record holds a decimal that is not finite")
    ]


def test_names_in_double_underscores_are_reserved(source):
    with pytest.raises(SchemaError, match="reserved"):
        read_all(source("def rows():\n    yield {'__subject__': 'x'}"))
