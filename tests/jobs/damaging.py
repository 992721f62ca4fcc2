"""Ways to damage a file, and a command line that never ends in a traceback."""

import json
import os
import time

from click.testing import CliRunner
from editing_cases import files_of

from geodata.cli import cli
from geodata.errors import GeodataError


def age(folder, seconds=200_000):
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-20])


def garble(path):
    path.write_bytes(b"\xff\x00{[" * 40)


def empty(path):
    path.write_bytes(b"")


def lose(path):
    path.unlink()


def falsify(path):
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, "plan_digest": "0" * 64}))


DAMAGES = [truncate, garble, empty, lose]


def run(command):
    """Run a command line; return its exit code and all that it said."""
    found = CliRunner().invoke(cli, command.split())
    if isinstance(found.exception, GeodataError):
        return found.exception.exit_code, str(found.exception)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.output


def unharmed(before, root):
    """Return whether all files that were there are as they were."""
    return before.items() <= files_of(root).items()
