"""A column looked up in a table."""

import json

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from column_cases import join, table_of
from editing_cases import (
    FORMATS,
    config_of,
    files_of,
    leftovers,
    make_dataset,
    raw,
    records,
    rows,
    shards,
)

import geodata
from geodata.errors import ConfigError, SchemaError
from geodata.partition import joining


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_is_joined_by_a_column_or_by_the_key(workspace, form):
    make_dataset(workspace, form, count=60)
    known = records(workspace, "data/raw")
    keys = list(known)
    lines = [f"{key},note {n}" for n, key in enumerate(keys) if n % 3]
    report = join(
        workspace, "note", table_of(workspace, "notes.csv", ["record,note", *lines]), "record"
    )
    assert (report.missing, report.records, report.type) == (20, 60, "string")
    now = records(workspace, "data/raw")
    for n, key in enumerate(keys):
        assert now[key]["note"] == (f"note {n}" if n % 3 else None)
    likes = [{"likes": row["likes"], "half": row["likes"] // 2} for row in known.values()]
    table = table_of(workspace, "likes.jsonl", map(json.dumps, likes))
    assert join(workspace, "h", table, "likes", column="half").missing == 0
    assert all(row["h"] == row["likes"] // 2 for row in records(workspace, "data/raw").values())
    assert geodata.verify(raw(workspace), workers=1).ok


def test_a_table_of_parquet_keeps_its_types(workspace):
    make_dataset(workspace, count=30)
    known = list(records(workspace, "data/raw").values())
    vectors = [[row["likes"], 1] for row in known]
    pq.write_table(
        pa.table({"likes": [row["likes"] for row in known], "v": vectors}), workspace / "t.parquet"
    )
    assert join(workspace, "v", workspace / "t.parquet", "likes").type == "list<item: int64>"
    assert all(row["v"] == [row["likes"], 1] for row in records(workspace, "data/raw").values())


def test_a_key_in_two_rows_names_both(workspace):
    make_dataset(workspace, count=30)
    table = table_of(workspace, "t.tsv", ["id\tx", "a\t1", "b\t2", "c\t3", "b\t4"])
    with pytest.raises(SchemaError, match=r"row 2 and row 4 .*t\.tsv.*key b"):
        join(workspace, "x", table, "id")


def test_a_table_that_matches_nothing_or_lacks_a_column_is_a_mistake(workspace):
    make_dataset(workspace, count=30)
    table = table_of(workspace, "t.csv", ["id,x", "a,1"])
    with pytest.raises(ConfigError, match="no record has a row in the table"):
        join(workspace, "x", table, "id")
    with pytest.raises(ConfigError, match=r"the table has no column 'y'.*It has id, x"):
        join(workspace, "y", table, "id")
    with pytest.raises(ConfigError, match="joined on text or whole numbers"):
        join(workspace, "x", table_of(workspace, "f.csv", ["score,x", "0.5,1"]), "score")
    with pytest.raises(ConfigError, match="needs a column of keys.*--on"):
        join(workspace, "x", table, None)
    (workspace / "t.txt").write_text("x")
    with pytest.raises(ConfigError, match="a table is csv, jsonl, parquet, not text"):
        join(workspace, "x", workspace / "t.txt", "id")
    assert not leftovers(workspace)


def test_a_dry_run_says_the_same_and_writes_nothing(workspace):
    make_dataset(workspace, count=60)
    keys = list(records(workspace, "data/raw"))
    table = table_of(
        workspace, "t.csv", ["id,x", *(f"{key},{n}" for n, key in enumerate(keys[:40]))]
    )
    before = files_of(workspace)
    planned = join(workspace, "x", table, "id", dry_run=True)
    with pytest.raises(ConfigError, match="has a column 'text' already"):
        join(workspace, "text", table, "id", column="x", dry_run=True)
    assert files_of(workspace) == before
    done = join(workspace, "x", table, "id")
    same = ("column", "type", "records", "shards", "missing", "kept", "regions", "left")
    assert all(getattr(planned, name) == getattr(done, name) for name in same)
    assert (planned.dry_run, planned.version, planned.bytes_out) == (True, "v000001", 0)


def test_a_table_of_more_than_an_array_holds_is_refused(workspace, monkeypatch):
    make_dataset(workspace, count=24)
    table = table_of(workspace, "t.csv", ["id,x", "posts.jsonl#1,a", "posts.jsonl#2,b"])

    class Wide(list):
        def combine_chunks(self):
            """Return two parts, as Arrow does where text is over 2 GiB."""
            return pa.concat_tables([self[0].slice(0, 1), self[0].slice(1)])

    whole = joining._whole
    monkeypatch.setattr(joining, "_whole", lambda made: whole(Wide([made])))
    with pytest.raises(SchemaError, match="column 'x' of the table has more than 2 GiB"):
        join(workspace, "x", table, "id")


def test_who_may_read_what_a_table_gave_is_told(workspace):
    from test_cli import run as command

    make_dataset(workspace, count=60)
    free = [
        key
        for name, (_region, one) in shards(workspace).items()
        if not one.tag.personal
        for key in (row["__key__"] for row in rows(workspace)[name])
    ]
    table = table_of(workspace, "t.csv", ["id,x", *(f"{key},1" for key in free)])
    arguments = ["add-column", "posts", "x", "--join", table, "--on", "id"]
    told = command(*arguments, cwd=workspace).stdout
    assert f"{len(free)} records tagged as not personal may be read in every region" in told
    assert "nothing personal in the table?" in told


def test_the_table_is_sorted_in_the_region_that_reads_it(workspace, monkeypatch):
    make_dataset(workspace, count=60)
    table = table_of(workspace, "t.csv", ["id,x", *(f"{key},1" for key in records(workspace))])
    stored, folders = joining.Table.store, []

    def store(self, path):
        folders.append(path)
        stored(self, path)

    monkeypatch.setattr(joining.Table, "store", store)
    join(workspace, "x", table, "id", "posts", config=config_of(workspace))
    assert [path.is_relative_to(workspace / "eu/posts") for path in folders] == [True]
    assert not leftovers(workspace)
