"""What other libraries need beside our files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from geodata.cli.options import (
    PATH,
    PLACE,
    cache_folder,
    config_option,
    json_option,
    load_if_any,
    workers_option,
)
from geodata.cli.output import Bar, count, emit, short, size

if TYPE_CHECKING:
    from geodata.jobs.petastorm import EnvironmentReport


@click.group()
def petastorm() -> None:
    """Read Petastorm datasets, and let Petastorm read ours."""


@petastorm.command()
@click.option(
    "--dir",
    "folder",
    type=PATH,
    metavar="DIR",
    help="Where to make it; default: the user's cache.",
)
@click.option("--python", type=PLACE, metavar="PATH", help="Python 3.11 or 3.12; default: found.")
@json_option
def setup(folder: Path | None, python: str | None, as_json: bool) -> None:
    """Make the environment that Petastorm datasets are read in (350 MB, from PyPI)."""
    from geodata.jobs.petastorm import setup as run

    report = run(folder, python, cache=cache_folder())
    emit(report, as_json, _shown(report))


@petastorm.command()
@json_option
def status(as_json: bool) -> None:
    """Say whether there is such an environment; exit 1 if not."""
    from geodata.jobs.petastorm import status as run

    report = run(cache=cache_folder())
    emit(report, as_json, _shown(report))
    if not report.ready:
        raise click.exceptions.Exit(1)


@petastorm.command()
@click.argument("dataset", type=PLACE)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--columns", metavar="A,B,…", help="Only these; the key is `geodata_key`.")
@click.option("--decode-images", is_flag=True, help="Petastorm decodes images (1 or 3 channels).")
@config_option
@workers_option
@json_option
def export(
    dataset: str,
    folder: Path,
    columns: str | None,
    decode_images: bool,
    config_path: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Copy DATASET[@VERSION] into DIR as a Petastorm dataset, for its make_reader.

    The copy is yours: later erasures in the dataset do not reach it.
    """
    from geodata.jobs.petastormexport import export as run

    report = run(
        dataset,
        folder,
        config=load_if_any(config_path),
        columns=None if columns is None else columns.split(","),
        decode_images=decode_images,
        workers=workers,
        cache=cache_folder(),
        progress=Bar(),
    )
    denied = f"\n{report.denied:,} records may not be exported from here" if report.denied else ""
    text = (
        f"{report.dataset} {short(report.version)} · {report.records:,} records · "
        f"{size(report.bytes)} · {count(report.files, 'file')} → {report.folder}{denied}"
    )
    emit(report, as_json, text)


def _shown(report: EnvironmentReport) -> str:
    if not report.ready:
        return f"there is none at {report.folder}; make it: geodata petastorm setup"
    packages = " · ".join(f"{name} {version}" for name, version in report.packages.items())
    made = f"made in {report.seconds:.0f} s" if report.made else "ready"
    return f"{made}: {report.folder}\nPython {report.python} · {packages}"


ALL: list[click.Command] = [petastorm]
