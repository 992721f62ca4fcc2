"""How the suites of the conformance write and read shards of a format."""

import pyarrow as pa
import pytest

from geodata.formats import FORMAT_VERSION, Format, ShardReader, ShardWriter, get_format


class ShardSuite:
    """Tests of one format: a subclass names it, and whether to read through the index."""

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
