"""How a command ends: one object on stdout, one line on stderr, the right exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

GEODATA = [sys.executable, "-m", "geodata.cli"]

COMMAND = """
import os, signal, time
import click
from geodata.cli import cli, main
from geodata.cli.output import emit

class Report:
    def to_json(self):
        return {"done": True}

def arrives(name):
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)

@cli.command("end")
@click.option("--json", "as_json", is_flag=True)
def end(as_json):
BODY

main()
"""

LATE = """
    emit(Report(), as_json, "")
    arrives("{name}")
"""
SWALLOWED = """
    try:
        arrives("{name}")
    except BaseException:
        raise AttributeError("partially initialized module")
"""
AT_THE_EXIT = """
    import atexit
    atexit.register(lambda: print(signal.getsignal(signal.{name})))
"""

BY_SIGNAL = pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 75)])


def ended(tmp_path, body):
    script = tmp_path / "command.py"
    script.write_text(COMMAND.replace("BODY", body))
    return subprocess.run(
        [sys.executable, script, "end", "--json"], check=False, capture_output=True, text=True
    )


@BY_SIGNAL
def test_an_interrupt_after_the_report_adds_no_second_object(tmp_path, name, code):
    done = ended(tmp_path, LATE.format(name=name))
    assert (json.loads(done.stdout), done.returncode) == ({"done": True}, code)
    assert "Traceback" not in done.stderr


@BY_SIGNAL
def test_an_interrupt_that_a_library_made_an_error_of_is_still_one(tmp_path, name, code):
    done = ended(tmp_path, SWALLOWED.format(name=name))
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["error"] in ("Interrupted", "Stopped")
    assert "run the same command again" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_process_ends_changes_nothing(tmp_path, name):
    done = ended(tmp_path, AT_THE_EXIT.format(name=name))
    assert (done.stdout, done.returncode, done.stderr) == (f"{signal.SIG_IGN}\n", 0, "")


@pytest.mark.parametrize(("command", "code"), [("docs", 4), ("history none", 2)])
def test_where_stdout_is_full_the_error_is_one_line(tmp_path, command, code):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*GEODATA, *command.split(), "--json"],
            check=False,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("place", [">/dev/full", ">&-"])
def test_the_exit_code_does_not_depend_on_stdout(tmp_path, place, unbuffered):
    done = subprocess.run(
        ["sh", "-c", f'"$@" {place}', "sh", *GEODATA, "history", "none", "--json"],
        check=False,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert done.stderr == "error: no dataset 'none'. Give its folder, or its name\n"
    assert done.returncode == 2


def convert(tmp_path, *arguments, **environment):
    """Return what a conversion printed, as bytes."""
    done = subprocess.run(
        [*GEODATA, "convert", *arguments, "raw"],
        check=False,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_valid_whatever_stdout_is_encoded_in(tmp_path, encoding):
    (tmp_path / "a.jsonl").write_text('{"ü日😀": 1}\n', encoding="utf-8")
    out = convert(tmp_path, "a.jsonl", "--json", PYTHONIOENCODING=encoding).stdout
    assert json.loads(out)["schema"][-1]["name"] == "ü日😀"
    assert b"1 in = 1 out" in convert(tmp_path, "a.jsonl", PYTHONIOENCODING=encoding).stdout


def test_json_is_valid_where_a_name_is_no_text(tmp_path):
    name = os.fsdecode(b"a\xff.txt")
    (tmp_path / name).write_text("x")
    refused = convert(tmp_path, name, "--json")
    assert (json.loads(refused.stdout)["file"], refused.returncode) == (name, 2)
    done = convert(tmp_path, name, "--source-id", "a", "--json")
    assert (json.loads(done.stdout)["records_out"], done.returncode) == (1, 0)
    assert b"a\\xff.txt" in convert(tmp_path, name, "--source-id", "a").stdout
