"""What must come back from a shard of any format."""

import pyarrow as pa
import pytest
from records import JPG, ODD_COLUMNS, ODD_KEYS, PNG, assert_same, mixed, rows
from shard_suite import ShardSuite
from typematrix import COLUMNS

from geodata.errors import SchemaError
from geodata.schema import KEY, dataset_schema, media_field, tensor_field


class Values(ShardSuite):
    """Values, keys and schemas."""

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
