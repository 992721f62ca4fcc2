"""What commands share: options, the config, and how an error is shown."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from geodata.errors import ConfigError, GeodataError

if TYPE_CHECKING:
    from geodata.config import GeodataConfig

Function = TypeVar("Function", bound=Callable[..., Any])

FORMATS = click.Choice(["parquet", "webdataset", "hdf5", "hdf5+gzip", "tfrecord"])
KINDS = click.Choice(
    [
        "jsonl",
        "csv",
        "parquet",
        "text",
        "images",
        "audio",
        "webdataset",
        "hdf5",
        "tfrecord",
        "arrow",
        "petastorm",
        "function",
    ]
)


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")(
        function
    )


def config_option(function: Function) -> Function:
    """Add --config."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Default: geodata.yaml here, if there is one.",
    )(function)


def workers_option(function: Function) -> Function:
    """Add --workers."""
    return click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="Processes; default: the cores."
    )(function)


def exif_option(function: Function) -> Function:
    """Add --exif."""
    return click.option(
        "--exif",
        type=click.Choice(["auto", "keep", "strip"]),
        default="auto",
        show_default=True,
        help="What cameras add to images; auto strips those of personal data.",
    )(function)


def load(path: Path | None) -> GeodataConfig:
    """Return the config of a command; GEODATA_REGION overrides `here`."""
    from geodata.config import DEFAULT_FILE, load_config

    region = os.environ.get("GEODATA_REGION")
    overrides = [f"here={json.dumps(region)}"] if region else []
    return load_config(path or Path(DEFAULT_FILE), overrides)


def load_if_any(path: Path | None) -> GeodataConfig | None:
    """Return the config of a command that can do without one."""
    from geodata.config import DEFAULT_FILE

    return load(path) if path is not None or Path(DEFAULT_FILE).exists() else None


def parse_bytes(text: str) -> int:
    """Return the bytes of a size argument."""
    from geodata.config import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def fail(error: GeodataError, as_json: bool) -> int:
    """Show an error in one line and return its exit code; with -v, also where it came from."""
    if error.__cause__ is not None:
        logging.getLogger("geodata").info("caused by", exc_info=error.__cause__)
    if as_json:
        click.echo(json.dumps(error.to_json(), ensure_ascii=False))
    click.echo(f"error: {error}", err=True)
    return error.exit_code
