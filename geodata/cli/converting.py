"""From raw corpora to datasets: `convert`, `append`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geodata.cli.corpora import conversion_options, keywords_of
from geodata.cli.options import (
    FORMATS,
    PATH,
    PLACE,
    config_option,
    json_option,
    load_if_any,
)
from geodata.cli.output import count, emit, here, prints_aside, short, size

if TYPE_CHECKING:
    from geodata.jobs.append import AppendReport
    from geodata.jobs.convert import ConvertReport


NO_SUFFIX = "no suffix"

SHOWN = 12
"""Columns that are named in a summary."""


@click.command()
@click.argument("source", type=PLACE)
@click.argument("dest", type=PATH)
@click.option("--format", type=FORMATS, default="parquet", show_default=True)
@click.option("--replace", is_flag=True, help="Let this source follow what is at DEST.")
@conversion_options
@json_option
def convert(source: str, dest: Path, as_json: bool, **options: Any) -> None:
    """Convert the raw corpus SOURCE into a staging dataset at DEST.

    SOURCE is a file, a folder, or module:function, a function of yours that yields dicts. Run again
    after an interruption, it goes on where it stopped.
    """
    from geodata.jobs.convert import convert as run

    with prints_aside():
        report = run(source, dest, **keywords_of(options))
    emit(report, as_json, _converted(report))


@click.command()
@click.argument("source", type=PLACE)
@click.argument("dataset", type=PLACE)
@conversion_options
@click.option(
    "--staging",
    type=PATH,
    metavar="DIR",
    help="Where a raw corpus is converted on its way into a classified dataset.",
)
@config_option
@json_option
def append(
    source: str, dataset: str, config_path: Path | None, as_json: bool, **options: Any
) -> None:
    """Add the records of SOURCE to DATASET, as a new version of it.

    Of a source that it has already, only files that were added since are taken; --restart accepts
    that others are gone, whose records stay. SOURCE is what convert takes; for a classified DATASET
    also a staging dataset.
    """
    from geodata.jobs.append import append as run

    config = load_if_any(config_path)
    with prints_aside():
        report = run(source, dataset, config=config, **keywords_of(options))
    emit(report, as_json, _appended(report))


def _appended(report: AppendReport) -> str:
    name, version = Path(report.source).name, short(report.version)
    if report.unchanged:
        lines = [f"nothing to do: {version} of {report.dest} holds {name} as it is"]
        return "\n".join([*lines, *_removed(report)])
    lines = [
        f"{name} · {report.kind} · {report.records_in:,} records · {size(report.bytes_in)} → "
        f"{size(report.bytes_out)} · {count(report.shards, 'shard')}",
        f"{_balance(report)} → {here(report.dest)} {version}, "
        f"{count(report.records, 'record')} in all",
        *(f"  {region}: {count(n, 'record')}" for region, n in report.regions.items()),
        *_faults(report),
    ]
    lines += _removed(report)
    if report.unchecked:
        lines.append(f"  not compared with {count(report.unchecked, 'record')} not to be read here")
    return "\n".join(lines)


def _removed(report: AppendReport) -> list[str]:
    """Return how many files of the source are gone, whose records stay."""
    if not report.removed:
        return []
    return [f"  {count(report.removed, 'file')} no longer in the source: their records stay"]


def _balance(report: ConvertReport | AppendReport) -> str:
    """Return what became of all records."""
    rejected = f" + {report.rejected:,} rejected" if report.rejected else ""
    repeated = f" + {count(report.duplicates, 'duplicate')}" if report.duplicates else ""
    return f"{report.records_in:,} in = {report.records_out:,} out{rejected}{repeated}"


def _faults(report: ConvertReport | AppendReport) -> list[str]:
    """Return what was rejected, by reason, and what was ignored, by what it is."""
    lines = [f"  rejected {n:,}: {reason}" for reason, n in report.reasons.items()]
    if report.quarantine:
        lines.append(f"  set aside in {report.quarantine}")
    return [*lines, *_ignored(report.ignored), *_encodings(report.encodings)]


def _ignored(found: dict[str, int]) -> list[str]:
    """Return what was ignored: files of other kinds by suffix, then all else by what it is."""
    files = {what: n for what, n in found.items() if what.startswith(".") or what == NO_SUFFIX}
    suffixes = ", ".join(f"{n:,} {what}" for what, n in files.items())
    lines = [f"  ignored {count(sum(files.values()), 'file')}: {suffixes}"] if files else []
    rest = {what: n for what, n in found.items() if what not in files}
    return lines + [f"  ignored {n:,}: {what}" for what, n in rest.items()]


def _encodings(found: dict[str, Any]) -> list[str]:
    """Return the encodings recognised, and in which files, the least sure first."""
    counts = found.get("counts", {}).items()
    lines = [f"  encoding {name}: {count(n, 'file')}" for name, n in counts]
    files = found.get("files", {}).items()
    lines += [f"    {file}: {name}, confidence {sure:.2f}" for file, (name, sure) in files]
    return lines


def _converted(report: ConvertReport) -> str:
    names = [f["name"] for f in report.schema if not f["name"].startswith("__")]
    fields = ", ".join(names[:SHOWN]) + (f", … ({len(names)} columns)" if names[SHOWN:] else "")
    rate = f"{report.records_in / report.seconds:,.0f}/s" if report.seconds else ""
    lines = [
        f"{Path(report.source).name} · {report.kind} · {report.records_in:,} records · {fields}",
        f"{rate} · {size(report.bytes_in)} → {size(report.bytes_out)} · "
        f"{count(report.shards, 'shard')}",
        f"{_balance(report)} → {here(report.dest)} "
        f"{short(report.version)} (staging: unclassified, cannot be pushed)",
        *_faults(report),
    ]
    if report.unchanged:
        lines[1] = f"nothing to do: {short(report.version)} holds this source as it is"
    return "\n".join(lines)


ALL = [convert, append]
