"""What commands share: options, the environment, the config, and how an error is shown."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from geodata.cli.output import print_json
from geodata.errors import ConfigError, GeodataError

if TYPE_CHECKING:
    from geodata.config import GeodataConfig

Function = TypeVar("Function", bound=Callable[..., Any])


class Given(click.Path):
    """A path or the name of a dataset, as it was typed or as `path_type`; not an empty one."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """Return the value; an empty path would mean the current folder."""
        if value == "":
            self.fail("it is empty; `.` is the current folder", param, ctx)
        return super().convert(value, param, ctx)


class Named(click.types.StringParamType):
    """A name that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


PLACE, PATH, NAME = Given(), Given(path_type=Path), Named()

FORMATS = click.Choice(
    [
        "parquet",
        "webdataset",
        "webdataset+gzip",
        "webdataset+xz",
        "hdf5",
        "hdf5+gzip",
        "tfrecord",
    ]
)
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


def several(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator of several options, in their order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


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
        type=PATH,
        metavar="FILE",
        help="Default: geodata.yaml here, if there is one.",
    )(function)


def workers_option(function: Function) -> Function:
    """Add --workers."""
    return click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="Processes; default: the cores."
    )(function)


def dry_run_option(function: Function) -> Function:
    """Add --dry-run."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done.")(function)


def exif_option(function: Function) -> Function:
    """Add --exif."""
    return click.option(
        "--exif",
        type=click.Choice(["auto", "keep", "strip"]),
        default="auto",
        show_default=True,
        help="What cameras add to images; auto strips those of personal data.",
    )(function)


def cache_folder() -> Path | None:
    """Return the user's folder for caches, if the environment names one."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if named.startswith("/") else None


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
    click.echo(f"error: {error}", err=True)
    if as_json:
        with suppress(OSError):
            print_json(error.to_json())
    return error.exit_code
