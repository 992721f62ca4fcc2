"""The `geodata` command: parse, load the config, call one job, print.

Heavy packages are imported by the jobs, never by the command line itself, so that help is instant.
Results go to stdout (`--json`: one object at the end), everything else to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from types import FrameType

import click

from geodata import __version__
from geodata.cli import commands, converting, editing, foreign, versions
from geodata.cli.options import fail
from geodata.errors import INTERRUPTED, STOPPED, ConfigError, GeodataError, StoreError

TEMPLATE = "%(levelname)s %(name)s: %(message)s"


class _Stopped(BaseException):
    """SIGTERM arrived."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raise once more, a moment later, an interrupt that fell into a destructor and was dropped."""
    kind = dropped.exc_type
    if not issubclass(kind, (_Stopped, KeyboardInterrupt)):
        sys.__unraisablehook__(dropped)
        return

    def raise_it(_number: int, _frame: FrameType | None) -> None:
        raise kind

    signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="geodata")
@click.option("-v", "--verbose", count=True, help="Say more; twice for everything.")
@click.option("--log-json", is_flag=True, help="Log as JSON lines.")
def cli(verbose: int, log_json: bool) -> None:
    """Convert raw corpora, partition them by region under policy, and look after the result."""
    _configure_logging(verbose, log_json)


for command in (
    *converting.ALL,
    *commands.ALL,
    *editing.ALL,
    *versions.ALL,
    *foreign.ALL,
):
    cli.add_command(command)


def _configure_logging(verbose: int, log_json: bool) -> None:
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if log_json else logging.Formatter(TEMPLATE))
    logging.basicConfig(level=level, handlers=[handler])


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's level, logger and message as JSON."""
        line = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        return json.dumps(line)


def _install_fault() -> None:
    """Let a test end this process at its n-th durable step (GEODATA_FAULT=kill:n)."""
    kind, _, count = os.environ.get("GEODATA_FAULT", "").partition(":")
    if kind == "kill" and count.isdecimal():
        from geodata.durable import kill_at

        kill_at(int(count))


def main() -> None:
    """Run the command line and exit with its code."""
    _install_fault()
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = _raise_again
    as_json = "--json" in sys.argv
    try:
        code = cli.main(prog_name="geodata", standalone_mode=False) or 0
    except GeodataError as error:
        code = fail(error, as_json)
    except click.ClickException as error:
        code = _misused(error, as_json)
    except (click.Abort, KeyboardInterrupt):
        click.echo("\ninterrupted; run the same command again to go on", err=True)
        code = _ended("Interrupted", "interrupted", INTERRUPTED, as_json)
    except _Stopped:
        click.echo("stopped; run the same command again to go on", err=True)
        code = _ended("Stopped", "stopped on notice", STOPPED, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        code = _failed(error, as_json)
    except Exception as error:
        _ended("Internal", f"{type(error).__name__}: {error}", 1, as_json)
        raise
    sys.exit(code)


def _misused(error: click.ClickException, as_json: bool) -> int:
    """Say in one line what is wrong with the arguments, and return the exit code."""
    message = " ".join(error.format_message().split())
    if message.startswith("Usage:"):  # no command was named: this is the help
        error.show()
        return _ended("Usage", "no command", ConfigError.exit_code, as_json)
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "geodata"
    click.echo(f"error: {ConfigError(message, hint=f'See {command} --help')}", err=True)
    return _ended("Usage", message, ConfigError.exit_code, as_json)


def _failed(error: OSError, as_json: bool) -> int:
    """Say in one line what the machine refused, and return the exit code."""
    file = error.filename if isinstance(error.filename, str) else None
    shown = StoreError(error.strerror or str(error) or type(error).__name__, file=file)
    click.echo(f"error: {shown}", err=True)
    return _ended("Environment", str(shown), shown.exit_code, as_json)


def _ended(kind: str, message: str, code: int, as_json: bool) -> int:
    """Print the one JSON object of a command that did not finish; return its exit code."""
    if as_json:
        click.echo(json.dumps({"error": kind, "message": message, "hint": None}))
    return code
