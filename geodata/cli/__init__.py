"""The `geodata` command: parse, load the config, call one job, print.

Heavy packages are imported by the jobs, never by the command line itself, so that help is instant.
Results go to stdout (`--json`: one object at the end), everything else to stderr.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

import click

from geodata import __version__
from geodata.cli import commands, converting, editing, foreign, versions
from geodata.cli.options import fail
from geodata.cli.output import has_printed_json, print_json
from geodata.errors import INTERRUPTED, STOPPED, ConfigError, GeodataError, StoreError

TEMPLATE = "%(levelname)s %(name)s: %(message)s"


class _Stopped(BaseException):
    """SIGTERM arrived."""


class _Notices:
    """SIGINT and SIGTERM, raised as they arrive; `raised` is the last."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        signal.signal(signal.SIGTERM, self._raise)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._raise)
        sys.unraisablehook = self._raise_again

    def ignore(self) -> None:
        """Let the signals do nothing from now on, nor one that was to be raised once more."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        self.raised = KeyboardInterrupt() if number == signal.SIGINT else _Stopped()
        raise self.raised

    def _raise_again(self, dropped: sys.UnraisableHookArgs) -> None:
        """Raise once more, a moment later, what fell into a destructor and was dropped."""
        if not issubclass(dropped.exc_type, (_Stopped, KeyboardInterrupt)):
            sys.__unraisablehook__(dropped)
            return
        signal.signal(signal.SIGALRM, self._raise_last)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    def _raise_last(self, _number: int, _frame: FrameType | None) -> None:
        if self.raised is not None:
            raise self.raised


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
    """Run the command line and exit with its code.

    A stop or an interrupt is what ended the command, whatever error a library makes of it.
    """
    _install_fault()
    notices = _Notices()
    _let_print_all()
    as_json = "--json" in sys.argv
    try:
        code = cli.main(prog_name="geodata", standalone_mode=False) or 0
        notices.ignore()
    except BaseException as error:
        notices.ignore()
        code = _told(notices.raised or error, as_json and not has_printed_json())
        _let_go_of_stdout()
    sys.exit(code)


def _let_go_of_stdout() -> None:
    """Let nothing be left in stdout that cannot be written, which would change the exit code."""
    try:
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _let_print_all() -> None:
    """Let text be printed that the encoding of stdout lacks, with escapes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _told(error: BaseException, as_json: bool) -> int:
    """Say in one line what ended the command, and return the exit code; raise what is a bug."""
    match error:
        case GeodataError():
            return fail(error, as_json)
        case click.ClickException():
            return _misused(error, as_json)
        case click.Abort() | KeyboardInterrupt():
            click.echo("\ninterrupted; run the same command again to go on", err=True)
            return _ended("Interrupted", "interrupted", INTERRUPTED, as_json)
        case _Stopped():
            click.echo("stopped; run the same command again to go on", err=True)
            return _ended("Stopped", "stopped on notice", STOPPED, as_json)
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError():
            return _failed(error, as_json)
        case Exception():
            _ended("Internal", f"{type(error).__name__}: {error}", 1, as_json)
    raise error


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
        with suppress(OSError):
            print_json({"error": kind, "message": message, "hint": None})
    return code
