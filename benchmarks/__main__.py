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


BENCHMARKS = (convert, io, language)
MAKERS = (corpus, count_letters)
"""What makes the data of a benchmark, or of the package."""


@main.command("list")
def list_() -> None:
    """List the benchmarks."""
    for command in BENCHMARKS:
        click.echo(f"{command.name:12} {command.get_short_help_str(80)}")


for command in (*BENCHMARKS, *MAKERS):
    main.add_command(command)

if __name__ == "__main__":
    main()
