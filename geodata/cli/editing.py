"""Changes of a dataset that make a new version of it: `add-column`, `drop`, `compact`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geodata.cli.options import (
    NAME,
    PATH,
    PLACE,
    config_option,
    dry_run_option,
    exif_option,
    json_option,
    load_if_any,
    parse_bytes,
    workers_option,
)
from geodata.cli.output import Bar, count, emit, prints_aside, short, size, table
from geodata.tags import STAGING

if TYPE_CHECKING:
    from geodata.config import Condition
    from geodata.jobs.addcolumn import AddColumnReport
    from geodata.jobs.compact import CompactReport
    from geodata.jobs.drop import DropReport
    from geodata.jobs.editreport import EditReport


@click.command("add-column")
@click.argument("dataset", type=PLACE)
@click.argument("name")
@click.option(
    "--function",
    type=NAME,
    metavar="MODULE:FUNCTION",
    help="Makes the values of a pyarrow.RecordBatch.",
)
@click.option("--join", type=PATH, metavar="TABLE", help="Holds the values.")
@click.option("--on", type=NAME, metavar="COLUMN", help="The table's column of keys.")
@click.option(
    "--column", type=NAME, metavar="COLUMN", help="The table's column of values; default: NAME."
)
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    help="An Arrow type, image, audio or text; default: that of the values.",
)
@click.option("--replace", is_flag=True, help="Make a column anew that is there already.")
@exif_option
@dry_run_option
@config_option
@workers_option
@json_option
def add_column(
    dataset: str,
    name: str,
    kind: str | None,
    config_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the column NAME to DATASET, as one file beside each shard, which stays as it is.

    Either MODULE:FUNCTION is given the records of a shard some MiB at a time, as a
    pyarrow.RecordBatch with all columns, and returns as many values: an Arrow array, a list or a
    numpy array. Or each record gets the value of the row of TABLE (CSV, JSON lines, Parquet) that
    has its key: --on names the table's column, which is compared with the records' column of that
    name, else with __key__. Records without a row get null. The order of records, and what a loader
    has cached, stay as they were. Run again after an append, it fills the shards that came since.

    A value counts as its shard's tag says: join nothing personal with what is not.
    """
    from geodata.jobs.addcolumn import add_column as run

    config = load_if_any(config_path)
    with prints_aside():
        report = run(dataset, name, type=kind, config=config, progress=Bar(), **options)
    emit(report, as_json, _added(report, options["join"] is not None))


def _added(report: AddColumnReport, tabled: bool) -> str:
    lines = []
    if report.missing:
        lines.append(f"{count(report.missing, 'record')} without a row in the table: null")
    if report.stripped:
        lines.append(
            f"{count(report.stripped, 'image')} freed of what cameras add (--exif keep keeps it)"
        )
    if report.free and tabled:
        lines.append(
            f"{count(report.free, 'record')} tagged as not personal may be read in every region, "
            f"and so may their {report.column}: was nothing personal in the table?"
        )
    if report.kept:
        lines.append(f"{count(report.kept, 'shard')} had the column already")
    column = f"{report.column} ({report.type}) to"
    return _told(report, f"would add {column}" if report.dry_run else f"added {column}", lines)


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="May be given several times.")
@click.option(
    "--keys",
    "keys_file",
    type=PATH,
    metavar="FILE",
    help="Keys, one a line.",
)
@click.option("--where", metavar="CONDITION", help="Such as '{field: lang, equals: de}'.")
@dry_run_option
@config_option
@workers_option
@json_option
def drop(
    dataset: str,
    keys: tuple[str, ...],
    keys_file: Path | None,
    where: str | None,
    config_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Leave records out of the next version of DATASET; exit 1 if it has none of the keys.

    CONDITION is one as in the config: {field: F, equals: V}, {field: F, in: [V, …]}, {field: F,
    matches: PATTERN}, {field: F, present: false}. Only shards that hold such records are written
    anew.

    This is an edit, no erasure: older versions hold the records still, until `geodata gc` removes
    them. To erase a person's records from all of them there is `geodata erase`.
    """
    from geodata.jobs.drop import drop as run
    from geodata.jobs.drop import read_keys

    wanted = [*keys, *(read_keys(keys_file) if keys_file else ())]
    condition = _condition(where) if where is not None else None
    config = load_if_any(config_path)
    report = run(dataset, keys=wanted, where=condition, config=config, progress=Bar(), **options)
    emit(report, as_json, _dropped(report))
    if wanted and not report.records:
        raise click.exceptions.Exit(1)


def _condition(text: str) -> Condition:
    from geodata.config import Condition, parse_flow

    return parse_flow(Condition, text, "--where")


def _dropped(report: DropReport) -> str:
    lines = []
    if report.missing_keys:
        named = ", ".join(report.missing)
        more = ", …" if report.missing_keys > len(report.missing) else ""
        lines.append(f"{count(report.missing_keys, 'key')} not found: {named}{more}")
    return _told(report, "would drop" if report.dry_run else "dropped", lines)


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--shard-size", metavar="SIZE", help="Default: 256MiB, in a staging dataset 64MiB.")
@dry_run_option
@config_option
@workers_option
@json_option
def compact(
    dataset: str,
    shard_size: str | None,
    config_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Merge the small shards of DATASET, as appends and drops leave them, into a new version.

    Shards under half of SIZE that have one tag and region become shards of about SIZE. Columns that
    were added go into the main files, and tombstones go. The records stay the same.
    """
    from geodata.jobs.compact import compact as run

    nbytes = parse_bytes(shard_size) if shard_size else None
    config = load_if_any(config_path)
    report = run(dataset, shard_size=nbytes, config=config, progress=Bar(), **options)
    emit(report, as_json, _compacted(report))


def _compacted(report: CompactReport) -> str:
    return _told(report, "would merge" if report.dry_run else "merged", [])


def _told(report: EditReport, did: str, lines: list[str]) -> str:
    """Return what an edit did, to what, and what it made of it, with `lines` of its own."""
    idle = report.unchanged or not report.shards
    version = f"{report.dataset} {short(report.version)}"
    if idle:
        end = f"nothing to do: {version} is as it should be"
    else:
        end = "nothing was written" if report.dry_run else f"{version} committed"
        written = f" · {size(report.bytes_out)}" if report.bytes_out else ""
        lines = [
            f"{did} {count(report.records, 'record')} in {count(report.shards, 'shard')} · "
            f"{size(report.bytes)} → {count(report.shards_out, 'shard')}{written}",
            *_regions(report),
            *lines,
        ]
    left = [
        f"{region}: {count(records, 'record')} may not be read here; run this there too"
        for region, records in report.left.items()
    ]
    return "\n".join([*lines, *left, end])


def _regions(report: EditReport) -> list[str]:
    """Return what each region has of it; a staging dataset has none."""
    rows = [
        (name, total.records, total.shards, size(total.bytes))
        for name, total in report.regions.items()
        if name != STAGING
    ]
    return [table(["region", "records", "shards", "bytes"], rows)] if rows else []


ALL = [add_column, drop, compact]
