"""Versions of a dataset: which there are, back to one, what may go, what can be mended."""

from __future__ import annotations

from pathlib import Path

import click

from geodata.cli.options import (
    PLACE,
    config_option,
    dry_run_option,
    json_option,
    load_if_any,
    workers_option,
)
from geodata.cli.output import Bar, count, emit, short, size, table
from geodata.errors import ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise ConfigError(f"'{text}' is no duration", hint="Write it like 24h, 90m or 7d")
    return int(number) * _UNITS[unit]


@click.command()
@click.argument("dataset", type=PLACE)
@config_option
@json_option
def history(dataset: str, config_path: Path | None, as_json: bool) -> None:
    """List the versions of DATASET: what made each, what it added and took away."""
    from geodata.jobs.history import history as run

    report = run(dataset, config=load_if_any(config_path))
    rows = [
        (
            short(v.version),
            f"{v.operation} {short(v.of)}" if v.of else v.operation,
            v.created_at,
            "" if v.records is None else v.records,
            "" if v.shards is None else v.shards,
            "" if v.bytes is None else size(v.bytes),
            "" if v.added is None else f"+{v.added} −{v.removed}",
        )
        for v in report.versions
    ]
    head = ["version", "by", "at", "records", "shards", "bytes", "shards ±"]
    lines = [f"{short(v.version)} is damaged: {v.damaged}" for v in report.versions if v.damaged]
    emit(report, as_json, "\n".join([table(head, rows), *lines]))


@click.command()
@click.argument("dataset", type=PLACE)
@dry_run_option
@config_option
@json_option
def rollback(dataset: str, dry_run: bool, config_path: Path | None, as_json: bool) -> None:
    """Make DATASET@VERSION the newest version again; the versions between stay."""
    from geodata.jobs.rollback import rollback as run

    report = run(dataset, config=load_if_any(config_path), dry_run=dry_run)
    of, before = short(report.of), short(report.before)
    had = (
        "is damaged" if report.records_before is None else f"has {report.records_before:,} records"
    )
    change = f"{before} {had}, {of} has {report.records:,}"
    if report.unchanged:
        text = f"nothing to do: {before} is as {of}"
    elif report.version is None:
        text = f"{change}\nnothing was written"
    else:
        text = f"{change}\n{report.dataset} {short(report.version)} committed, as {of}"
    emit(report, as_json, text)


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Give up all but N versions.")
@click.option("--grace", default="24h", show_default=True, help="What is younger stays.")
@dry_run_option
@config_option
@json_option
def gc(
    dataset: str,
    keep: int | None,
    grace: str,
    dry_run: bool,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Remove what no version of DATASET needs: what killed jobs left, and versions given up.

    Unfinished jobs that have not been touched for the grace period go as well; until then they can
    go on. The newest version and what is in quarantine stay.
    """
    from geodata.jobs.gc import gc as run

    report = run(
        dataset,
        config=load_if_any(config_path),
        keep=keep,
        grace=_seconds(grace),
        dry_run=dry_run,
    )
    rows = [(kind, report.files[kind], size(report.bytes[kind])) for kind in sorted(report.files)]
    lines = [table(["what", "files", "bytes"], rows)] if rows else ["nothing to remove"]
    if report.versions:
        lines.append(f"versions given up: {', '.join(map(short, report.versions))}")
    if report.young:
        lines.append(f"{count(report.young, 'file')} younger than {grace} left alone")
    if report.dry_run:
        lines.append("nothing was removed")
    emit(report, as_json, "\n".join(lines))


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--drop-lost", is_flag=True, help="Commit a version without what is beyond repair.")
@dry_run_option
@config_option
@workers_option
@json_option
def repair(
    dataset: str,
    drop_lost: bool,
    dry_run: bool,
    config_path: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Rebuild what is damaged of DATASET[@VERSION]; list what is beyond repair (exit 1)."""
    from geodata.jobs.repair import repair as run

    report = run(
        dataset,
        config=load_if_any(config_path),
        drop_lost=drop_lost,
        dry_run=dry_run,
        workers=workers,
        progress=Bar(),
    )
    made = "would be made anew" if dry_run else "made anew"
    lines = [f"{entry['file']} {made}" for entry in report.repaired]
    lines += [
        f"beyond repair: {entry['file']} {entry['problem']}"
        + ("" if entry["records"] is None else f" ({count(entry['records'], 'record')})")
        for entry in report.lost
    ]
    if report.way:
        lines.append(report.way)
    if report.uncounted:
        lines.append(
            f"{count(len(report.uncounted), 'sidecar')} without the token counts that took a "
            "tokenizer's file: shard anew with --count-tokens --tokenizer FILE"
        )
    if report.dropped:
        lost = count(report.dropped, "record")
        lines.append(f"{report.dataset} {short(report.version)} committed without {lost}")
    if not lines:
        lines.append(f"{count(report.shards, 'shard')}: nothing to repair")
    emit(report, as_json, "\n".join(lines))
    if not report.ok:
        raise click.exceptions.Exit(1)


ALL = [history, rollback, gc, repair]
