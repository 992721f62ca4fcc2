"""What the guides show is what happens: their files are written, their commands run in order."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from geodata.cli import cli
from geodata.cli.guides import GUIDES, TOPICS

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.(?:yaml|py))\n")
ROOT = str(Path(__file__).parents[1])


def run(line, cwd):
    """Run a command of a guide; return what it prints."""
    name, *arguments = shlex.split(line)
    module = {"geodata": ["-m", "geodata.cli"], "python": []}[name]
    done = subprocess.run(
        [sys.executable, *module, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def promised(told):
    """Return what is shown of a command's output, line by line."""
    return [line for line in told if line]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_guide_is_true(topic, tmp_path):
    count = 0
    for language, text in BLOCK.findall((GUIDES / f"{topic}.md").read_text(encoding="utf-8")):
        file = FILE.match(text)
        if file and language in ("yaml", "python"):
            (tmp_path / file[1]).write_text(text, encoding="utf-8")
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, *told = part.splitlines()
                shown = run(command, tmp_path).splitlines()
                assert set(promised(told)) <= set(shown), (command, shown)
                count += 1
    assert count >= 4


def test_topics_are_listed_and_printed():
    listed = CliRunner().invoke(cli, ["docs"]).output
    assert [line.split()[2] for line in listed.splitlines()] == list(TOPICS)
    assert {path.name for path in GUIDES.iterdir()} == {f"{topic}.md" for topic in TOPICS}
    printed = CliRunner().invoke(cli, ["docs", "start"]).output
    assert printed == (GUIDES / "start.md").read_text(encoding="utf-8")
    guides = json.loads(CliRunner().invoke(cli, ["docs", "--json"]).output)["guides"]
    assert set(guides) == set(TOPICS)


def test_a_guide_fits_a_terminal():
    for topic in TOPICS:
        lines = (GUIDES / f"{topic}.md").read_text(encoding="utf-8").splitlines()
        assert len(lines) < 150
        assert max(map(len, lines)) <= 108
