"""The reader gives what decoding unit by unit gives, however the rows are asked for."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geodata import reader as reading
from geodata.cache.nvme import NvmeCache
from geodata.cache.tiers import TieredCache
from geodata.catalog import Catalog, locate
from geodata.config import load_config
from geodata.errors import CorruptShard
from geodata.formats import FORMATS, get_format
from geodata.partition import ShardCutter
from geodata.reader import Reader
from geodata.schema import (
    KEY,
    dataset_schema,
    label_field,
    media_field,
    tensor_field,
    to_json,
)

ROWS, REGION = 240, "eu-central"
COLUMNS = [KEY, "image", "caption", "note", "blob", "class", "score", "tags", "embedding"]
CAPTION = "caption é "
MAPPED = ["webdataset", "hdf5", "tfrecord"]


def records():
    """Return records of every kind of column: nulls, empties, and each ninth row a tombstone."""
    schema = dataset_schema(
        pa.schema(
            [
                media_field("image", "image"),
                media_field("caption", "text"),
                pa.field("note", pa.large_string()),
                pa.field("blob", pa.large_binary()),
                label_field("class"),
                pa.field("score", pa.float64()),
                pa.field("tags", pa.list_(pa.string())),
                tensor_field("embedding", pa.float32()),
            ]
        )
    )
    noise = np.random.default_rng(0).bytes(40_000)
    made = {
        KEY: [f"dir/{i}.x" for i in range(ROWS)],
        "image": [noise[i : i + 150 * (i % 200)] for i in range(ROWS)],
        "caption": [CAPTION * (i % 4) for i in range(ROWS)],
        "note": [f"ü{i}" * (i % 3) for i in range(ROWS)],
        "blob": [bytes([i % 256, 0]) * (i % 5) for i in range(ROWS)],
        "class": list(range(ROWS)),
        "score": [i / 7 for i in range(ROWS)],
        "tags": [["a", None] * (i % 3) for i in range(ROWS)],
        "embedding": [{"data": [float(i), 0.5], "shape": [2]} for i in range(ROWS)],
    }
    for number, values in enumerate(made.values()):
        for i in range(ROWS):
            if i % 9 == 4 or (number and (i + number) % 5 == 0):
                values[i] = None
    columns = [pa.array(made.get(f.name, [None] * ROWS), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Stock:
    """Shards of the records in one format, in the store of a region."""

    def __init__(self, posts: Path, form: str, folder: Path):
        shutil.copytree(posts.parent, folder / "posts")
        config = folder / "posts" / posts.name
        catalog = Catalog.at(locate("posts", load_config(config)), "test")
        index = catalog.index()
        self.store = catalog.store(index, REGION)
        tag = catalog.shards(index, REGION)[0].tag
        batch = records()
        cutter = ShardCutter(
            get_format(form),
            batch.schema,
            shard_bytes=1 << 21,
            tag=tag,
            summary={},
            work=folder,
            name="x",
        )
        cutter.write(batch)
        shards = [sealed.deliver(self.store) for sealed in cutter.close()]
        self.names = [shard.shard_id for shard in shards]
        self.homes = {shard.shard_id: (REGION, shard) for shard in shards}
        self.slots = [sum(shard.slots) for shard in shards]
        self.places = [(s, row) for s, count in enumerate(self.slots) for row in range(count)]
        made = {"format": form, "schema_": to_json(batch.schema)}
        self._made = catalog, index.model_copy(update=made)

    def paths(self):
        return [
            self.store.local_path(shard.main.path, shard.tag, name, shard.live)
            for name, (_home, shard) in self.homes.items()
        ]

    def reader(self, **options):
        return Reader(*self._made, self.homes, **options)

    def rows(self, reader, places, columns=COLUMNS):
        shards, rows = np.array(places, np.int64).reshape(-1, 2).T
        found = reader.rows(self.names, shards, rows, columns)
        found.validate(full=True)
        return found

    def expected(self, places, columns=COLUMNS):
        """Return rows by decoding all units whole."""
        reader = self.reader()
        whole = [pa.Table.from_batches(reader.batches(name, columns)) for name in self.names]
        picked = pa.concat_tables([whole[s].slice(row, 1) for s, row in places])
        return picked.combine_chunks().to_batches()[0]


@pytest.fixture(scope="module", params=FORMATS)
def stock(request, posts_dataset, tmp_path_factory):
    return Stock(posts_dataset, request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def own_stock(request, posts_dataset, tmp_path):
    """A stock of the format given whose files a test may damage."""
    return Stock(posts_dataset, request.param, tmp_path)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_rows_are_those_of_the_units(stock, data):
    places = data.draw(st.lists(st.sampled_from(stock.places), min_size=1, max_size=60))
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
    reader = stock.reader()
    expected = stock.expected(places, columns)
    for _again in range(2):  # from the file, then from what is kept
        found = stock.rows(reader, places, columns)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.equals(expected)
    reader.close()


def test_there_are_several_shards_and_units(stock):
    slots = [shard.slots for _home, shard in stock.homes.values()]
    assert len(slots) > 1 and max(map(len, slots)) > 1


def test_a_small_budget_costs_time_only(stock):
    places = stock.places[::-1]
    reader = stock.reader(memory_budget=1)
    assert stock.rows(reader, places).equals(stock.expected(places))
    reader.close()


def test_what_is_kept_of_a_mapped_file_goes_when_it_is_closed(stock, monkeypatch):
    monkeypatch.setattr(reading, "OPEN_SHARDS", 1)
    reader = stock.reader()
    expected = stock.expected(stock.places)
    for _again in range(2):
        assert stock.rows(reader, stock.places).equals(expected)
    (last,) = reader._open
    kept = [key[0] for key, unit in reader._units.items() if unit.mapped]
    assert set(kept) <= {last}
    assert reader._held == sum(unit.nbytes for unit in reader._units.values())
    reader.close()


def damage(path):
    """Break every caption in a file, in place."""
    data = path.read_bytes()
    assert CAPTION.encode() in data
    path.write_bytes(data.replace("é ".encode(), b"\xff\xff "))


@pytest.mark.parametrize("own_stock", MAPPED, indirect=True)
def test_text_that_is_not_utf8_names_its_shard(own_stock):
    for path in own_stock.paths():
        kept = path.read_bytes()
        damage(path)
        with pytest.raises(CorruptShard) as caught:
            own_stock.rows(own_stock.reader(), own_stock.places)
        assert caught.value.fields["shard"] == path.name
        assert caught.value.fields["column"] == "caption"
        path.write_bytes(kept)


@pytest.mark.parametrize("own_stock", MAPPED, indirect=True)
def test_text_that_a_disk_has_damaged_is_fetched_anew(own_stock, tmp_path):
    cache = TieredCache(NvmeCache(tmp_path / "cache", 1 << 26))
    reader = own_stock.reader(cache=cache)
    expected = own_stock.rows(reader, own_stock.places)
    reader.close()
    for _home, shard in own_stock.homes.values():
        damage(cache.get(shard.main.sha256, shard.main.nbytes, Path.unlink))
    assert own_stock.rows(reader, own_stock.places).equals(expected)
    reader.close()
