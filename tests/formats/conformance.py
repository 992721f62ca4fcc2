"""What every shard format must do. Subclass `Conformance` for each format; see test_parquet.py."""

import multiprocessing
import os
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from records import JPG, ODD_COLUMNS, ODD_KEYS, PNG, assert_same, digest, mixed, rows
from typematrix import COLUMNS

from geodata.canonical import row_nbytes
from geodata.errors import CorruptShard, FormatVersionError, ObjectNotFound, SchemaError
from geodata.formats import (
    FORMAT_VERSION,
    Format,
    MappedReader,
    ShardReader,
    ShardWriter,
    base,
    get_format,
)
from geodata.formats.slices import merged
from geodata.schema import KEY, SUBJECT, dataset_schema, media_field, tensor_field


def read_elsewhere(name, path, index):
    """Return the digest of a whole shard: runs in another process."""
    reader = get_format(name).open(Path(path), index and Path(index))
    return digest(*(reader.read_unit(unit) for unit in range(len(reader.unit_slots))))


class Conformance:
    """The suite. A subclass names the format, and whether to read through the index."""

    name: str
    indexed = True
    version = FORMAT_VERSION

    @pytest.fixture
    def form(self) -> Format:
        return get_format(self.name)

    @pytest.fixture
    def path(self, tmp_path, form):
        return tmp_path / f"shard-0{form.suffix}"

    def write(self, form, path, *batches, schema=None, unit_bytes=1 << 20, metadata=(), **more):
        schema = schema or batches[0].schema
        writer = form.create(path, schema, unit_bytes=unit_bytes, metadata=dict(metadata), **more)
        assert isinstance(writer, ShardWriter)
        for batch in batches:
            writer.write(batch)
        writer.close()
        assert writer.nbytes == path.stat().st_size
        return path

    def index(self, form, path):
        """Return the index of a shard, written now, or None."""
        if form.index_suffix is None or not self.indexed:
            return None
        index = path.with_name(path.name + form.index_suffix)
        form.write_index(path, index)
        return index

    def open(self, form, path) -> ShardReader:
        reader = form.open(path, self.index(form, path))
        assert isinstance(reader, ShardReader)
        return reader

    def read(self, form, path, columns=None):
        reader = self.open(form, path)
        return [reader.read_unit(unit, columns) for unit in range(len(reader.unit_slots))]

    def round_trip(self, form, path, batch):
        self.write(form, path, batch)
        return pa.Table.from_batches(self.read(form, path)).combine_chunks().to_batches()[0]

    # values

    @pytest.mark.parametrize("kind", COLUMNS)
    def test_every_type_comes_back(self, form, path, kind):
        batch = rows(COLUMNS[kind])
        assert_same(self.round_trip(form, path, batch), batch)

    @pytest.mark.parametrize("kind", COLUMNS)
    def test_every_type_comes_back_from_slices_and_as_a_list(self, form, path, kind):
        array = COLUMNS[kind]
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        offsets = pa.array([0, None, 1, len(array)], pa.int32())
        batch = rows(pa.ListArray.from_arrays(offsets, array))
        assert_same(self.round_trip(form, path, batch.slice(1)), batch.slice(1))

    @pytest.mark.parametrize("kind", COLUMNS)
    def test_every_type_has_tombstones(self, form, path, kind):
        array = COLUMNS[kind]
        batch = rows(pa.concat_arrays([pa.nulls(1, array.type), array, pa.nulls(1, array.type)]))
        keys = [None, *batch.column(KEY).to_pylist()[1:-1], None]
        batch = batch.set_column(0, batch.schema.field(0), pa.array(keys))
        assert_same(self.round_trip(form, path, batch), batch)

    @pytest.mark.parametrize("kind", ["image", "audio"])
    @pytest.mark.parametrize("stored", [pa.binary(), pa.large_binary()], ids=str)
    def test_media_of_any_bytes_come_back(self, form, path, kind, stored):
        values = [
            PNG,
            JPG,
            b"",
            None,
            b"RIFF\0\0\0\0WEBP",
            b"RIFF\0\0\0\0WAVE",
            b"BM",
            b"\0",
            b"ID3",
        ]
        batch = rows(pa.array(values, stored), metadata={"geodata.media": kind})
        assert_same(self.round_trip(form, path, batch), batch)

    def test_text_comes_back(self, form, path):
        batch = rows(COLUMNS["string"], metadata={"geodata.media": "text"})
        assert_same(self.round_trip(form, path, batch), batch)

    @pytest.mark.parametrize("kind", ["int64", "int8", "uint64"])
    def test_labels_come_back(self, form, path, kind):
        batch = rows(COLUMNS[kind], metadata={"geodata.label": "1"})
        assert_same(self.round_trip(form, path, batch), batch)

    @pytest.mark.parametrize(
        "value_type",
        [pa.uint8(), pa.int64(), pa.float16(), pa.float64(), pa.bool_(), pa.string()],
        ids=str,
    )
    def test_tensors_of_varying_shape_come_back(self, form, path, value_type):
        field = tensor_field("value", value_type)
        one = [[1, 0, 1, 1, 0, 1], [1], [], [0] * 300]
        data = [pa.array(values).cast(value_type).to_pylist() for values in one]
        shapes = [[2, 3], [], [0, 4], [300, 1]]
        values = [{"data": d, "shape": s} for d, s in zip(data, shapes, strict=True)]
        array = pa.array([values[0], None, *values[1:]], field.type)
        batch = rows(array, metadata=field.metadata)
        assert_same(self.round_trip(form, path, batch), batch)
        assert_same(self.round_trip(form, path, batch.slice(1, 3)), batch.slice(1, 3))

    def test_null_empty_and_absent_stay_apart(self, form, path):
        batch = rows(pa.array([None, "", "\0", "null"]))
        found = self.round_trip(form, path, batch)
        assert found.column("value").to_pylist() == [None, "", "\0", "null"]

    def test_several_columns_of_each_kind_come_back(self, form, path):
        one = mixed(40)
        twice = [
            (f.with_name(f"{f.name}2"), c)
            for f, c in zip(one.schema, one.columns, strict=True)
            if "_" not in f.name
        ]
        schema = pa.schema([*one.schema, *(field for field, _ in twice)])
        arrays = [*one.columns, *(column for _, column in twice)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assert_same(self.round_trip(form, path, batch), batch)

    @pytest.mark.parametrize(
        "array",
        [pa.array([1, None]), pa.array([b"x", None]), COLUMNS["struct<a: int8, b: string>"]],
        ids=lambda a: str(a.type),
    )
    def test_odd_column_names_come_back(self, form, path, array):
        keys = pa.array([f"k{i}" for i in range(len(array))])
        columns = [
            pa.field(name, array.type, metadata={"geodata.media": "image"}) for name in ODD_COLUMNS
        ]
        schema = dataset_schema(pa.schema(columns))
        arrays = [keys, pa.nulls(len(array), pa.string()), *[array] * len(columns)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assert_same(self.round_trip(form, path, batch), batch)
        reader = self.open(form, path)
        for name in ODD_COLUMNS:
            assert_same(reader.read_unit(0, [name]), batch.select([name]))

    def test_odd_keys_come_back(self, form, path):
        schema = dataset_schema(pa.schema([media_field("image", "image")]))
        arrays = [
            pa.array(ODD_KEYS),
            pa.nulls(len(ODD_KEYS), pa.string()),
            pa.array([key.encode() for key in ODD_KEYS]),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        assert_same(self.round_trip(form, path, batch), batch)

    def test_metadata_and_schema_come_back(self, form, path):
        batch = mixed(3)
        batch = batch.replace_schema_metadata({"who": "é"})
        given = {"geodata.tag": '{"region":"eu"}', "note": "é \0 x", "empty": ""}
        reader = self.open(form, self.write(form, path, batch, metadata=given))
        assert reader.metadata == {**given, "geodata.format_version": str(self.version)}
        assert reader.schema.equals(batch.schema, check_metadata=True)

    @pytest.mark.parametrize(
        "kind",
        [
            pa.dense_union([pa.field("a", pa.int8())]),
            pa.run_end_encoded(pa.int32(), pa.int8()),
            pa.list_(pa.dictionary(pa.int8(), pa.string())),
        ],
        ids=str,
    )
    def test_unions_and_what_is_still_encoded_are_refused(self, form, path, kind):
        schema = pa.schema([pa.field(KEY, pa.string()), pa.field("value", kind)])
        with pytest.raises(SchemaError, match="cannot be stored") as caught:
            form.create(path, schema, unit_bytes=100, metadata={})
        assert caught.value.fields == {"column": "value"}
        assert not path.exists()

    def test_a_batch_with_another_schema_is_refused(self, form, path):
        writer = form.create(path, rows(pa.array([1])).schema, unit_bytes=100, metadata={})
        with pytest.raises(SchemaError, match="another schema"):
            writer.write(rows(pa.array(["x"])))

    # tombstones and units

    def test_a_tombstone_keeps_its_slot(self, form, path):
        batch = mixed(60, seed=3)
        dead = batch.column(KEY).is_null()
        assert dead.true_count > 0
        found = self.round_trip(form, path, batch)
        assert found.column(KEY).is_null().equals(dead)
        assert_same(found, batch)

    def test_a_tombstone_with_values_is_refused(self, form, path):
        batch = rows(pa.array([1, 2]))
        batch = batch.set_column(0, batch.schema.field(0), pa.array(["k", None]))
        writer = form.create(path, batch.schema, unit_bytes=100, metadata={})
        with pytest.raises(SchemaError, match="null throughout") as caught:
            writer.write(batch)
        assert caught.value.fields == {"column": "value"}

    def test_all_tombstones(self, form, path):
        schema = mixed(1).schema
        batch = pa.RecordBatch.from_arrays([pa.nulls(5, f.type) for f in schema], schema=schema)
        assert_same(self.round_trip(form, path, batch), batch)

    def test_units_close_before_they_grow_over_their_bytes(self, form, path):
        batch = mixed(300)
        sizes = form.row_nbytes(batch)
        reader = self.open(form, self.write(form, path, batch, unit_bytes=20_000))
        ends = np.cumsum(reader.unit_slots)
        assert ends[-1] == reader.num_rows == 300
        assert len(ends) >= 3
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            assert sizes[start:stop].sum() <= 20_000
            assert stop == 300 or sizes[start : stop + 1].sum() > 20_000

    @pytest.mark.parametrize("cuts", [[], [1], [150], [7, 7, 150, 299], list(range(300))], ids=len)
    def test_batching_changes_nothing(self, form, path, cuts):
        batch = mixed(300)
        bounds = [0, *cuts, 300]
        parts = [batch.slice(a, b - a) for a, b in pairwise(bounds)]
        self.write(form, path, *parts, unit_bytes=20_000)
        whole = self.write(form, path.with_name("whole"), batch, unit_bytes=20_000)
        assert path.read_bytes() == whole.read_bytes()

    def test_bytes_under_nulls_and_offsets_change_nothing(self, form, path):
        offsets = pa.array([0, 3, 6, 9], pa.int32()).buffers()[1]
        validity = pa.py_buffer(bytes([0b101]))
        hidden = pa.Array.from_buffers(
            pa.string(), 3, [validity, offsets, pa.py_buffer(b"abcdefghi")]
        )
        self.write(form, path, rows(hidden))
        clean = self.write(form, path.with_name("clean"), rows(pa.array(["abc", None, "ghi"])))
        assert path.read_bytes() == clean.read_bytes()

    def test_a_row_over_the_unit_is_a_unit_of_its_own(self, form, path):
        batch = rows(pa.array([b"a", b"x" * 50_000, b"b", b"c"]))
        reader = self.open(form, self.write(form, path, batch, unit_bytes=10_000))
        assert list(reader.unit_slots) == [1, 1, 2]
        assert reader.read_unit(1).column("value").to_pylist() == [b"x" * 50_000]

    def test_an_erasure_keeps_the_units(self, form, path):
        batch = mixed(300)
        before = self.open(form, self.write(form, path, batch, unit_bytes=20_000))
        kept = pa.array([i % 3 != 0 for i in range(300)])
        arrays = [pa.compute.if_else(kept, column, None) for column in batch.columns]
        erased = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        other = path.with_name(f"erased{form.suffix}")
        self.write(form, other, erased, unit_bytes=20_000, unit_slots=before.unit_slots)
        after = self.open(form, other)
        assert list(after.unit_slots) == list(before.unit_slots)
        assert_same(after.take(range(300)), erased)

    @pytest.mark.parametrize("slots", [[3, 3], [3], [3, 1], []], ids=str)
    def test_units_of_given_sizes_must_fit_the_rows(self, form, path, slots):
        with pytest.raises(SchemaError, match="rows than its units"):
            self.write(form, path, rows(pa.array(range(5))), unit_slots=slots)

    def test_an_empty_shard(self, form, path):
        schema = mixed(1).schema
        self.write(form, path, schema=schema)
        reader = self.open(form, path)
        assert (reader.num_rows, list(reader.unit_slots)) == (0, [])
        assert_same(reader.take([]), mixed(1).slice(0, 0))
        assert form.units(path) == []

    def test_empty_batches_change_nothing(self, form, path):
        batch = mixed(20)
        self.write(form, path, batch.slice(0, 0), batch, batch.slice(0, 0))
        whole = self.write(form, path.with_name("whole"), batch)
        assert path.read_bytes() == whole.read_bytes()

    def test_units_lie_in_the_file_one_after_another(self, form, path):
        self.write(form, path, mixed(300), unit_bytes=20_000)
        ranges = form.units(path, self.index(form, path))
        assert [unit.slots for unit in ranges] == list(self.open(form, path).unit_slots)
        assert ranges[0].offset >= 0
        for one, following in pairwise(ranges):
            assert one.offset + one.length <= following.offset
        assert ranges[-1].offset + ranges[-1].length <= path.stat().st_size

    def test_row_bytes_follow_from_the_row_alone(self, form):
        batch = mixed(50)
        whole = form.row_nbytes(batch)
        assert whole.dtype == np.int64
        assert list(whole) == [form.row_nbytes(batch.slice(i, 1))[0] for i in range(50)]

    # reading

    @pytest.fixture
    def shard(self, form, path):
        """Return a reader of a shard of several units, and its records."""
        batch = mixed(300)
        return self.open(form, self.write(form, path, batch, unit_bytes=20_000)), batch

    def test_units_are_the_rows_in_order(self, shard):
        reader, batch = shard
        start = 0
        for unit, slots in enumerate(reader.unit_slots):
            assert_same(reader.read_unit(unit), batch.slice(start, slots))
            start += slots

    def test_what_lies_plain_in_the_file_is_what_is_decoded(self, shard):
        reader, _batch = shard
        if not isinstance(reader, MappedReader):
            pytest.skip("nothing lies plain")
        for unit, slots in enumerate(reader.unit_slots):
            whole, places = reader.read_unit(unit), np.arange(slots)
            runs = reader.runs(unit, reader.schema.names)
            assert "image" in runs
            for name, found in runs.items():
                column = whole.column(name)
                assert merged([(found, places)], slots, column.type).equals(column)
        assert reader.runs(0, ["score"]) == {}
        with pytest.raises(IndexError):
            reader.runs(len(reader.unit_slots), ["image"])
        reader.close()
        with pytest.raises(ValueError, match="closed"):
            reader.runs(0, ["image"])

    @pytest.mark.parametrize(
        "columns",
        [["score"], ["class", "image"], [KEY], [SUBJECT, KEY], ["image", "image"]],
        ids=str,
    )
    def test_columns_come_in_schema_order(self, shard, columns):
        reader, batch = shard
        expected = batch.select([name for name in batch.schema.names if name in columns])
        slots = reader.unit_slots[1]
        found = reader.read_unit(1, columns)
        assert_same(found, expected.slice(reader.unit_slots[0], slots))
        assert_same(reader.take([299, 0], columns), expected.take([299, 0]))

    @pytest.mark.parametrize("columns", [["nothing"], []], ids=str)
    def test_unknown_and_no_columns_are_refused(self, shard, columns):
        reader, _ = shard
        with pytest.raises(SchemaError):
            reader.read_unit(0, columns)
        with pytest.raises(SchemaError):
            reader.take([0], columns)

    def test_rows_are_taken_in_any_order_with_repeats(self, shard):
        reader, batch = shard
        wanted = np.random.default_rng(1).integers(0, 300, 200)
        for numbers in (
            wanted,
            np.sort(wanted),
            [5],
            [7, 7, 7],
            range(300),
            range(299, -1, -1),
            [],
        ):
            assert_same(reader.take(numbers), batch.take(pa.array(list(numbers), pa.int64())))

    @pytest.mark.parametrize("row", [-1, 300])
    def test_no_row_is_read_past_the_end(self, shard, row):
        reader, _ = shard
        with pytest.raises(IndexError):
            reader.take([0, row])

    @pytest.mark.parametrize("unit", [-1, 1000])
    def test_no_unit_is_read_past_the_end(self, shard, unit):
        reader, _ = shard
        with pytest.raises(IndexError):
            reader.read_unit(unit)

    def test_a_closed_reader_reads_no_more(self, shard):
        reader, batch = shard
        kept = reader.read_unit(0)
        reader.close()
        with pytest.raises(ValueError, match="closed"):
            reader.read_unit(0)
        with pytest.raises(ValueError, match="closed"):
            reader.take([0])
        assert_same(kept, batch.slice(0, kept.num_rows))

    def test_a_forked_process_reads_what_its_parent_opened(self, shard):
        reader, batch = shard
        reader.read_unit(0)
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=lambda: theirs.send(digest(reader.take(range(300)))))
        child.start()
        assert mine.poll(60)
        assert mine.recv() == digest(batch) == digest(reader.take(range(300)))
        child.join(60)
        assert child.exitcode == 0

    def test_a_spawned_process_reads_the_path(self, form, path):
        batch = mixed(50)
        self.write(form, path, batch)
        index = self.index(form, path)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            arguments = (self.name, str(path), index and str(index))
            assert pool.apply(read_elsewhere, arguments) == digest(batch)
            pool.close()
            pool.join()

    # what is broken is refused

    @pytest.mark.parametrize("data", [b"", b"x", b"garbage " * 1000, bytes(4096)], ids=len)
    def test_garbage_is_refused(self, form, path, data):
        path.write_bytes(data)
        for attempt in (form.open, form.units):
            with pytest.raises(CorruptShard) as caught:
                attempt(path)
            assert caught.value.fields["shard"] == path.name

    @pytest.mark.parametrize("left", [0, 100, 0.3, 0.5, 0.9, -1024, -513, -512, -1], ids=str)
    def test_a_truncated_shard_is_refused(self, form, path, left):
        index = self.index(form, self.write(form, path, mixed(300), unit_bytes=20_000))
        size = path.stat().st_size
        os.truncate(path, int(left * size) if isinstance(left, float) else left % size)
        with pytest.raises(CorruptShard) as caught:
            form.open(path, index)
        assert caught.value.fields["shard"] == path.name

    def test_trailing_bytes_are_refused(self, form, path):
        index = self.index(form, self.write(form, path, mixed(10)))
        with path.open("ab") as file:
            file.write(bytes(512))
        with pytest.raises(CorruptShard):
            form.open(path, index)

    def test_a_newer_version_is_refused(self, form, path, monkeypatch):
        with monkeypatch.context() as patch:
            for module in (base, sys.modules[type(form).__module__]):
                patch.setattr(module, "FORMAT_VERSION", 7, raising=False)
            self.write(form, path, mixed(3))
        with pytest.raises(FormatVersionError, match="version 7") as caught:
            form.open(path)
        assert caught.value.fields == {"shard": path.name}

    def test_a_missing_shard_is_named(self, form, path):
        for attempt in (form.open, form.units):
            with pytest.raises(ObjectNotFound) as caught:
                attempt(path)
            assert caught.value.fields == {"shard": path.name}

    def test_a_repeated_key_is_never_read_twice(self, form, path):
        batch = rows(pa.array([1, 2]))
        batch = batch.set_column(0, batch.schema.field(0), pa.array(["same", "same"]))
        try:
            found = self.round_trip(form, path, batch)
        except SchemaError as error:
            assert error.fields == {"key": "same"}
        else:
            assert_same(found, batch)

    def test_the_index_follows_from_the_shard(self, form, path):
        self.write(form, path, mixed(300), unit_bytes=20_000)
        if form.index_suffix is None:
            with pytest.raises(ValueError, match="no index"):
                form.write_index(path, path.with_name("index"))
            return
        first, second = path.with_name("first"), path.with_name("second")
        form.write_index(path, first)
        form.write_index(path, second)
        assert first.read_bytes() == second.read_bytes()
        assert form.units(path, first) == form.units(path)

    def test_rows_take_about_as_much_as_they_say(self, form, path):
        batch = mixed(300, value_bytes=3000)
        self.write(form, path, batch)
        said = int(form.row_nbytes(batch).sum())
        assert 0.5 * row_nbytes(batch).sum() < said
        assert path.stat().st_size < said * 1.2 + 20_000
