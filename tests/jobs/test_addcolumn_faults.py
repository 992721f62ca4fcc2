"""Adding a column where something fails, is killed, or is done twice at once."""

import json
import shutil
from pathlib import Path

import pytest
from column_cases import add, loud, table_of
from editing_cases import (
    at_once,
    config_of,
    make_dataset,
    path_of,
    raw,
    records,
    rows,
    shards,
    version,
)

import geodata
from geodata.errors import CommitConflict, ConfigError, GeodataError, SchemaError
from geodata.jobs.addcolumn import add_column
from geodata.partition.opening import Edited


def test_what_a_function_does_wrong_names_it_and_where(workspace):
    make_dataset(workspace, count=40)
    reference = raw(workspace)
    with pytest.raises(
        GeodataError, match=r"fails raised AssertionError in \w+\.py, line \d+"
    ) as caught:
        add(workspace, "x", reference, "fails")
    key = caught.value.fields["key"]
    found = rows(workspace, "data/raw")[caught.value.fields["shard"]]
    odd = [row["__key__"] for row in found if row["likes"] % 2]
    assert key == odd[0] and "secret" not in str(caught.value)
    with pytest.raises(SchemaError, match=r"1 values for \d+ records"):
        add(workspace, "x", reference, "short")
    with pytest.raises(SchemaError, match="int64, which.*string.*key posts.*--type"):
        add(workspace, "x", reference, "mixed")
    with pytest.raises(SchemaError, match="int8, which.*string.*column x.*--type"):
        add(workspace, "x", reference, "upper", type="int8")
    with pytest.raises(ConfigError, match="all values are null.*--type"):
        add(workspace, "x", reference, "nothing")
    with pytest.raises(ConfigError, match="has no function 'absent'"):
        add(workspace, "x", reference, "absent")
    for name in ("__key__", "__x__", ""):
        with pytest.raises(ConfigError, match="no name for a column"):
            add(workspace, name, reference)
    with pytest.raises(ConfigError, match="is no function"):
        add_column(reference, "x", function="no_function")
    with pytest.raises(ConfigError, match="'not_there_at_all' cannot be imported"):
        add_column(reference, "x", function="not_there_at_all:f")
    with pytest.raises(ConfigError, match="a function, or a table"):
        add_column(reference, "x")
    assert [v.name for v in (workspace / "data/raw/metadata").glob("v*")] == ["v000001.json"]


def test_the_outcome_does_not_depend_on_workers(workspace):
    make_dataset(workspace)
    (workspace / "copy").mkdir()
    for name in ("data", "eu", "disk"):
        shutil.copytree(workspace / name, workspace / "copy" / name)
    shutil.copy(workspace / "geodata.yaml", workspace / "copy/geodata.yaml")
    add(workspace, workers=1)
    add_column(
        "posts",
        "length",
        function="column_functions:length",
        config=config_of(workspace / "copy"),
        workers=2,
    )
    assert shards(workspace) == shards(workspace / "copy")


def test_finished_shards_are_not_made_again(workspace, monkeypatch):
    make_dataset(workspace)
    from geodata.jobs import addcolumn

    calls = []

    def failing(shared, placed, add=addcolumn.add_to_shard):
        calls.append(placed.shard.shard_id)
        if len(calls) == 3:
            raise ConfigError("stopped")
        return add(shared, placed)

    monkeypatch.setattr(addcolumn, "add_to_shard", failing)
    with pytest.raises(ConfigError, match="stopped"):
        add(workspace)
    report = add(workspace)
    assert sorted(calls) == sorted([*{*calls}, calls[2]]) and report.shards == len(set(calls))


def test_two_columns_at_once_do_not_lose_one(workspace):
    make_dataset(workspace, count=60)
    codes = at_once(
        lambda: add(workspace, "one", raw(workspace)),
        lambda: add(workspace, "two", raw(workspace), "upper"),
    )
    names = [f["name"] for f in version(workspace, "data/raw")[1].schema_["fields"]]
    assert {"one", "two"} & set(names) and codes.count(0) == len({"one", "two"} & set(names))
    if codes.count(0) == 1:  # the other was told to go on from it
        done = "one" in names
        add(workspace, "two" if done else "one", raw(workspace), "upper" if done else "length")
    now = records(workspace, "data/raw")
    assert all({"one", "two"} <= row.keys() for row in now.values())


def test_a_replaced_column_is_not_lost_to_an_edit_made_before(workspace, monkeypatch):
    make_dataset(workspace, count=60)
    from geodata.jobs.drop import drop

    key = next(iter(records(workspace, "data/raw")))
    opened, done = Edited.opened, []

    def meanwhile(self, placed, *, check=True):
        if check and not done:
            done.append(True)
            add(workspace, "text", raw(workspace), "upper", replace=True)
        return opened(self, placed, check=check)

    monkeypatch.setattr(Edited, "opened", meanwhile)
    with pytest.raises(CommitConflict, match=r"no longer in v000002 as it was.*again"):
        drop(raw(workspace), keys=[key], workers=1)
    assert drop(raw(workspace), keys=[key], workers=1).records == 1
    now = records(workspace, "data/raw")
    assert key not in now and all(row["text"] == loud(row["text"]) for row in now.values())


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_verify_names_damage_in_a_column(workspace, form):
    make_dataset(workspace, form, count=60)
    add(workspace, reference=raw(workspace))
    (_region, one), *others = shards(workspace, "data/raw").values()

    def place(shard):
        return path_of(workspace, "data/raw", "_staging", shard.files["columns/length"])

    path = place(one)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    second = others[0][1]
    place(second).unlink()
    told = {}
    for problem in geodata.verify(raw(workspace), workers=1).problems:
        told.setdefault(problem["shard"], []).append(problem["problem"])
    assert told.keys() == {one.shard_id, second.shard_id}
    assert any("does not match its digest" in text for text in told[one.shard_id])
    assert any("is missing" in text for text in told[second.shard_id])


def test_an_old_version_is_not_edited(workspace):
    make_dataset(workspace, count=60)
    add(workspace, reference=raw(workspace))
    with pytest.raises(ConfigError, match="v000001 is not the newest version"):
        add(workspace, "x", f"{raw(workspace)}@v1")
    assert add(workspace, "x", f"{raw(workspace)}@v2").version == "v000003"


def test_the_command(workspace):
    from test_cli import run as command

    make_dataset(workspace)
    shutil.copy(Path(__file__).with_name("column_functions.py"), workspace)
    made = "column_functions:length"
    out = command("add-column", "posts", "length", "--function", made, cwd=workspace)
    assert "added length (int32) to " in out.stdout and "posts v2 committed" in out.stdout
    assert "may not be read here; run this there too" in out.stdout
    table = table_of(workspace, "t.csv", ["id,x", "posts.jsonl#1,5"])
    arguments = ["add-column", "data/raw", "y", "--join", table, "--on", "id", "--column", "x"]
    report = json.loads(command(*arguments, "--json", cwd=workspace).stdout)
    assert (report["missing"], report["type"], report["schema_version"]) == (119, "int64", 1)
    out = command("add-column", "posts", "text", "--function", made, cwd=workspace, code=2)
    assert out.stderr.count("\n") == 1 and "--replace" in out.stderr
    failing = "column_functions:fails"
    out = command("add-column", "posts", "z", "--function", failing, cwd=workspace, code=1)
    assert "raised AssertionError" in out.stderr and "secret" not in out.stderr
