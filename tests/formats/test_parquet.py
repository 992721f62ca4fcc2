"""The conformance of Parquet shards, and what stock readers see in them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance import Conformance
from records import mixed, rows, shown
from typematrix import COLUMNS

from geodata.errors import CorruptShard, SchemaError
from geodata.formats import get_format
from geodata.schema import KEY

NATURAL = [
    "bool", "int8", "uint64", "halffloat", "float", "double", "decimal128(38, 2)", "date32[day]",
    "timestamp[us, tz=Europe/Berlin]", "timestamp[ns]", "time64[us]", "duration[ms]", "string",
    "binary", "list<item: list<item: int32>>", "struct<a: int8, b: string>",
    "map<string, int32>", "fixed_size_binary[3]",
]  # fmt: skip


class TestParquet(Conformance):
    name = "parquet"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard.parquet"


def write(path, batch, unit_bytes=1 << 20):
    writer = get_format("parquet").create(path, batch.schema, unit_bytes=unit_bytes, metadata={})
    writer.write(batch)
    writer.close()


@pytest.mark.parametrize("kind", NATURAL)
def test_stock_pyarrow_reads_plain_types_as_they_are(path, kind):
    batch = rows(COLUMNS[kind])
    write(path, batch)
    found = pq.read_table(path)
    assert found.column_names == batch.schema.names
    assert found.schema.field("value").type == batch.schema.field("value").type
    assert shown(found["value"].combine_chunks()) == shown(batch["value"])
    assert found[KEY].to_pylist() == batch[KEY].to_pylist()


def test_stock_pyarrow_reads_seconds_as_milliseconds(path):
    write(path, rows(pa.array([5, None], pa.timestamp("s", "UTC"))))
    found = pq.read_table(path)["value"]
    assert found.type == pa.timestamp("ms", "UTC")
    assert found.cast(pa.int64()).to_pylist() == [5000, None]


def columns_of(path):
    footer = pq.read_metadata(path).row_group(0)
    return {c.path_in_schema: c for c in map(footer.column, range(footer.num_columns))}


def test_media_and_the_numbers_beside_them_lie_plain(path):
    batch = mixed(50)
    write(path, batch)
    columns = columns_of(path)
    assert columns["image"].statistics is None
    assert columns[KEY].statistics.has_min_max
    assert columns["score"].statistics.has_min_max
    numbers = {field.name for field in batch.schema if pa.types.is_primitive(field.type)}
    plain = {name for name, c in columns.items() if c.compression == "UNCOMPRESSED"}
    assert plain == numbers | {"image"}
    assert {c.compression for name, c in columns.items() if name not in plain} == {"ZSTD"}
    assert not any(c.has_dictionary_page for c in columns.values())


def test_without_media_all_is_compressed(path):
    batch = mixed(50)
    write(path, batch.drop_columns(["image"]))
    columns = columns_of(path)
    assert {c.compression for c in columns.values()} == {"ZSTD"}
    assert not any(c.has_dictionary_page for c in columns.values())


def test_a_second_beyond_milliseconds_is_refused(path):
    with pytest.raises(SchemaError, match="out of range") as caught:
        write(path, rows(pa.array([2**62], pa.timestamp("s"))))
    assert caught.value.fields == {"column": "value"}


def test_a_foreign_parquet_file_is_no_shard(path):
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(CorruptShard, match="no shard"):
        get_format("parquet").open(path)


def test_a_damaged_row_group_is_named(path):
    write(path, mixed(300), unit_bytes=20_000)
    form = get_format("parquet")
    unit = form.units(path)[1]
    reader = form.open(path)
    with path.open("r+b") as file:
        file.seek(unit.offset)
        file.write(bytes(unit.length))
    assert reader.read_unit(0).num_rows == reader.unit_slots[0]
    with pytest.raises(CorruptShard) as caught:
        reader.read_unit(1)
    assert caught.value.fields == {"shard": path.name, "unit": 1}


def test_a_range_of_bytes_is_a_row_group(path):
    """Footer and unit alone, the rest of the file zero, are enough to read the unit."""
    batch = mixed(300)
    write(path, batch, unit_bytes=20_000)
    form = get_format("parquet")
    ranges, data = form.units(path), path.read_bytes()
    end = ranges[-1].offset + ranges[-1].length
    only = data[ranges[1].offset : ranges[1].offset + ranges[1].length]
    hollow = bytes(ranges[1].offset) + only
    path.write_bytes(hollow + bytes(end - len(hollow)) + data[end:])
    found = pq.ParquetFile(path).read_row_group(1)
    start = ranges[0].slots
    assert found[KEY].to_pylist() == batch[KEY].to_pylist()[start : start + ranges[1].slots]
