"""Parquet in folders whose names are columns: `country=DE/year=2024/part.parquet`."""

import datetime as dt

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from source_reading import read_all

from geodata.errors import SchemaError
from geodata.sources import open_source
from geodata.sources.tables.partitions import NONE, Partitions, partitions_of


def _write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def _read(tmp_path, **options):
    return read_all(open_source(tmp_path, source_id="s"), **options)


def test_the_names_of_folders_are_columns(tmp_path):
    table = pa.table(
        {"v": [1, 2, 3, 4], "country": ["DE", "FR", None, "DE"], "year": [2023, 2024, 2024, 2024]}
    )
    parts = ds.partitioning(
        pa.schema([("country", pa.string()), ("year", pa.int32())]), flavor="hive"
    )
    ds.write_dataset(table, tmp_path, format="parquet", partitioning=parts)
    read = _read(tmp_path)
    assert read.schema == pa.schema(
        [("v", pa.int64()), ("country", pa.string()), ("year", pa.int64())]
    )
    assert sorted(read.records.values(), key=lambda record: record["v"]) == table.to_pylist()


@pytest.mark.parametrize(
    ("folders", "kind", "values"),
    [
        (["k=1", "k=-2"], pa.int64(), [-2, 1]),
        (["k=01", "k=2"], pa.string(), ["01", "2"]),
        (["k=1", "k=__HIVE_DEFAULT_PARTITION__"], pa.int64(), [1, None]),
        (["k=18446744073709551615"], pa.string(), ["18446744073709551615"]),
        (["k=1", "k=0.5"], pa.string(), ["0.5", "1"]),
        (["k=true"], pa.string(), ["true"]),
        (["k=a%2Fb%3Dc%20%C3%A9"], pa.string(), ["a/b=c é"]),
        (["k=%FF"], pa.string(), ["%FF"]),
        (["k="], pa.string(), [""]),
        (["top/k=x=y/below"], pa.string(), ["x=y"]),
        (["%6B=1"], pa.int64(), [1]),
    ],
)
def test_the_values_have_the_type_that_all_spell(tmp_path, folders, kind, values):
    for folder in folders:
        _write(tmp_path / folder / "a.parquet", {"v": [0]})
    read = _read(tmp_path)
    assert read.schema.field("k").type == kind
    assert read.column("k") == values


@pytest.mark.parametrize(
    "names",
    [
        ["a=1/x", "x"],
        ["a=1/x", "b=1/x"],
        ["a=1/b=1/x", "b=1/a=1/x"],
        ["a=1/a=2/x"],
        ["=1/x"],
        ["a=1"],
        [],
    ],
)
def test_folders_that_do_not_agree_name_no_column(names):
    assert partitions_of(iter(names)) == NONE
    assert NONE.of("a=1/x") == {}


def test_values_of_one_file():
    parts = partitions_of(iter(["a=1/b=x/f", "a=2/b=__HIVE_DEFAULT_PARTITION__/f"]))
    assert parts == Partitions({"a": pa.int64(), "b": pa.string()})
    assert parts.of("a=2/b=__HIVE_DEFAULT_PARTITION__/f") == {
        "a": pa.scalar(2),
        "b": pa.scalar(None, pa.string()),
    }


@pytest.mark.parametrize(
    ("folder", "values"),
    [
        ("2024", pa.array([2024, 2024], pa.int16())),
        ("2024", pa.array(["2024", "2024"])),
        ("2024", pa.array(["2024", "2024"]).dictionary_encode()),
        ("2024-02-29", pa.array([dt.date(2024, 2, 29)] * 2)),
        ("0.5", pa.array([0.5, 0.5])),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.int8())),
    ],
)
def test_a_column_that_says_the_same_stands(tmp_path, folder, values):
    _write(tmp_path / f"k={folder}" / "a.parquet", {"k": values})
    read = _read(tmp_path)
    assert read.column("k") == values.to_pylist()
    assert read.rejects == []


@pytest.mark.parametrize(
    "values", [[2024, 2023], [2024, None], ["2024", "x"], [dt.date(2024, 1, 1)] * 2]
)
def test_a_column_that_differs_is_refused(tmp_path, values):
    _write(tmp_path / "k=2024" / "a.parquet", {"k": values})
    row = 1 if isinstance(values[1], dt.date) else 2
    with pytest.raises(SchemaError) as caught:
        _read(tmp_path)
    assert caught.value.message == "the column differs from the name of the file's folder"
    assert caught.value.fields == {"column": "k", "file": "k=2024/a.parquet", "row": row}
    read = _read(tmp_path, first_wins=True)
    assert read.reasons()[-1] == (2, "'k' differs from the name of the file's folder")
    assert len(read.rejects) == 3 - row


def test_a_column_may_stand_in_some_files_only(tmp_path):
    _write(tmp_path / "k=1" / "a.parquet", {"k": pa.array([1], pa.int8()), "v": [0]})
    _write(tmp_path / "k=2" / "a.parquet", {"v": [0]})
    read = _read(tmp_path)
    assert read.schema == pa.schema([("k", pa.int64()), ("v", pa.int64())])
    assert read.column("k") == [1, 2]


def test_a_column_and_folders_of_other_types_conflict(tmp_path):
    _write(tmp_path / "k=2024-02-29" / "a.parquet", {"k": [dt.date(2024, 2, 29)], "v": [0]})
    _write(tmp_path / "k=2024-03-01" / "a.parquet", {"v": [0]})
    with pytest.raises(SchemaError, match=r"date32.* and string .*column k"):
        _read(tmp_path)


def test_a_reserved_name_is_refused(tmp_path):
    _write(tmp_path / "__key__x=1" / "__b__=2" / "a.parquet", {"v": [0]})
    with pytest.raises(SchemaError, match="double underscores are reserved.*column __b__"):
        _read(tmp_path)
