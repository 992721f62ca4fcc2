"""`python -m benchmarks NAME`."""

from __future__ import annotations

import click

from benchmarks.convert import convert
from benchmarks.corpus import corpus
from benchmarks.io import io
from benchmarks.language import language
from benchmarks.letters import count_letters


@click.group()
def main() -> None:
    """Measure, and say against what."""


@main.command("list")
def list_() -> None:
    """List the benchmarks."""
    for name, command in sorted(main.commands.items()):
        click.echo(f"{name:12} {command.get_short_help_str(80)}")


for command in (convert, corpus, io, language, count_letters):
    main.add_command(command)

if __name__ == "__main__":
    main()
