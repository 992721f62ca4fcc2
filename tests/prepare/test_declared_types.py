"""Columns become what is declared, value by value the same, or the record is refused."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from preparing import prepared, records

from geodata.errors import ConfigError, SchemaError
from geodata.prepare import Preparing, prepared_schema, steps_of
from geodata.prepare.typenames import parse_type
from geodata.schema import is_label, label_field, media_of

UTC = dt.UTC


def declared(values, kind, text):
    """Return what becomes of the values that fit, and which do not."""
    batch = records({"x": values}, [pa.field("x", kind)])
    made, rejects = prepared(batch, types=(("x", text),))
    for row, reason, _raw in rejects:
        assert reason == f"'x' cannot become {parse_type(text)} without change", row
    return made.column("x").to_pylist(), [values[row] for row, _, _ in rejects]


@pytest.mark.parametrize(
    ("kind", "text", "good", "made", "bad"),
    [
        (
            "string",
            "int32",
            ["1", "-3", None],
            [1, -3, None],
            ["007", "+4", " 5", "", "1.0"],
        ),
        ("string", "uint8", ["0", "255"], [0, 255], ["256", "-1"]),
        (
            "string",
            "float64",
            ["1.5", "0.1", "1e3", "16777217", "inf"],
            [1.5, 0.1, 1000.0, 16777217.0, float("inf")],
            ["1e999", "0.10000000000000001", "x", "1_0", ""],
        ),
        ("string", "float32", ["1.5", "-0"], [1.5, 0.0], ["16777217", "1e39"]),
        ("string", "bool", ["true", "False", "1", "0"], [True, False, True, False], ["yes", "2"]),
        (
            "string",
            "decimal128(10, 2)",
            ["1.50", "1.5", "-7"],
            [Decimal("1.50"), Decimal("1.50"), Decimal("-7.00")],
            ["1.005", "99999999999", "x"],
        ),
        (
            "string",
            "date32",
            ["2024-02-29"],
            [dt.date(2024, 2, 29)],
            ["2023-02-29", "20240229", "2024-02-29T00:00:00", ""],
        ),
        (
            "string",
            "timestamp[us]",
            ["2024-02-29", "2024-02-29 12:00:00.5", "9999-12-31T23:59:59"],
            [
                dt.datetime(2024, 2, 29),
                dt.datetime(2024, 2, 29, 12, 0, 0, 500_000),
                dt.datetime(9999, 12, 31, 23, 59, 59),
            ],
            ["2024-02-29 12:00:00.1234567", "2024-02-29T12:00:00Z", "yesterday"],
        ),
        (
            "string",
            "timestamp[s, tz=UTC]",
            ["2024-02-29T12:00:00Z", "2024-02-29T12:00:00+02:00"],
            [
                dt.datetime(2024, 2, 29, 12, tzinfo=UTC),
                dt.datetime(2024, 2, 29, 10, tzinfo=UTC),
            ],
            ["2024-02-29T12:00:00", "2024-02-29T12:00:00.5Z"],
        ),
        ("string", "timestamp[ns]", ["2024-01-01"], [dt.datetime(2024, 1, 1)], ["9999-12-31"]),
        ("int64", "int32", [1, -1, None], [1, -1, None], [2**31, -(2**40)]),
        ("int64", "float64", [1, 2**53], [1.0, 2.0**53], [2**53 + 1]),
        ("int64", "bool", [0, 1], [False, True], [2, -1]),
        ("int64", "decimal128(4, 1)", [1, 999], [Decimal("1.0"), Decimal("999.0")], [1000]),
        (
            "int64",
            "timestamp[s]",
            [0, 60],
            [dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 1, 0, 1)],
            [],
        ),
        ("int64", "string", [1, -20], ["1", "-20"], []),
        ("double", "float", [0.5, 2.0**100], [0.5, 2.0**100], [0.1, 1e300]),
        ("double", "int64", [1.0, -4.0], [1, -4], [0.5, -0.0, float("nan"), 2.0**63]),
        ("double", "string", [0.1, 1e22], ["0.1", "1e+22"], []),
        (
            "timestamp[us]",
            "timestamp[ms]",
            [dt.datetime(2024, 1, 1)],
            [dt.datetime(2024, 1, 1)],
            [dt.datetime(2024, 1, 1, 0, 0, 0, 1)],
        ),
        (
            "timestamp[s]",
            "date32",
            [dt.datetime(2024, 1, 1)],
            [dt.date(2024, 1, 1)],
            [dt.datetime(2024, 1, 1, 1)],
        ),
        ("binary", "string", [b"ok", b"\xc3\xa9", None], ["ok", "é", None], [b"\xff"]),
        ("string", "large_binary", ["ok", "é"], [b"ok", b"\xc3\xa9"], []),
        ("list<int64>", "list<int8>", [[1], [], None], [[1], [], None], [[1, 128]]),
        (
            "list<int64>",
            "fixed_size_list<int8>[2]",
            [[1, 2], None],
            [[1, 2], None],
            [[1], [1, 2, 3]],
        ),
        ("fixed_size_list<int64>[2]", "large_list<string>", [[1, 2], None], [["1", "2"], None], []),
        (
            "list<list<string>>",
            "list<list<int8>>",
            [[["1"], []], None],
            [[[1], []], None],
            [[["x"]]],
        ),
        (
            "struct<a: int64, b: string>",
            "struct<a: int8, b: date32, c: float>",
            [{"a": 1, "b": "2024-01-01"}, None, {"a": None, "b": None}],
            [
                {"a": 1, "b": dt.date(2024, 1, 1), "c": None},
                None,
                {"a": None, "b": None, "c": None},
            ],
            [{"a": 300, "b": None}, {"a": 1, "b": "x"}],
        ),
        ("null", "struct<a: int8>", [None], [None], []),
    ],
)
def test_each_value_is_the_same_or_refused(kind, text, good, made, bad):
    mixed = [*bad[:1], *good, *bad[1:]]
    assert declared(mixed, parse_type(kind), text) == (made, bad)
    assert declared(good, parse_type(kind), text) == (made, [])


def test_nan_stays_nan_and_zero_keeps_its_sign():
    values, bad = declared([float("nan"), -0.0], pa.float64(), "float32")
    assert bad == [] and str(values) == "[nan, -0.0]"


def test_many_bad_values_are_all_found():
    values = [str(n) if n % 3 else f"bad {n}" for n in range(5000)]
    made, bad = declared(values, pa.string(), "int16")
    assert made == [n for n in range(5000) if n % 3]
    assert bad == [f"bad {n}" for n in range(0, 5000, 3)]


def test_a_refusal_keeps_the_original_and_names_the_first_column():
    batch = records(
        {"a": ["1", "x", "y"], "b": [b"1", b"\xff", b"2"]},
        [pa.field("a", pa.string()), pa.field("b", pa.binary())],
    )
    made, rejects = prepared(batch, types=(("b", "string"), ("a", "int8")))
    assert rejects == [
        (1, "'b' cannot become string without change", b"\xff"),
        (2, "'a' cannot become int8 without change", b"y"),
    ]
    assert made.to_pylist() == [{"__key__": "k0", "__subject__": None, "a": 1, "b": "1"}]


def test_media_are_declared_by_name():
    fields = [pa.field("photo", pa.binary()), pa.field("sound", pa.large_binary())]
    fields += [pa.field("note", pa.string()), pa.field("body", pa.binary())]
    batch = records({"photo": [b"p"], "sound": [b"s"], "note": ["n"], "body": [b"b"]}, fields)
    types = (("photo", "image"), ("sound", "audio"), ("note", "text"), ("body", "text"))
    made, _ = prepared(batch, types=types)
    assert [media_of(f) for f in made.schema][2:] == ["image", "audio", "text", "text"]
    assert made.schema.field("sound").type == pa.large_binary()
    assert made.to_pylist()[0]["body"] == "b"
    plain, _ = prepared(made, types=(("photo", "binary"), ("note", "large_string")))
    assert media_of(plain.schema.field("photo")) == "image"  # its type is as it was
    assert media_of(plain.schema.field("note")) is None


def test_declared_images_are_prepared_as_images():
    from pictures import corners, encoded, opened

    batch = records({"x": [encoded(corners(), "PNG")]}, [pa.field("x", pa.binary())])
    made, _ = prepared(batch, types=(("x", "image"),), max_side=6)
    assert opened(made.column("x")[0].as_py()).size == (6, 4)


def test_labels_stay_labels_in_a_smaller_type():
    batch = records({"label": [0, 1]}, [label_field("label")])
    made, _ = prepared(batch, types=(("label", "int16"),))
    assert is_label(made.schema.field("label")) and made.column("label").to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("types", "error", "message"),
    [
        ({"y": "int8"}, ConfigError, "declares 'y', which is no column.*There are x, s, t"),
        ({"__key__": "string"}, ConfigError, "no column"),
        ({"x": "int"}, ConfigError, "'int' is no type.*int32, string"),
        ({"x": "struct<a: int8>"}, SchemaError, "int64 cannot become struct"),
        ({"x": "list<int64>"}, SchemaError, "int64 cannot become list"),
        ({"s": "struct<b: int64>"}, SchemaError, "the declared struct lacks 'a'"),
        ({"x": "image"}, SchemaError, "int64 cannot become binary"),
        ({"w": "image"}, SchemaError, "string is no image: files of it are bytes"),
        ({"t": "timestamp[us, tz=Europe/Berlin]"}, SchemaError, "without a zone are of UTC"),
    ],
)
def test_what_can_never_be_is_said_before_anything_is_read(types, error, message):
    fields = [pa.field("x", pa.int64()), pa.field("s", pa.struct([("a", pa.int64())]))]
    fields += [pa.field("t", pa.timestamp("us")), pa.field("w", pa.string())]
    batch = records({"x": [1], "s": [{"a": 1}], "t": [None], "w": ["w"]}, fields)
    with pytest.raises(error, match=message):
        prepared_schema(batch.schema, steps_of(Preparing(types=tuple(types.items()))))


@pytest.mark.parametrize(
    "kind",
    [
        *(getattr(pa, name)() for name in "bool_ int8 uint64 float16 float32 float64".split()),
        *(getattr(pa, name)() for name in "string large_string binary large_binary".split()),
        *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("us"), pa.null()),
        *(pa.timestamp("ns"), pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ms", "+05:30")),
        *(pa.decimal128(38, 10), pa.decimal256(40, 0), pa.binary(16)),
        pa.list_(pa.large_list(pa.float32())),
        pa.list_(pa.list_(pa.int8(), 3), 4),
        pa.map_(pa.string(), pa.list_(pa.int64())),
        pa.struct([("a b", pa.int8()), ("ü", pa.struct([("c", pa.timestamp("us", "UTC"))]))]),
        pa.struct([]),
    ],
    ids=str,
)
def test_types_are_read_as_arrow_writes_them(kind):
    assert parse_type(str(kind)).equals(kind)


def test_types_are_read_as_people_write_them():
    assert parse_type(" list< int32 > ").equals(pa.list_(pa.int32()))
    assert parse_type("float").equals(pa.float32())
    assert parse_type("decimal(5)").equals(pa.decimal128(5, 0))
    assert parse_type("timestamp[us,UTC]").equals(pa.timestamp("us", "UTC"))
    assert parse_type("struct<a:int8,b:list<string>>").equals(
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int",
        "int32>",
        "list<",
        "list<int33>",
        "list",
        "struct<a>",
        "struct<a: int8, a: int8>",
        "timestamp",
        "timestamp[us, tz=Mars/X]",
        "decimal128(99, 1)",
        "decimal128",
        "time32[ns]",
        "duration[us, tz=UTC]",
        "fixed_size_list<int8>[-1]",
        "fixed_size_binary[99999999999]",
        "fixed_size_list<int8>",
        "list<" * 50 + "int8" + ">" * 50,
        "dictionary<int8, string>",
        "int32 int32",
    ],
)
def test_what_is_no_type_is_refused(text):
    with pytest.raises(ConfigError, match="is no type"):
        parse_type(text)
