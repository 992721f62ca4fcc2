"""How a shard of any format is read: by unit and by row, from any process."""

import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from records import assert_same, digest, mixed
from shard_suite import ShardSuite

from geodata.errors import SchemaError
from geodata.formats import MappedReader, get_format
from geodata.formats.slices import merged
from geodata.schema import KEY, SUBJECT


def read_elsewhere(name, path, index):
    """Return the digest of a whole shard: runs in another process."""
    reader = get_format(name).open(Path(path), index and Path(index))
    return digest(*(reader.read_unit(unit) for unit in range(len(reader.unit_slots))))


class Reading(ShardSuite):
    """Reads, and where they end."""

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
