"""What of a shard of any format is refused, and how its size and its index are told."""

import os
import sys

import pyarrow as pa
import pytest
from records import assert_same, mixed, rows
from shard_suite import ShardSuite

from geodata.canonical import row_nbytes
from geodata.errors import CorruptShard, FormatVersionError, ObjectNotFound, SchemaError


class Refusals(ShardSuite):
    """Damage and lies."""

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
            for name in [name for name in sys.modules if name.startswith("geodata.formats")]:
                patch.setattr(sys.modules[name], "FORMAT_VERSION", 7, raising=False)
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
