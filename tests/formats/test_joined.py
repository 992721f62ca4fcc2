"""A shard of several files reads as one that holds all columns."""

import pyarrow as pa
import pytest
from records import ODD_COLUMNS, assert_same, mixed

from geodata.errors import CorruptShard, SchemaError
from geodata.formats import FORMATS, MappedReader, get_format
from geodata.formats.joined import (
    as_written,
    beside,
    column_files,
    column_part,
    data_parts,
    held_schema,
    is_sidecar,
    open_shard,
)
from geodata.schema import KEY

ROWS = 60
OWN = ["caption", "tags", "image"]
"""Columns that lie in files of their own."""


def write(form, path, batch, slots=None):
    writer = form.create(path, batch.schema, unit_bytes=1_000, metadata={}, unit_slots=slots)
    writer.write(batch)
    writer.close()
    if form.index_suffix:
        form.write_index(path, path.with_name(path.name + ".index"))
    return path


@pytest.fixture(params=FORMATS)
def form(request):
    return get_format(request.param)


@pytest.fixture
def whole():
    return mixed(ROWS)


@pytest.fixture
def paths(form, whole, tmp_path):
    """The files of a shard by part: `score` is in the main file, and one more beside it."""
    rest = [name for name in whole.schema.names if name not in OWN]
    main = whole.select(rest)
    doubled = main.set_column(main.schema.get_field_index("score"), "score", pa.nulls(ROWS, "f8"))
    found = {"main": write(form, tmp_path / f"main{form.suffix}", doubled)}
    slots = form.open(found["main"]).unit_slots
    assert len(slots) > 2
    for name in [*OWN, "score"]:
        path = write(form, tmp_path / f"{name}{form.suffix}", whole.select([KEY, name]), slots)
        found[column_part(name)] = path
    if form.index_suffix:
        indexes = {
            beside(part, "index"): path.with_name(path.name + ".index")
            for part, path in found.items()
        }
        found |= indexes
    return found


def test_all_units_and_rows_are_those_of_one_file(form, whole, paths):
    reader = open_shard(form, paths, whole.schema)
    assert reader.schema.equals(whole.schema, check_metadata=True)
    assert held_schema(reader).equals(whole.schema)
    assert (reader.num_rows, sum(reader.unit_slots)) == (ROWS, ROWS)
    first = 0
    for unit, slots in enumerate(reader.unit_slots):
        assert_same(reader.read_unit(unit), whole.slice(first, slots))
        first += slots
    rows = [5, 0, 59, 5, 31]
    assert_same(reader.take(rows), whole.take(pa.array(rows)))
    picked = ["tags", KEY, "score"]
    names = [name for name in whole.schema.names if name in picked]
    assert_same(reader.take(rows, picked), whole.take(pa.array(rows)).select(names))
    with pytest.raises(SchemaError, match="no such column"):
        reader.read_unit(0, ["caption", "nothing"])
    with pytest.raises(IndexError):
        reader.take([ROWS], ["tags"])
    with pytest.raises(IndexError):
        reader.read_unit(-1, ["tags"])
    reader.close()


def test_a_file_without_a_wanted_column_is_not_touched(form, whole, paths):
    reader = open_shard(form, paths, whole.schema)
    main = reader.owners[KEY]
    main.close()
    assert_same(
        reader.read_unit(0, ["caption"]), whole.slice(0, reader.unit_slots[0]).select(["caption"])
    )
    with pytest.raises(ValueError, match="closed"):
        reader.read_unit(0, ["caption", "class"])


def test_where_bytes_lie_plain_is_told_by_all_files(form, whole, paths):
    joined = open_shard(form, paths, whole.schema)
    one = write(form, paths["main"].with_name(f"one{form.suffix}"), whole, joined.unit_slots)
    plain = form.open(one)
    assert isinstance(joined, MappedReader) == isinstance(plain, MappedReader)
    if not isinstance(plain, MappedReader):
        return
    names = whole.schema.names
    for unit in range(len(plain.unit_slots)):
        expected, found = plain.runs(unit, names), joined.runs(unit, names)
        assert found.keys() == expected.keys() and expected
        for name, runs in found.items():
            assert runs.gather().equals(expected[name].gather())


def test_a_column_that_no_file_holds_is_null(form, whole, paths):
    schema = whole.schema.append(pa.field("later", pa.list_(pa.int64())))
    reader = open_shard(form, paths, schema)
    assert held_schema(reader).names == whole.schema.names
    unit = reader.read_unit(1)
    assert unit.column("later").null_count == unit.num_rows == reader.unit_slots[1]
    assert reader.take([3, 3], ["later"]).column("later").to_pylist() == [None, None]
    plain = open_shard(form, {"main": paths["main"]}, schema)
    assert "caption" not in held_schema(plain).names
    assert plain.read_unit(0, ["caption"]).column("caption").null_count == plain.unit_slots[0]
    with pytest.raises(IndexError):
        plain.take([ROWS], ["later"])


def test_one_file_of_the_schema_is_its_own_reader(form, whole, tmp_path):
    path = write(form, tmp_path / f"x{form.suffix}", whole)
    reader = open_shard(form, {"main": path}, whole.schema)
    assert type(reader) is type(form.open(path))
    assert held_schema(reader).equals(whole.schema)


def test_files_that_do_not_belong_together_are_refused(form, whole, paths, tmp_path):
    other = write(form, tmp_path / f"other{form.suffix}", whole.select([KEY, "tags"]), [ROWS])
    with pytest.raises(CorruptShard, match="other units than its shard"):
        open_shard(form, {"main": paths["main"], column_part("tags"): other}, whole.schema)
    place = whole.schema.get_field_index("class")
    schema = whole.schema.set(place, pa.field("class", pa.string()))
    with pytest.raises(CorruptShard, match="is int64, not string") as caught:
        open_shard(form, paths, schema)
    assert caught.value.fields["column"] == "class"
    swapped = {"main": paths["main"], column_part("tags"): paths[column_part("caption")]}
    with pytest.raises(CorruptShard, match=r"file of a column lacks it.*column tags"):
        open_shard(form, swapped, whole.schema)


def test_files_have_names_for_columns_of_any_name():
    for name in ODD_COLUMNS:
        files = {"main": 1, "units": 2, column_part(name): 3, beside(column_part(name), "index"): 4}
        assert column_files(files) == {name: 3}
        assert data_parts(files) == ["main", column_part(name)]
        assert is_sidecar(beside(column_part(name), "units"))
        assert not is_sidecar(column_part(name))
    assert (beside("main", "index"), beside("main", "units")) == ("index", "units")
    parts = [column_part(name) for name in ODD_COLUMNS]
    everything = [*parts, *(beside(p, w) for p in parts for w in ("index", "units")), "main"]
    assert len(set(everything)) == len(everything)


WIDER = {
    "score": pa.float64(),
    "never": pa.string(),
    "nothing": pa.list_(pa.struct([("a", pa.int8())])),
    "caption": pa.large_string(),
}
"""Columns as the dataset has them since records were appended."""


@pytest.fixture
def narrow(form, tmp_path):
    """A shard in types that the dataset had once: `caption` lies in a file of its own."""
    batch = mixed(ROWS).select([KEY, "class", "caption", "score"])
    score = batch.column("score").cast(pa.float32(), safe=False)
    batch = batch.set_column(batch.schema.get_field_index("score"), "score", score)
    for name, kind in [("never", pa.null()), ("nothing", pa.list_(pa.null()))]:
        batch = batch.append_column(name, pa.nulls(ROWS, kind))
    main = batch.drop_columns(["caption"])
    paths = {"main": write(form, tmp_path / f"main{form.suffix}", main)}
    slots = form.open(paths["main"]).unit_slots
    own = tmp_path / f"caption{form.suffix}"
    paths[column_part("caption")] = write(form, own, batch.select([KEY, "caption"]), slots)
    if form.index_suffix:
        for part, path in list(paths.items()):
            paths[beside(part, "index")] = path.with_name(path.name + ".index")
    return batch, paths


def test_columns_are_read_as_the_dataset_has_them_now(form, narrow):
    batch, paths = narrow
    wide = pa.schema([f.with_type(WIDER.get(f.name, f.type)) for f in batch.schema])
    arrays = [array.cast(field.type) for array, field in zip(batch.columns, wide, strict=True)]
    expected = pa.RecordBatch.from_arrays(arrays, schema=wide)
    reader = open_shard(form, paths, wide)
    slots = reader.unit_slots
    assert held_schema(reader).equals(wide) and len(slots) > 1
    assert_same(reader.read_unit(1), expected.slice(slots[0], slots[1]))
    assert_same(reader.take([7, 3]), expected.take(pa.array([7, 3])))
    names = ["score", "never"]
    assert_same(reader.read_unit(0, names), expected.slice(0, slots[0]).select(names))
    if isinstance(reader, MappedReader):
        assert not WIDER.keys() & reader.runs(0, wide.names).keys()
    written = as_written(reader)
    assert_same(written.read_unit(0), batch.slice(0, slots[0]))
    assert written.schema.equals(batch.schema)
    reader.close()
    shut = wide.set(wide.get_field_index("score"), pa.field("score", pa.int64()))
    with pytest.raises(CorruptShard, match="is float, not int64.*column score"):
        open_shard(form, paths, shut)
