"""`geodata docs`: the guides that come with the package."""

from __future__ import annotations

from importlib.resources import files

import click

from geodata.cli.output import print_json

GUIDES = files("geodata") / "guides"
TOPICS = ("start", "convert", "editing", "formats", "regions", "loading", "training")


@click.command()
@click.argument("topic", type=click.Choice(TOPICS), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def docs(topic: str | None, as_json: bool) -> None:
    """Print the guide to TOPIC; without one, list the guides."""
    texts = {name: _read(name) for name in ([topic] if topic else TOPICS)}
    if as_json:
        print_json({"schema_version": 1, "guides": texts})
    elif topic:
        click.echo(texts[topic], nl=False)
    else:
        for name, text in texts.items():
            click.echo(f"geodata docs {name:10} {text.partition(chr(10))[0].removeprefix('# ')}")


def _read(topic: str) -> str:
    return (GUIDES / f"{topic}.md").read_text(encoding="utf-8")
