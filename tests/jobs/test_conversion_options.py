"""The options that conversions share: written once, given as keywords, refused where not used."""

import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest

import geodata
from geodata.errors import ConfigError
from geodata.jobs.append import OF_RAW, AppendOptions
from geodata.jobs.convert import ConvertOptions
from geodata.jobs.converting import Converting
from geodata.prepare import Preparing
from geodata.sources import Reading

OF_ANY = {"config", "dedupe", "workers", "executor", "ray_address", "shard_size", "progress"}
"""Options of an append that hold for a staging dataset too."""


@pytest.mark.parametrize(
    ("job", "options", "dest"),
    [(geodata.convert, ConvertOptions, "dest"), (geodata.append, AppendOptions, "dataset")],
)
def test_each_job_takes_the_shared_options_and_its_own_as_keywords(job, options, dest):
    parameters = inspect.signature(job).parameters
    assert list(parameters) == ["source", dest, *(field.name for field in fields(options))]
    assert {field.name for field in fields(Converting)} < set(parameters)
    for field in fields(options):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    with pytest.raises(TypeError, match="unexpected keyword argument 'workres'"):
        job("a", "b", workres=1)
    with pytest.raises(TypeError, match=f"missing a required argument: '{dest}'"):
        job("a")


def test_source_and_destination_may_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n')
    out = tmp_path / "out"
    assert geodata.convert(source=tmp_path / "a.jsonl", dest=out, workers=1).records_out == 1
    assert geodata.append(source=tmp_path / "b.jsonl", dataset=out, workers=1).records == 2


@pytest.mark.parametrize("job", [geodata.convert, geodata.append])
def test_a_bound_needs_bad_records_to_be_left_out(tmp_path, job):
    with pytest.raises(ConfigError, match="--max-errors is not for --on-error fail.*skip"):
        job(tmp_path / "a.jsonl", tmp_path / "out", max_errors=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("job", [geodata.convert, geodata.append])
@pytest.mark.parametrize("places", [("", "out"), ("a.jsonl", "")])
def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch, job, places):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"^(SOURCE|DEST|DATASET) is empty\. Name it"):
        job(*places)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_every_option_of_an_append_is_of_raw_corpora_or_of_any():
    named = {field.name for field in fields(AppendOptions)}
    assert named == {*OF_RAW} | OF_ANY | {"reading", "preparing"}
    assert not {*OF_RAW} & OF_ANY


ASKED = {
    "kind": "jsonl",
    "source_id": "s",
    "provenance": "origin",
    "on_error": "skip",
    "restart": True,
    "staging": Path("staging"),
    "reading": Reading(quotes=False),
    "preparing": Preparing(rate=8000),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_converted_already_is_not_converted_otherwise(workspace, name):
    from geodata.config import load_config

    config = load_config("geodata.yaml")
    geodata.convert("posts.jsonl", "data/raw", workers=1)
    geodata.shard("data/raw", "data/posts", config=config, workers=1)
    with pytest.raises(ConfigError) as caught:
        geodata.append("data/raw", "data/posts", config=config, **{name: ASKED[name]})
    option = {"reading": "no-quotes", "preparing": "rate"}.get(name, name).replace("_", "-")
    assert str(caught.value) == (
        f"--{option} is not for what is converted already. It is for raw corpora"
    )


@pytest.fixture
def days(tmp_path, monkeypatch):
    """A dataset made of three files, of which one went since and to which one came."""
    monkeypatch.chdir(tmp_path)
    Path("days").mkdir()
    for name in "abc":
        write(f"days/{name}.jsonl", 2)
    geodata.convert("days", "raw", workers=1)
    Path("days/b.jsonl").unlink()
    write("days/d.jsonl", 3)
    return tmp_path


def write(path, count):
    Path(path).write_text("".join(json.dumps({"n": n}) + "\n" for n in range(count)))


def test_a_source_that_lost_files_is_appended_with_restart(days):
    with pytest.raises(
        ConfigError, match=r"is no longer there.*b\.jsonl.*--restart.*stay.*--source"
    ):
        geodata.append("days", "raw", workers=1)
    report = geodata.append("days", "raw", workers=1, restart=True)
    assert (report.records_in, report.records, report.removed) == (3, 9, 1)
    assert report.to_json()["removed"] == 1
    keys = [row["__key__"] for row in geodata.inspect("raw", head=20).head]
    assert sorted(keys) == sorted(f"days/{f}.jsonl#{n}" for f in "abc" for n in (1, 2)) + [
        f"days/d.jsonl#{n}" for n in (1, 2, 3)
    ]
    again = geodata.append("days", "raw", workers=1, restart=True)
    assert (again.unchanged, again.removed, again.version) == (True, 1, "v000002")
    assert geodata.verify("raw", workers=1).ok


@pytest.mark.parametrize("lost", ["a", "c"])
def test_the_first_and_the_last_file_may_go_too(days, lost):
    Path(f"days/{lost}.jsonl").unlink()
    assert geodata.append("days", "raw", workers=1, restart=True).removed == 2
    if lost == "c":
        Path("days/d.jsonl").unlink()
        assert geodata.append("days", "raw", workers=1, restart=True).removed == 3


def test_restart_accepts_no_file_that_changed(days):
    write("days/c.jsonl", 5)
    with pytest.raises(ConfigError, match=r"changed since.*c\.jsonl.*--source-id"):
        geodata.append("days", "raw", workers=1, restart=True)


def test_files_may_go_while_another_writer_commits(days, monkeypatch):
    from geodata.catalog import Catalog

    write("other.jsonl", 1)
    amend, done = Catalog.amend, []

    def amending(self, *arguments, **options):
        if not done:
            done.append(True)
            geodata.append("other.jsonl", "raw", workers=1)
        return amend(self, *arguments, **options)

    monkeypatch.setattr(Catalog, "amend", amending)
    report = geodata.append("days", "raw", workers=1, restart=True)
    assert (report.records, report.removed, report.version) == (10, 1, "v000003")
