"""The environment that Petastorm is read in: found, made, and said to be missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import petastorm_interpreter
import pytest
from source_reading import read_all

from geodata.errors import ConfigError, StoreError
from geodata.jobs.petastorm import setup, status
from geodata.sources import Reading, open_source, recognise
from geodata.sources.petastorm import environment

BY_SPARK = Path(__file__).parent / "petastorm_by_spark"


@pytest.fixture
def petastorm():
    """Need the environment."""
    return petastorm_interpreter.ready()


@pytest.fixture
def no_environment(tmp_path, monkeypatch):
    """Hide the environment, and return where it would be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return environment.default_folder()


def test_without_an_environment_the_command_that_makes_it_is_named(no_environment):
    assert not status().ready
    with pytest.raises(ConfigError, match="Run: geodata petastorm setup"):
        open_source(BY_SPARK)
    assert recognise(BY_SPARK) == "petastorm"


def test_the_command_line_says_what_there_is(petastorm, no_environment, tmp_path):
    command = [sys.executable, "-m", "geodata.cli", "petastorm"]
    for arguments, code, ready in [
        (["status"], 1, False),
        (["setup", "--dir", petastorm.folder.resolve()], 0, True),
        (["status"], 0, True),
    ]:
        called = [*command, *map(str, arguments), "--json"]
        done = subprocess.run(called, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, json.loads(done.stdout)["ready"]) == (code, ready)


def test_an_environment_made_elsewhere_is_found(petastorm, no_environment, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(petastorm.folder.resolve())
    report = setup(elsewhere)
    assert (report.ready, report.made) == (True, False)
    assert no_environment.is_symlink()
    assert status().packages["petastorm"] == "0.13.1"
    assert len(read_all(open_source(BY_SPARK)).records) == 11


def test_the_command_line_names_the_folder_for_caches(petastorm, no_environment, tmp_path):
    command = [sys.executable, "-m", "geodata.cli"]
    cache = tmp_path / "else where"
    setup(petastorm.folder.resolve(), cache=cache)
    assert len(read_all(open_source(BY_SPARK, reading=Reading(cache=cache))).records) == 11
    called = [*command, "convert", str(BY_SPARK), str(tmp_path / "out"), "--json"]
    for places, code in [({"XDG_CACHE_HOME": str(cache)}, 0), ({"XDG_CACHE_HOME": "x"}, 2)]:
        done = subprocess.run(
            called,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **places},
        )
        assert done.returncode == code, done.stderr
    assert str(no_environment) in json.loads(done.stdout)["file"]


def test_an_environment_of_other_requirements_does_not_count(petastorm, no_environment):
    no_environment.mkdir(parents=True)
    record = json.loads((petastorm.folder / environment.RECORD).read_text())
    (no_environment / environment.RECORD).write_text(json.dumps({**record, "requirements": "x"}))
    assert environment.ready(no_environment) is None


def test_mistakes_at_setup(no_environment, tmp_path):
    (tmp_path / "file").touch()
    for folder, python, message in [
        (tmp_path, None, "the folder holds something else"),
        (tmp_path / "file", None, "this is no folder"),
        (tmp_path / "new", "/no/such/python", "is not Python 3.11 or 3.12"),
    ]:
        with pytest.raises(ConfigError, match=message):
            setup(folder, python)
    assert not (tmp_path / "new").exists()


def test_a_setup_that_fails_leaves_nothing(no_environment, monkeypatch):
    for name in ("PIP_CONFIG_FILE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "/dev/null" if name == "PIP_CONFIG_FILE" else "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="pip cannot install the requirements: ERROR"):
        setup(python=sys.executable if sys.version_info < (3, 13) else None)
    assert list(no_environment.parent.iterdir()) == []
