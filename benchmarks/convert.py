"""`python -m benchmarks convert`: raw corpora into shards, ours beside the peers' writers.

Every conversion has a process of its own and takes its turn with the others; what it wrote is
counted before its time counts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from tqdm import tqdm

from benchmarks import measure
from benchmarks.io import scratch_folder
from benchmarks.passes import cpu_seconds, nbytes_of
from benchmarks.report import Report
from benchmarks.results import TIE, Results
from benchmarks.table import tables
from benchmarks.workloads import DOCUMENTS
from benchmarks.writers import OURS, PLAIN, WRITERS, Source

LIMIT_SECONDS = 900
UNIT = "records/s"
GOAL = 2.0


def convert_once(subject: str, source: Source, folder: Path, workers: int) -> Mapping[str, float]:
    """Convert a corpus: `seconds`, `cpu`, `nbytes` written, `records`."""
    writer = WRITERS[subject]
    if subject.startswith(OURS):
        import geodata.jobs.convert  # noqa: F401  # as peers are imported: before time is taken
    shutil.rmtree(folder, ignore_errors=True)
    for path, _label in source.files():  # in the page cache for all alike
        path.read_bytes() if source.images else None
    began, used = time.perf_counter(), cpu_seconds()
    writer.write(source, folder, workers)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
    records = writer.count(folder) if writer.count else source.records
    return {"seconds": seconds, "cpu": cpu, "nbytes": nbytes_of(folder), "records": records}


def sources_below(root: Path) -> Iterator[Source]:
    """Yield the corpora below a folder: images `img`, documents `txt`, any other JSON lines."""
    if (root / "img").is_dir():
        count = sum(1 for _ in (root / "img").rglob("*") if _.is_file())
        yield Source("img", root / "img", count)
    lines = [("txt", root / "txt" / DOCUMENTS)]
    lines += [(path.stem, path) for path in sorted(root.glob("*.jsonl"))]
    for name, path in lines:
        if path.exists():
            with path.open("rb") as file:
                yield Source(name, path, sum(1 for _ in file))


def _missing(subject: str) -> str | None:
    for package in WRITERS[subject].packages:
        try:
            version(package)
        except PackageNotFoundError:
            return package
    return None


@click.command()
@click.option(
    "--corpus", "root", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--only", help="Corpora, with commas between; default: all below DIR.")
@click.option("--subjects", help="Who converts, with commas between; default: all.")
@click.option("--workers", default="1,2", show_default=True)
@click.option("--repeat", default=3, type=click.IntRange(1), show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Where data are written.")
def convert(
    root: Path,
    only: str | None,
    subjects: str | None,
    workers: str,
    repeat: int,
    json_path: Path | None,
    parent: Path | None,
) -> None:
    """Converting raw corpora: ours beside the peers' writers, by number of processes."""
    chosen = subjects.split(",") if subjects else list(WRITERS)
    if unknown := [name for name in chosen if name not in WRITERS]:
        raise click.BadParameter(f"no '{unknown[0]}'; known: {', '.join(WRITERS)}")
    counts = [int(number) for number in workers.split(",")]
    results = Results()
    packages = [package for name in chosen for package in WRITERS[name].packages]
    report = Report(sorted({"geodata-train", "pyarrow", *packages}))
    load = os.getloadavg()[0]
    with scratch_folder(parent) as scratch:
        wanted = [s for s in sources_below(root) if only is None or s.name in only.split(",")]
        for source in wanted:
            turns = [(n, name) for _ in range(repeat) for n in counts for name in chosen]
            for count, name in tqdm(turns, source.name, unit="", disable=None):
                _measure(results, source, name, count, scratch)
    report.rows = results.rows(chosen)
    report.notes = [
        f"{os.cpu_count()} cores, load {load:.1f} before; medians of {repeat}",
        f"ratios below {TIE} either way are ties",
        "ours digests what it writes (SHA-256 of files, BLAKE3 of units and content) and syncs it",
        f"{PLAIN}: all bytes read and written in one process, and synced",
    ]
    click.echo("\n".join([tables(results, chosen), *_verdicts(results, wanted, counts, chosen)]))
    click.echo("\n".join(["", *report.notes]))
    if json_path:
        report.write(json_path)


def _row(source: Source, workers: int) -> str:
    return f"{source.name} convert w{workers}"


def _measure(results: Results, source: Source, subject: str, workers: int, scratch: Path) -> None:
    row = _row(source, workers)
    if workers > 1 and not WRITERS[subject].parallel:
        return  # it knows one process only
    if package := _missing(subject):
        results.fault(row, subject, UNIT, f"not installed: {package}")
        return
    folder = scratch / "written"
    outcome = measure.run(
        convert_once, subject, source, folder, workers, limit=LIMIT_SECONDS, scratch=scratch
    )
    shutil.rmtree(folder, ignore_errors=True)
    if outcome.status != "ok":
        results.fault(row, subject, UNIT, outcome.status)
    elif outcome.values["records"] != source.records:
        results.fault(row, subject, UNIT, f"WRONG: {outcome.values['records']:,.0f} records")
    else:
        results.add(row, subject, UNIT, source.records / outcome.values["seconds"])
        results.add(f"{row} cpu", subject, "s", outcome.values["cpu"])
        results.add(f"{row} output", subject, "bytes", outcome.values["nbytes"])


def _verdicts(
    results: Results, sources: list[Source], counts: list[int], subjects: list[str]
) -> Iterator[str]:
    """Yield how ours compares: to the fastest peer with as many cores, to a copy, to one worker."""
    own = [name for name in subjects if name.startswith(OURS)]
    peers = [name for name in subjects if name not in own and name != PLAIN]
    most = max(counts)
    for source in sources:
        best = results.best(_row(source, most), own)
        if best is None:
            continue
        name, rate = best
        theirs = [results.best(_row(source, count), peers) for count in counts]
        fastest = max((found for found in theirs if found), key=lambda pair: pair[1], default=None)
        if fastest:
            yield (
                f"{source.name}: {name} {rate:,.0f}/s, {rate / fastest[1]:.2f} times the fastest "
                f"peer ({fastest[0]} {fastest[1]:,.0f}/s); the goal is {GOAL:g}"
            )
        plain = results.value(_row(source, 1), PLAIN)
        if plain:
            yield f"{source.name}: a plain copy takes {rate / plain:.2f} of our time; 0.5 is meant"
        for form in own:
            one, more = (results.value(_row(source, count), form) for count in (1, most))
            if one and more and most > 1:
                yield f"{source.name}: {form}, 1 to {most} workers: {more / one:.2f} times"
