"""How rows are cut into units, and what a tombstone is, in any format."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from records import assert_same, mixed, rows
from shard_suite import ShardSuite

from geodata.errors import SchemaError
from geodata.schema import KEY


class Units(ShardSuite):
    """Units and tombstones."""

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
