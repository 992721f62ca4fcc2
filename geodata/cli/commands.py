"""The commands, one thin function each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geodata.cli.guides import docs
from geodata.cli.options import (
    FORMATS,
    KINDS,
    NAME,
    PATH,
    PLACE,
    cache_folder,
    config_option,
    dry_run_option,
    exif_option,
    json_option,
    load,
    load_if_any,
    parse_bytes,
    workers_option,
)
from geodata.cli.output import Bar, count, emit, prints_aside, short, size, table
from geodata.errors import ConfigError

if TYPE_CHECKING:
    from geodata.jobs.inspect import InspectReport
    from geodata.jobs.shardreport import ShardReport


@click.command()
@click.argument("source", type=PATH)
@click.option("--out", type=PATH, default="geodata.yaml", show_default=True)
@click.option("--kind", type=KINDS, help="What the source is; default: recognised.")
@json_option
def init(source: Path, out: Path, kind: str | None, as_json: bool) -> None:
    """Look at a raw corpus and write a commented config to start from."""
    from geodata.jobs.init import init as run
    from geodata.sources import Reading

    with prints_aside():
        report = run(source, out, kind=kind, reading=Reading(cache=cache_folder()))
    emit(report, as_json, f"{report.summary}\nwrote {report.config}; edit it, then:\n{report.next}")


@click.command()
@click.argument("source", type=PLACE)
@click.argument("dest", type=PLACE, required=False)
@click.option("--format", type=FORMATS, help="Default: the source's.")
@click.option("--shard-size", default="256MiB", show_default=True, metavar="SIZE")
@click.option("--seed", default=0, show_default=True, help="Of the shuffle at write time.")
@exif_option
@click.option(
    "--pack", type=int, metavar="LENGTH", help="Pack tokens into sequences of one length."
)
@click.option("--tokens", type=NAME, show_default="tokens", metavar="COLUMN", help="Lists to pack.")
@click.option(
    "--count-tokens",
    is_flag=False,
    flag_value="",
    metavar="[COLUMN]",
    help="Keep each record's number of tokens, for packing while loading.",
)
@click.option(
    "--tokenizer", metavar="FILE", help="Counts the tokens of a text: a file, or `bytes`."
)
@dry_run_option
@config_option
@workers_option
@json_option
def shard(
    source: str,
    dest: str | None,
    format: str | None,
    shard_size: str,
    config_path: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Partition the staging dataset SOURCE by region and tag into DEST (default: dataset.root)."""
    from geodata.jobs.shard import shard as run

    config, nbytes = load(config_path), parse_bytes(shard_size)
    report = run(
        source, dest, config=config, format=format, shard_size=nbytes, progress=Bar(), **options
    )
    emit(report, as_json, _sharded(report))


def _sharded(report: ShardReport) -> str:
    rows = [
        (
            name,
            t.records,
            size(t.bytes),
            t.shards,
            t.personal,
            f"({t.unknown:,} unknown, kept here)" if t.unknown else "",
        )
        for name, t in report.regions.items()
    ]
    text = table(["region", "records", "bytes", "shards", "personal", ""], rows)
    text += "".join(f"\n{line}" for line in _finished(report))
    if report.dry_run:
        return f"{text}\nnothing was written (bytes are those before compression)"
    done = "is committed already" if report.unchanged else "committed"
    return f"{text}\n{report.dataset} {short(report.version or 'v0')} {done} → {report.dest}"


def _finished(report: ShardReport) -> Iterator[str]:
    """Yield what was done to the records beside partitioning them."""
    if report.undone:
        yield f"without {', '.join(report.undone)}: edits of the version before, to be run again"
    if report.stripped:
        yield f"{count(report.stripped, 'image')} freed of what cameras add (--exif keep keeps it)"
    if report.packed:
        documents, sequences, tokens = (
            count(report.packed[f"{name}s"], name) for name in ("document", "sequence", "token")
        )
        yield f"{documents} packed into {sequences} of {report.packed['length']:,}: {tokens}"
    if report.counted:
        yield f"{count(report.counted['tokens'], 'token')} counted in {report.counted['column']}"


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--head", type=click.IntRange(0), default=0, metavar="N", help="Show N records.")
@click.option("--shard", metavar="ID", help="Records of the shard whose id begins so.")
@click.option("--png", type=PATH, metavar="FILE", help="Draw records as one picture.")
@config_option
@json_option
def inspect(
    dataset: str,
    head: int,
    shard: str | None,
    png: Path | None,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Show what DATASET[@VERSION] holds: schema, versions, regions, tags, first records."""
    from geodata.jobs.inspect import inspect as run

    report = run(dataset, config=load_if_any(config_path), head=head, shard=shard, png=png)
    if png is not None and not head:
        report.head = []  # they are in the picture
    emit(report, as_json, _inspected(report))


def _category(tag: dict[str, Any]) -> str:
    return str(tag["data_category"] if tag["kind"] == "data" else tag["kind"])


def _role(field: dict[str, Any]) -> str:
    """Return what a column is beside its type: image, label, …"""
    return field.get("media") or next((role for role in ("label", "tensor") if role in field), "")


def _inspected(report: InspectReport) -> str:
    versions = ", ".join(map(short, report.versions))
    lines = [
        f"{report.dataset} {short(report.version)} · {report.format} · {report.records:,} records "
        f"· {size(report.bytes)} · {report.created_at} · versions {versions}",
        "",
        table(
            ["column", "type", ""],
            [(f["name"], f["type"], _role(f)) for f in report.schema],
        ),
        "",
    ]
    rows = [
        (
            name,
            _category(t["tag"]),
            t["tag"].get("legal_basis", ""),
            t["tag"].get("retention_until", ""),
            t["records"],
            size(t["bytes"]),
            t["shards"],
        )
        for name, region in report.regions.items()
        for t in region["tags"]
    ]
    head = ["region", "category", "basis", "keep until", "records", "bytes", "shards"]
    lines.append(table(head, rows))
    for name, values in report.labels.items():
        shown = ", ".join(values[:8]) + (", …" if len(values) > 8 else "")
        lines.append(f"\nlabels of {name}: {len(values)} ({shown})")
    for row in report.head:
        lines.append("\n" + "\n".join(f"{name}: {value}" for name, value in row.items()))
    if report.denied:
        lines.append(f"\n{report.denied:,} records may not be seen from here")
    if report.png:
        lines.append(f"\ndrawn → {report.png}")
    return "\n".join(lines)


@click.command()
@click.argument("dataset", type=PLACE)
@config_option
@workers_option
@json_option
def verify(dataset: str, config_path: Path | None, workers: int | None, as_json: bool) -> None:
    """Check every digest, count and index of DATASET[@VERSION]; exit 1 if anything is wrong."""
    from geodata.jobs.verify import verify as run

    report = run(dataset, config=load_if_any(config_path), workers=workers, progress=Bar())
    lines = [f"{p['shard']}: {p['problem']}" for p in report.problems]
    verdict = "every digest matches" if report.ok else count(len(lines), "problem")
    lines.append(f"{count(report.shards, 'shard')} · {count(report.records, 'record')} · {verdict}")
    emit(report, as_json, "\n".join(lines))
    if not report.ok:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("dataset", type=PLACE)
@click.option("--files", is_flag=True, help="Only the files, one a line, for foreign engines.")
@config_option
@json_option
def ls(dataset: str, files: bool, config_path: Path | None, as_json: bool) -> None:
    """List the shards of DATASET[@VERSION]."""
    from geodata.jobs.ls import list_files

    if files and as_json:
        raise ConfigError("--files and --json exclude each other", hint="--json names the files")
    listing = list_files(dataset, config=load_if_any(config_path))
    text = "\n".join(s.file for s in listing.shards)
    if not files:
        rows = [(s.region, s.shard, s.category, s.records, size(s.bytes)) for s in listing.shards]
        text = table(["region", "shard", "category", "records", "bytes"], rows)
    emit(listing, as_json, text)
    for entry in listing.problems:
        click.echo(f"{entry['region']} is not listed: {entry['problem']}", err=True)
    if listing.problems:
        raise click.exceptions.Exit(1)


@click.group()
def config() -> None:
    """Check the config, or print its JSON Schema for editors."""


@config.command()
@config_option
@json_option
def check(config_path: Path | None, as_json: bool) -> None:
    """Validate the config and show what it resolves to."""
    found = load(config_path)
    data = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "ok": True, "config": data}))
    else:
        click.echo(f"ok: {count(len(found.regions), 'region')}, here is {found.here or 'not set'}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of the config file."""
    from geodata.config import GeodataConfig

    click.echo(json.dumps(GeodataConfig.model_json_schema(by_alias=True), indent=1))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, such as: eval "$(geodata completion bash)"."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    if made is not None:
        click.echo(made(root, {}, "geodata", "_GEODATA_COMPLETE").source())


ALL = [init, shard, inspect, verify, ls, config, docs, completion]
