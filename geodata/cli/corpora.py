"""The options of a raw corpus: what it is, what becomes of its records, how the work is done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geodata.cli.options import (
    KINDS,
    NAME,
    PATH,
    PLACE,
    cache_folder,
    parse_bytes,
    several,
    workers_option,
)
from geodata.cli.output import Bar
from geodata.errors import ConfigError

if TYPE_CHECKING:
    from geodata.prepare import Preparing
    from geodata.sources import Reading

_SOURCE = several(
    click.option("--kind", type=KINDS, help="What the source is; default: recognised."),
    click.option(
        "--source-id", metavar="NAME", help="Starts every key; default: the source's name."
    ),
    click.option(
        "--encoding",
        default="utf-8",
        show_default=True,
        metavar="NAME",
        help="Of text that is not UTF-8; `detect` recognises it and says how surely.",
    ),
    click.option("--delimiter", metavar="CHARACTER", help="Of a CSV; default: recognised."),
    click.option("--no-quotes", is_flag=True, help="A quote in a CSV is a character like others."),
    click.option("--no-header", is_flag=True, help="The first row of a CSV is a record."),
    click.option("--columns", metavar="A,B,…", help="Names of a CSV's columns, with --no-header."),
    click.option(
        "--table",
        type=PLACE,
        metavar="NAME",
        help="File of the source whose rows name media files.",
    ),
    click.option("--file-column", type=NAME, metavar="NAME", help="Its column that names them."),
    click.option(
        "--parts", type=click.IntRange(1), default=1, help="Cuts a function's work into so many."
    ),
    click.option(
        "--provenance",
        is_flag=False,
        flag_value="origin",
        metavar="[COLUMN]",
        help="Keep file and row of each record in a column [origin].",
    ),
)

_PREPARING = several(
    click.option("--verify-images", is_flag=True, help="Decode every image, reject what cannot."),
    click.option("--max-side", type=click.IntRange(1), metavar="PIXELS", help="Shrink images."),
    click.option("--encode", type=click.Choice(["jpeg", "png", "webp"]), help="Write images anew."),
    click.option(
        "--quality",
        type=click.IntRange(1, 100),
        show_default="90",
        help="Of JPEG and WebP written anew.",
    ),
    click.option("--strip-exif", is_flag=True, help="Drop what cameras and editors add."),
    click.option("--tokenizer", type=PATH, metavar="FILE", help="Add the column `tokens`."),
    click.option("--text-column", type=NAME, metavar="NAME", help="Column to make tokens of."),
    click.option("--rate", type=click.IntRange(1), metavar="HZ", help="Resample audio."),
    click.option("--mono", is_flag=True, help="Mix audio down to one channel."),
    click.option(
        "--schema",
        "schema_file",
        type=PATH,
        metavar="FILE",
        help="YAML or JSON that maps columns to Arrow types.",
    ),
)

_RUNNING = several(
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip", "quarantine"]),
        default="fail",
        show_default=True,
        help="What becomes of a bad record.",
    ),
    click.option(
        "--max-errors",
        type=click.IntRange(0),
        metavar="N",
        help="End after more than N; with skip or quarantine.",
    ),
    click.option("--dedupe", is_flag=True, help="Leave out records equal to one before."),
    click.option(
        "--restart",
        is_flag=True,
        help="Accept a source that changed since; if it did not, start over.",
    ),
    click.option(
        "--shard-size",
        metavar="SIZE",
        show_default="64MiB, of a classified dataset 256MiB",
        help="About how large shards become.",
    ),
    click.option("--executor", type=click.Choice(["local", "ray"]), default="local"),
    click.option(
        "--ray-address",
        type=NAME,
        metavar="ADDRESS",
        help="Of a Ray cluster; default: one of its own.",
    ),
    workers_option,
)

conversion_options = several(_SOURCE, _PREPARING, _RUNNING)
"""Add all options of a conversion."""


def keywords_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command as the keywords of its job."""
    reading, preparing = _reading(options), _preparing(options)
    shard_size = options.pop("shard_size")
    return {
        **options,
        "reading": reading,
        "preparing": preparing,
        "shard_size": None if shard_size is None else parse_bytes(shard_size),
        "progress": Bar(),
    }


def _reading(options: dict[str, Any]) -> Reading:
    """Take the options of reading out of a command's, and return them."""
    from geodata.sources import Reading

    columns = options.pop("columns")
    return Reading(
        encoding=options.pop("encoding"),
        header=not options.pop("no_header"),
        delimiter=_unescaped(options.pop("delimiter")),
        quotes=not options.pop("no_quotes"),
        columns=() if columns is None else tuple(columns.split(",")),
        table=options.pop("table"),
        file_column=options.pop("file_column"),
        parts=options.pop("parts"),
        cache=cache_folder(),
    )


def _unescaped(delimiter: str | None) -> str | None:
    return "\t" if delimiter == "\\t" else delimiter


def _preparing(options: dict[str, Any]) -> Preparing:
    """Take the options of preparation out of a command's, and return them."""
    from geodata.prepare import Preparing

    tokenizer, schema = options.pop("tokenizer"), options.pop("schema_file")
    return Preparing(
        verify=options.pop("verify_images"),
        max_side=options.pop("max_side"),
        encode=options.pop("encode"),
        quality=options.pop("quality"),
        exif="strip" if options.pop("strip_exif") else "keep",
        tokenizer=str(tokenizer.absolute()) if tokenizer else None,
        text_column=options.pop("text_column"),
        rate=options.pop("rate"),
        mono=options.pop("mono"),
        types=_types(schema) if schema else (),
    )


def _types(path: Path) -> tuple[tuple[str, str], ...]:
    from geodata.config import parse_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the schema cannot be read: {why}", file=str(path)) from error
    found = parse_yaml(text, str(path))
    if not isinstance(found, dict) or not all(isinstance(kind, str) for kind in found.values()):
        raise ConfigError(
            "a schema maps columns to types", file=str(path), hint="Write lines like `id: int64`"
        )
    return tuple((str(name), kind) for name, kind in found.items())
