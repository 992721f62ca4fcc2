"""From raw corpora to datasets: `convert`, `append`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geodata.cli.options import (
    FORMATS,
    KINDS,
    Function,
    config_option,
    json_option,
    load_if_any,
    parse_bytes,
    workers_option,
)
from geodata.cli.output import Bar, count, emit, here, short, size
from geodata.errors import ConfigError

if TYPE_CHECKING:
    from geodata.jobs.append import AppendReport
    from geodata.jobs.convert import ConvertReport
    from geodata.prepare import Preparing
    from geodata.sources import Reading


SHOWN = 12
"""Columns that are named in a summary."""


def _several(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator of several options, in their order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_SOURCE = _several(
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
    click.option("--table", metavar="NAME", help="File of the source whose rows name media files."),
    click.option("--file-column", metavar="NAME", help="Its column that names them."),
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

_PREPARING = _several(
    click.option("--verify-images", is_flag=True, help="Decode every image, reject what cannot."),
    click.option("--max-side", type=click.IntRange(1), metavar="PIXELS", help="Shrink images."),
    click.option("--encode", type=click.Choice(["jpeg", "png", "webp"]), help="Write images anew."),
    click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True),
    click.option("--strip-exif", is_flag=True, help="Drop what cameras and editors add."),
    click.option("--tokenizer", type=click.Path(path_type=Path), help="Add the column `tokens`."),
    click.option("--text-column", metavar="NAME", help="Column to make tokens of."),
    click.option("--rate", type=click.IntRange(1), metavar="HZ", help="Resample audio."),
    click.option("--mono", is_flag=True, help="Mix audio down to one channel."),
    click.option(
        "--schema",
        "schema_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="YAML or JSON that maps columns to Arrow types.",
    ),
)

_RUNNING = _several(
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip", "quarantine"]),
        default="fail",
        show_default=True,
        help="What becomes of a bad record.",
    ),
    click.option(
        "--max-errors", type=click.IntRange(0), metavar="N", help="End after more than N."
    ),
    click.option("--dedupe", is_flag=True, help="Leave out records equal to one before."),
    click.option(
        "--restart",
        is_flag=True,
        help="Accept a source that changed since; if it did not, start over.",
    ),
    click.option("--executor", type=click.Choice(["local", "ray"]), default="local"),
    click.option(
        "--ray-address", metavar="ADDRESS", help="Of a Ray cluster; default: one of its own."
    ),
)


def reading_of(options: dict[str, Any]) -> Reading:
    """Take the options of a source out of a command's, and return them."""
    from geodata.sources import Reading

    columns = options.pop("columns")
    return Reading(
        encoding=options.pop("encoding"),
        header=not options.pop("no_header"),
        delimiter=_unescaped(options.pop("delimiter")),
        quotes=not options.pop("no_quotes"),
        columns=tuple(columns.split(",")) if columns else (),
        table=options.pop("table"),
        file_column=options.pop("file_column"),
        parts=options.pop("parts"),
    )


def _unescaped(delimiter: str | None) -> str | None:
    return "\t" if delimiter == "\\t" else delimiter


def preparing_of(options: dict[str, Any]) -> Preparing:
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
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"the schema cannot be read: {error}", file=str(path)) from error
    if not isinstance(found, dict) or not all(isinstance(kind, str) for kind in found.values()):
        raise ConfigError("a schema maps columns to types", file=str(path), hint="id: int64")
    return tuple((str(name), kind) for name, kind in found.items())


@click.command()
@click.argument("source")
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--format", type=FORMATS, default="parquet", show_default=True)
@_SOURCE
@_PREPARING
@_RUNNING
@click.option("--shard-size", default="64MiB", show_default=True, metavar="SIZE")
@click.option("--replace", is_flag=True, help="Let this source follow what is at DEST.")
@workers_option
@json_option
def convert(source: str, dest: Path, shard_size: str, as_json: bool, **options: Any) -> None:
    """Convert the raw corpus SOURCE into a staging dataset at DEST.

    SOURCE is a file, a folder, or module:function, a function of yours that yields dicts. Run again
    after an interruption, it goes on where it stopped.
    """
    from geodata.jobs.convert import convert as run

    report = run(
        source,
        dest,
        reading=reading_of(options),
        preparing=preparing_of(options),
        shard_size=parse_bytes(shard_size),
        progress=Bar(),
        **options,
    )
    emit(report, as_json, _converted(report))


@click.command()
@click.argument("source")
@click.argument("dataset")
@_SOURCE
@_PREPARING
@_RUNNING
@click.option("--shard-size", metavar="SIZE", help="Default: that of convert, or of shard.")
@click.option(
    "--staging",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where a raw corpus is converted on its way into a classified dataset.",
)
@config_option
@workers_option
@json_option
def append(
    source: str,
    dataset: str,
    shard_size: str | None,
    config_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the records of SOURCE to DATASET, as a new version of it.

    Of a source that it has already, only files that were added since are taken. SOURCE is what
    convert takes; for a classified DATASET also a staging dataset.
    """
    from geodata.jobs.append import append as run

    report = run(
        source,
        dataset,
        config=load_if_any(config_path),
        reading=reading_of(options),
        preparing=preparing_of(options),
        shard_size=parse_bytes(shard_size) if shard_size else None,
        progress=Bar(),
        **options,
    )
    emit(report, as_json, _appended(report))


def _appended(report: AppendReport) -> str:
    name, version = Path(report.source).name, short(report.version)
    if report.unchanged:
        return f"nothing to do: {version} of {report.dest} holds {name} as it is"
    lines = [
        f"{name} · {report.kind} · {report.records_in:,} records · {size(report.bytes_in)} → "
        f"{size(report.bytes_out)} · {count(report.shards, 'shard')}",
        f"{_balance(report)} → {here(report.dest)} {version}, "
        f"{count(report.records, 'record')} in all",
        *(f"  {region}: {count(n, 'record')}" for region, n in report.regions.items()),
        *_faults(report),
    ]
    if report.unchecked:
        lines.append(f"  keys of {count(report.unchecked, 'record')} may not be compared here")
    return "\n".join(lines)


def _balance(report: ConvertReport | AppendReport) -> str:
    """Return what became of all records."""
    rejected = f" + {report.rejected:,} rejected" if report.rejected else ""
    repeated = f" + {count(report.duplicates, 'duplicate')}" if report.duplicates else ""
    return f"{report.records_in:,} in = {report.records_out:,} out{rejected}{repeated}"


def _faults(report: ConvertReport | AppendReport) -> list[str]:
    """Return what was rejected, by reason, and which files were left alone."""
    lines = [f"  rejected {n:,}: {reason}" for reason, n in report.reasons.items()]
    if report.quarantine:
        lines.append(f"  set aside in {report.quarantine}")
    if report.ignored:
        kinds = ", ".join(f"{n:,} {suffix}" for suffix, n in report.ignored.items())
        lines.append(f"  ignored files: {kinds}")
    return [*lines, *_encodings(report.encodings)]


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
