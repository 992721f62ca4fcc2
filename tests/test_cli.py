"""The command line as a user meets it: one line for a mistake, the right exit code, one JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from posts import CONFIG, make_posts


def run(*arguments, cwd, code=0, env=None):
    done = subprocess.run(
        [sys.executable, "-m", "geodata.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    return done


def test_the_tour(workspace):
    out = run("convert", "posts.jsonl", "data/raw", cwd=workspace)
    assert "300 in = 300 out" in out.stdout
    out = run("shard", "data/raw", "--format", "webdataset", "--json", cwd=workspace)
    report = json.loads(out.stdout)
    assert report["schema_version"] == 1
    assert report["version"] == "v000001"
    assert sum(r["records"] for r in report["regions"].values()) == report["records_out"] == 300
    assert set(report) >= {
        "records_in",
        "rejected",
        "shards",
        "bytes_in",
        "bytes_out",
        "seconds",
        "unknown_region",
    }
    shown = run("inspect", "posts", "--head", "2", cwd=workspace).stdout
    assert "eu-gdpr:A6-1-f" in shown and shown.count("__key__:") == 2
    report = json.loads(run("inspect", "posts", "--json", cwd=workspace).stdout)
    assert set(report) >= {"format", "version", "schema", "records", "bytes", "regions"}
    report = json.loads(run("verify", "posts", "--json", cwd=workspace).stdout)
    assert report["ok"] is True and report["problems"] == [] and report["shards"] > 3
    files = run("ls", "posts", "--files", cwd=workspace).stdout.split()
    assert len(files) == report["shards"] and all(f.endswith(".tar") for f in files)
    Path(files[0]).write_bytes(Path(files[0]).read_bytes() + b"x")
    report = json.loads(run("verify", "posts", "--json", cwd=workspace, code=1).stdout)
    assert report["ok"] is False and len({p["shard"] for p in report["problems"]}) == 1


def test_convert_reports_what_scripts_read(workspace):
    report = json.loads(run("convert", "posts.jsonl", "d", "--json", cwd=workspace).stdout)
    assert report["records_in"] == report["records_out"] + report["rejected"] == 300
    assert report["bytes_in"] == (workspace / "posts.jsonl").stat().st_size
    assert set(report) >= {"shards", "bytes_out", "seconds"}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["convert", "nowhere", "d"], 2, "nowhere"),
        (["convert", "posts.jsonl", "d", "--format", "tar"], 2, "tar"),
        (["convert", "posts.jsonl", "d", "--shard-size", "big"], 2, "'big' is no size"),
        (["shard", "nowhere"], 2, "no dataset 'nowhere'"),
        (["shard", "data/raw", "--config", "none.yaml"], 2, "no config file"),
        (["inspect", "posts"], 2, "no version has been committed"),
        (["verify", "nothing"], 2, "no dataset 'nothing'"),
        (["frobnicate"], 2, "No such command"),
        (["config", "check", "--config", "bad.yaml"], 2, "did you mean 'loader'"),
    ],
)
def test_a_users_mistake_is_one_line(workspace, arguments, code, told):
    (workspace / "bad.yaml").write_text("loaderr: {}\n")
    done = run(*arguments, cwd=workspace, code=code)
    assert told in done.stderr


def test_bad_data_is_exit_1_and_json_errors_are_json(workspace):
    with (workspace / "posts.jsonl").open("a") as file:
        file.write("{broken\n")
    done = run("convert", "posts.jsonl", "d", "--json", cwd=workspace, code=1)
    error = json.loads(done.stdout)
    assert (error["error"], error["row"]) == ("TooManyBadRecords", 301)
    assert done.stderr.strip().count("\n") == 0
    done = run("convert", "posts.jsonl", "d", "--on-error", "skip", "--json", cwd=workspace)
    assert json.loads(done.stdout)["rejected"] == 1


def test_what_is_ignored_is_told_by_what_it_is(workspace):
    (workspace / "in/below").mkdir(parents=True)
    for name in (*(f"{n}.txt" for n in range(9)), "b.css", "c.css", "d.db", ".hidden"):
        (workspace / "in" / name).write_text("text")
    (workspace / "in/link").symlink_to("below")
    out = run("convert", "in", "d", "--workers", "1", cwd=workspace).stdout
    assert "  ignored 3 files: " in out and "2 .css" in out and "1 .db" in out
    assert "  ignored 1: hidden\n" in out and "  ignored 1: link to a folder\n" in out


def test_the_region_is_configured_never_guessed(workspace):
    config = CONFIG.replace("here: eu-central\n", "")
    (workspace / "geodata.yaml").write_text(config)
    run("convert", "posts.jsonl", "data/raw", cwd=workspace)
    done = run("shard", "data/raw", cwd=workspace, code=2)
    assert "GEODATA_REGION" in done.stderr
    run("shard", "data/raw", cwd=workspace, env={"GEODATA_REGION": "us-east"})
    done = run("inspect", "posts", cwd=workspace, code=2, env={"GEODATA_REGION": "mars"})
    assert "'mars' is not one of the regions" in done.stderr


def test_init_writes_a_config_that_works(workspace):
    (workspace / "geodata.yaml").unlink()
    out = run("init", "posts.jsonl", cwd=workspace)
    assert "geodata convert posts.jsonl data/raw" in out.stdout
    assert "field: country" in (workspace / "geodata.yaml").read_text()
    run("config", "check", cwd=workspace)
    run("convert", "posts.jsonl", "data/raw", cwd=workspace)
    run("shard", "data/raw", cwd=workspace)
    assert run("verify", "posts", cwd=workspace).stdout.endswith("every digest matches\n")
    done = run("init", "posts.jsonl", cwd=workspace, code=2)
    assert "the file exists" in done.stderr


def test_schema_version_and_completion(workspace):
    assert json.loads(run("config", "schema", cwd=workspace).stdout)["type"] == "object"
    assert "geodata" in run("--version", cwd=workspace).stdout
    assert "_GEODATA_COMPLETE" in run("completion", "zsh", cwd=workspace).stdout


@pytest.mark.parametrize("arguments", [["convert"], ["convert", "a", "b", "--format", "x"], ["x"]])
def test_usage_errors_are_json_too(workspace, arguments):
    done = run(*arguments, "--json", cwd=workspace, code=2)
    assert json.loads(done.stdout)["error"] == "Usage"


def test_init_denies_by_default(workspace):
    (workspace / "geodata.yaml").unlink()
    run("init", "posts.jsonl", cwd=workspace)
    run("convert", "posts.jsonl", "data/raw", cwd=workspace)
    report = json.loads(run("shard", "data/raw", "--json", cwd=workspace).stdout)
    assert sum(region["personal"] for region in report["regions"].values()) == 300
    (workspace / "bare.jsonl").write_text('{"x": 1}\n')
    run("init", "bare.jsonl", "--out", "bare.yaml", cwd=workspace)
    run("config", "check", "--config", "bare.yaml", cwd=workspace)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_an_interrupt_says_how_to_go_on(workspace, number, code):
    make_posts(workspace / "posts.jsonl", count=60_000)
    child = subprocess.Popen(
        [sys.executable, "-m", "geodata.cli", "convert", "posts.jsonl", "d", "--workers", "2"],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (workspace / "d/.jobs").exists():
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(child.pid, number)  # as a terminal does
    else:
        os.kill(child.pid, number)
    _out, told = child.communicate(timeout=60)
    assert child.returncode == code, told
    assert "run the same command again to go on" in told and "Traceback" not in told
    done = run("convert", "posts.jsonl", "d", "--json", cwd=workspace)
    assert json.loads(done.stdout)["records_out"] == 60_000


DROPPED = """
import os, signal, time
from geodata.cli import cli, main

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.2)

@cli.command("wait")
def wait():
    Last()
    for _ in range(600):
        time.sleep(0.1)

main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 75)])
def test_a_signal_inside_a_destructor_still_stops(tmp_path, name, code):
    script = tmp_path / "dropped.py"
    script.write_text(DROPPED.format(name=name))
    done = subprocess.run(
        [sys.executable, script, "wait"], check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert "run the same command again to go on" in done.stderr and "Traceback" not in done.stderr


def test_the_formats_offered_are_those_there_are():
    from geodata.cli import options
    from geodata.formats import FORMATS

    assert list(options.FORMATS.choices) == list(FORMATS)
