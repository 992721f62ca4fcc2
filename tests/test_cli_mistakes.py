"""What the command line says of mistakes, in one line; and where users' own prints go."""

import json
from pathlib import Path

import click
import pytest
from test_cli import run

from geodata.cli import cli, options
from geodata.cli.options import Given, cache_folder
from geodata.prepare.base import USED_BY as PREPARED
from geodata.sources import KINDS
from geodata.sources.options import USED_BY


def commands(group=cli, above=()):
    """Yield the path and the command of each command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name), command


COMMANDS = dict(commands())


def test_no_path_or_dataset_may_be_empty():
    taken = 0
    for command in COMMANDS.values():
        for each in command.params:
            if each.name in ("source", "dest", "dataset", "folder") or "path" in each.name:
                assert isinstance(each.type, Given), (command.name, each.name)
            taken += isinstance(each.type, Given)
            assert type(each.type) is not click.Path, (command.name, each.name)
    assert taken > 30


def test_the_kinds_and_the_options_that_errors_name_are_there():
    assert list(options.KINDS.choices) == list(KINDS)
    named = {
        "header": "--no-header",
        "quotes": "--no-quotes",
        "verify": "--verify-images",
        "exif": "--strip-exif",
    }
    wanted = {named.get(n) or f"--{n.replace('_', '-')}" for n in {*USED_BY, *PREPARED}}
    for name in ("convert", "append"):
        there = {option for each in COMMANDS[(name,)].params for option in each.opts}
        assert wanted | {"--schema"} <= there


def test_convert_and_append_take_the_same_options_of_a_conversion():
    own = {
        "convert": {"dest", "format", "replace"},
        "append": {"dataset", "staging", "config_path"},
    }
    shared = [{each.name for each in COMMANDS[(name,)].params} - own[name] for name in own]
    assert shared[0] == shared[1] and len(shared[0]) > 30


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("convert", "Missing argument 'SOURCE'. See geodata convert --help"),
        ("convert posts.jsonl d --fromat x", "No such option '--fromat'"),
        ("petastorm mend", "No such command 'mend'. See geodata petastorm --help"),
        ("completion", "Choose from: bash, zsh, fish. See geodata completion --help"),
        ("convert posts.jsonl d --parts 0", "0 is not in the range x>=1"),
        ("convert posts.jsonl d --delimiter ;", "--delimiter is not for jsonl. It is for csv"),
        ("convert posts.jsonl d --columns ''", "--columns is not for jsonl"),
        ("convert posts.jsonl d --max-errors 9", "--max-errors is not for --on-error fail"),
        ("convert posts.jsonl d --text-column a", "--text-column is of a tokenizer"),
        ("convert posts.jsonl d --quality 90", "--quality is of images that are written anew"),
        ("append posts.jsonl d --ray-address x", "no dataset 'd'"),
        ("convert posts.jsonl d --ray-address x", "--ray-address goes with --executor ray"),
        ("convert posts.jsonl d --schema bad.yaml", "not valid YAML: "),
        ("convert posts.jsonl d --schema bad.yaml", "(file bad.yaml, line 2, column 2)"),
        ("convert posts.jsonl d --schema none.yaml", "No such file or directory (file none.yaml)"),
        ("convert posts.jsonl d --schema list.yaml", "a schema maps columns to types"),
        ("convert '' d", "Invalid value for 'SOURCE': it is empty; `.` is the current folder"),
        ("convert posts.jsonl ''", "Invalid value for 'DEST': it is empty"),
        ("append posts.jsonl ''", "Invalid value for 'DATASET': it is empty"),
        ("shard '' d", "Invalid value for 'SOURCE': it is empty"),
        ("verify ''", "Invalid value for 'DATASET': it is empty"),
        ("inspect d --config ''", "Invalid value for '--config': it is empty"),
        ("shard d --tokens ids", "--tokens names what is packed. Add --pack LENGTH"),
        ("shard d --tokenizer bytes", "a tokenizer only counts here. Add --count-tokens"),
        ("ls d --files --json", "--files and --json exclude each other"),
        ("add-column d x --function a:b --on y", "--on is not for --function. It is for --join"),
        ("add-column d x --function a:b --column y", "--column is not for --function"),
        ("config check --config bad.yaml", "(file bad.yaml, line 2, column 2)"),
    ],
)
def test_a_mistake_is_one_line_and_begins_nothing(workspace, arguments, told):
    (workspace / "bad.yaml").write_text("a: [x\nb: 1")
    (workspace / "list.yaml").write_text("- a")
    before = sorted(path.name for path in workspace.iterdir())
    given = [word.strip("'") for word in arguments.split(" ")]
    done = run(*given, cwd=workspace, code=2)
    assert told in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert ".." not in done.stderr and ":." not in done.stderr
    assert sorted(path.name for path in workspace.iterdir()) == before


def test_without_a_command_the_help_is_shown(workspace):
    assert "Commands:" in run(cwd=workspace, code=2).stderr


def test_what_the_machine_refuses_names_the_file(workspace):
    done = run("convert", "posts.jsonl", "/proc/there", cwd=workspace, code=4)
    assert done.stderr.count("\n") == 1 and "(file /proc/there" in done.stderr


LOUD = """
import os
import subprocess
import sys

print("at the import")
sys.__stdout__.write("kept for later\\n")

def rows(part, parts):
    print("a part is read")
    subprocess.run(["echo", "said by a child"], check=True)
    os.write(1, b"written as bytes\\n")
    yield from ({"part": part, "n": n} for n in range(3))

def column(batch):
    print("a column is made")
    return [1] * batch.num_rows
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_users_function_prints_is_no_part_of_the_result(tmp_path, workers):
    (tmp_path / "loud.py").write_text(LOUD)
    share = ["--workers", workers, "--json"]
    calls = [
        (["init", "loud:rows", "--json"], ["at the import", "kept for later", "a part is read"]),
        (
            ["convert", "loud:rows", "d", "--parts", 3, *share],
            ["at the import", "a part is read", "said by a child", "written as bytes"],
        ),
        (["append", "loud:rows", "d", "--source-id", "s", *share], ["a part is read"]),
        (["add-column", "d", "x", "--function", "loud:column", *share], ["a column is made"]),
    ]
    for arguments, said in calls:
        done = run(*arguments, cwd=tmp_path)
        assert json.loads(done.stdout)["schema_version"] == 1
        assert [line for line in said if line not in done.stderr] == []


def test_the_cache_is_named_by_the_environment_only_as_a_whole_path(monkeypatch):
    for value, folder in [("/var/c", Path("/var/c")), ("c", None), ("", None)]:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == folder
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() is None
