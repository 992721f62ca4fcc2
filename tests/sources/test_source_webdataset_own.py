"""Shards of our own among WebDataset tars."""

import gzip

import pyarrow as pa
import pytest
from formats.records import assert_same, mixed
from formats.typematrix import COLUMNS
from own_shards import batches_of, typed, write_own
from tar_files import read, rejected, write_tar

from geodata.errors import SchemaError
from geodata.formats import get_format
from geodata.schema import KEY
from geodata.sources import open_source


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_of_our_own_shards(tmp_path, name):
    batch = typed(name)
    path = write_own("webdataset", tmp_path / "a.tar", batch)
    assert_same(batches_of(open_source(path, source_id="s")), batch)


@pytest.mark.parametrize("form", ["webdataset+gzip", "webdataset+xz"])
def test_our_own_compressed_shards(tmp_path, form):
    batch = typed("int64")
    path = write_own(form, tmp_path / f"a{get_format(form).suffix}", batch)
    assert_same(batches_of(open_source(path, source_id="s")), batch)


def test_our_own_shards_without_tombstones(tmp_path):
    batch = mixed(60)
    batch = batch.set_column(1, batch.schema.field(1), pa.nulls(60, pa.string()))
    write_own("webdataset", tmp_path / "a.tar", batch)
    found = read(tmp_path / "a.tar")
    live = {row.pop(KEY): row for row in batch.to_pylist() if row[KEY] is not None}
    assert {k: {**v, "__subject__": None} for k, v in found.records.items()} == live
    columns = pa.schema(list(batch.schema)[2:])
    columns = columns.set(2, columns.field(2).remove_metadata())  # its label map is not in a shard
    assert found.schema.equals(columns, check_metadata=True)


def test_pseudonyms_do_not_travel(tmp_path):
    write_own("webdataset", tmp_path / "a.tar", mixed(10))
    with pytest.raises(SchemaError, match="pseudonyms"):
        read(tmp_path / "a.tar")


def test_a_damaged_shard_of_our_own_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    path.write_bytes(path.read_bytes()[:-1024])
    found = read(path)
    assert found.records == {} and len(found.rejects) == 1


def test_a_shard_of_our_own_with_a_damaged_schema_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"int64"', b'"int32"', 1))
    assert path.read_bytes() != whole
    ((file, row, reason),) = rejected(path)
    assert (file, row) == ("a.tar", None) and "schema" in reason


def test_a_compressed_shard_of_our_own_is_one_reject(tmp_path):
    path = write_own("webdataset", tmp_path / "a.tar", typed("int64"))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert rejected(path) == [("a.tar", None, "a compressed shard of geodata: decompress it first")]


def test_own_and_foreign_tars_in_one_folder(tmp_path):
    write_own("webdataset", tmp_path / "a.tar", typed("int32"))
    write_tar(tmp_path / "b.tar", ("0.txt", b"x"))
    found = read(tmp_path)
    assert found.schema.names == ["value", "txt"]
    assert len(found.records) == len(COLUMNS["int32"]) + 1
