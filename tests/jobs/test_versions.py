"""Versions: which there are, and back to one."""

import json
from pathlib import Path

import pytest
from editing_cases import config_of
from pipeline import convert, shard
from version_cases import contents, make_twice

import geodata
from geodata.errors import ConfigError, ObjectNotFound
from geodata.jobs.history import history
from geodata.jobs.rollback import rollback


@pytest.fixture
def twice(workspace):
    return make_twice(workspace)


def test_history_tells_what_made_each_version(twice):
    report = history("posts", config=config_of(twice))
    first, second = report.versions
    assert (first.version, first.parent, first.operation) == ("v000001", None, "shard")
    assert (second.version, second.parent) == ("v000002", "v000001")
    assert first.records == second.records == 300
    assert (first.added, first.removed) == (first.shards, 0)
    assert second.added == second.shards and second.removed == first.shards
    (raw,) = history(str(twice / "data/raw")).versions
    assert (raw.operation, raw.records) == ("convert", 300)


def test_back_to_a_version_and_forth(twice):
    config, before = config_of(twice), contents(twice, "posts@v1")
    dry = rollback("posts@v1", config=config, dry_run=True)
    assert (dry.version, dry.of, dry.before) == (None, "v000001", "v000002")
    assert len(history("posts", config=config).versions) == 2
    done = rollback("posts@v1", config=config)
    assert (done.version, done.unchanged) == ("v000003", False)
    assert contents(twice) == before != contents(twice, "posts@v2")
    assert rollback("posts@v1", config=config).unchanged
    assert history("posts", config=config).versions[-1].of == "v000001"
    assert geodata.verify("posts", config=config, workers=1).ok
    assert rollback("posts@v2", config=config).version == "v000004"
    with pytest.raises(ConfigError, match="back to which"):
        rollback("posts", config=config)


def test_a_version_with_a_lost_file_does_not_come_back(twice):
    gone = geodata.list_files("posts@v1", config=config_of(twice)).shards[0]
    Path(gone.file).unlink()
    with pytest.raises(ObjectNotFound, match="not there any more"):
        rollback("posts@v1", config=config_of(twice))
    assert len(history("posts", config=config_of(twice)).versions) == 2


def test_a_version_comes_back_where_its_files_lie(workspace):
    config = workspace / "geodata.yaml"
    text = config.read_text().replace("jurisdiction: DE,", "jurisdiction: DE, root: eu,")
    config.write_text(text)
    convert(workspace)
    shard(workspace)
    before = contents(workspace)
    config.write_text(text.replace("root: eu,", "root: europe,"))
    shard(workspace, seed=1)
    assert rollback("posts@v1", config=config_of(workspace)).version == "v000003"
    assert contents(workspace) == before
    assert geodata.verify("posts", config=config_of(workspace), workers=1).ok


def test_the_commands_speak_json(twice, capsys):
    from click.testing import CliRunner

    from geodata.cli import cli

    for command in ("history posts", "gc posts --dry-run", "rollback posts@v1 --dry-run"):
        found = CliRunner().invoke(cli, [*command.split(), "--json"])
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["schema_version"] == 1
    assert "v2" in CliRunner().invoke(cli, ["history", "posts"]).stdout
    assert CliRunner().invoke(cli, ["repair", "posts"]).stdout.endswith("nothing to repair\n")
