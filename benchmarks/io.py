"""Converting and reading on one corpus, ours and the peers', in the same run.

Every measurement has a process of its own, and subjects take turns, so that what else the machine
does falls on all alike. A reading counts only if it handed over every sample of the corpus once: a
checksum of all bytes tells before anything is timed, counts and lengths tell each time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from benchmarks import passes
from benchmarks.corpus import make
from benchmarks.measure import run
from benchmarks.peers import OURS, PEERS, Read, describe, missing, names, steps_of
from benchmarks.report import Report
from benchmarks.results import TIE, Results
from benchmarks.table import plot, ratio_table, tables
from benchmarks.workloads import SIDE, WORKLOADS, Corpus, Tally, open_corpus
from geodata.formats import FORMATS

LIMIT_SECONDS = 600
SLOW_SECONDS = 20
"""What takes longer is measured once."""
SPACE = {"img": 1.3, "txt": 3.0}
"""How many times the bytes of the corpus a subject writes at most."""

Values = dict[str, float]


@dataclass(slots=True)
class Run:
    """The measurements on one corpus."""

    corpus: Corpus
    expected: Tally
    subjects: Sequence[str]
    workers: Sequence[int]
    repeat: int
    scratch: Path
    results: Results
    out: dict[str, str] = field(default_factory=dict)
    """Subjects that are measured no more, and why."""
    slow: set[tuple[str, str]] = field(default_factory=set)

    def all(self) -> None:
        """Convert, check and read, subject by subject, `repeat` times."""
        for name in self.subjects:
            if package := missing(name):
                self.out[name] = f"not installed: {package}"
        rounds = [kind for turn in range(self.repeat) for kind in self._kinds(turn)]
        steps = [(kind, subject) for kind in rounds for subject in self.subjects]
        for kind, subject in tqdm(steps, self.corpus.workload.name, unit="", disable=None):
            kind(subject)

    def _kinds(self, turn: int) -> Iterator[Callable[[str], None]]:
        yield self._make
        if turn == 0:
            yield self._check
        for workers in self.workers:
            yield lambda subject, workers=workers: self._read(subject, "read", workers)
        if self.corpus.workload.name == "img":
            yield lambda subject: self._read(subject, "decode", max(self.workers))

    def _folder(self, subject: str) -> Path:
        return self.scratch / self.corpus.workload.name / subject.replace("/", "-")

    def _row(self, measure: str) -> str:
        return f"{self.corpus.workload.name} {measure}"

    def _measure(
        self, measure: str, subject: str, unit: str, task: Callable[..., Values], *args: Any
    ) -> Values | None:
        """Return the values of a measurement; None where it was left out or failed."""
        row = self._row(measure)
        if (row, subject) in self.slow:
            return None
        status = self.out.get(subject)
        if status is None:
            outcome = run(task, subject, *args, limit=LIMIT_SECONDS, scratch=self.scratch)
            status = outcome.status
            if status == "ok":
                if outcome.values.get("seconds", 0) > SLOW_SECONDS:
                    self.slow.add((row, subject))
                return outcome.values
        self.results.fault(row, subject, unit, status)
        return None

    def _add(self, measure: str, subject: str, unit: str, value: float) -> None:
        self.results.add(self._row(measure), subject, unit, value)

    def _make(self, subject: str) -> None:
        """Convert, and shard if the subject does; all its steps again, or none."""
        steps, seconds = steps_of(subject), 0.0
        measures = [" + ".join(steps[: number + 1]) for number in range(len(steps))]
        if any((self._row(measure), subject) in self.slow for measure in measures):
            return
        for measure, step in zip(measures, steps, strict=True):
            arguments = (step, self.corpus, self._folder(subject))
            values = self._measure(measure, subject, "samples/s", passes.make, *arguments)
            if values is None:
                self.out.setdefault(subject, self.results.faults[self._row(measure), subject])
                return
            seconds += values["seconds"]
            self._add(measure, subject, "samples/s", self.expected.samples / seconds)
            self._remember(measure, subject, values)
        if steps:
            self._add("convert output", subject, "bytes", values["nbytes"])

    def _remember(self, measure: str, subject: str, values: Values) -> None:
        """Note what a measurement used."""
        self._add(f"{measure} cpu", subject, "s", values["cpu"])
        if "memory" in values:
            self._add(f"{measure} memory", subject, "bytes", values["memory"])

    def _check(self, subject: str) -> None:
        """Read all bytes, by as many workers as there will be; a difference ends the subject."""
        reading = Read(self.corpus, self._folder(subject), max(self.workers))
        values = self._measure("check samples", subject, "samples", passes.check, reading)
        if values is None:
            self.out.setdefault(subject, self.results.faults[self._row("check samples"), subject])
            return
        tally = Tally(**{name: int(values[name]) for name in Tally.__slots__})
        self._add("check samples", subject, "samples", tally.samples)
        self._add("check bytes", subject, "bytes", tally.nbytes)
        if not tally.same_samples(self.expected):
            self.out[subject] = wrong(tally.samples, tally.nbytes, self.expected)
            row = self._row("check samples")
            self.results.fault(row, subject, "samples", self.out[subject])

    def _read(self, subject: str, kind: str, workers: int) -> None:
        """Take the time of an epoch."""
        reading = Read(self.corpus, self._folder(subject), workers, kind == "decode")
        about = f"{kind} w{workers}"
        values = self._measure(about, subject, "samples/s", passes.read, reading)
        if values is None:
            return
        samples, length = int(values["samples"]), int(values["length"])
        if samples != self.expected.samples or length not in self._lengths(kind):
            self.out[subject] = wrong(samples, length, self.expected)
            self.results.fault(self._row(about), subject, "samples/s", self.out[subject])
            return
        self._add(about, subject, "samples/s", values["rate"])
        self._add(f"{about} epoch", subject, "samples/s", samples / values["seconds"])
        self._add(f"{about} first batch", subject, "s", values["first"])
        self._remember(about, subject, values)

    def _lengths(self, kind: str) -> set[int]:
        """Return what the lengths of all samples may add up to."""
        if kind == "decode":
            return {self.expected.samples * SIDE * SIDE * 3}
        return {self.expected.nbytes, self.expected.characters}


def wrong(samples: int, length: int, expected: Tally) -> str:
    """Return a status that no one overlooks."""
    return (
        f"WRONG: {samples:,} samples of length {length:,} in all, "
        f"not {expected.samples:,} of {expected.nbytes:,} bytes"
    )


@contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path]:
    """Give a folder for what is written, and remove it."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="benchmarks-io-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _corpora(
    root: Path | None, workload: str, smoke: bool, scratch: Path
) -> Iterator[tuple[Corpus, Tally]]:
    """Yield the corpora and what they hold; a small one is made where that is enough."""
    for name in WORKLOADS if workload == "both" else [workload]:
        found = open_corpus(root, name) if root is not None else None
        if found is None and smoke:
            found, _about = make(WORKLOADS[name], scratch / "corpus", WORKLOADS[name].smoke, None)
        if found is None:
            place = root or "DIR"
            hint = f"Make one: python -m benchmarks corpus {name} {place}; then --corpus {place}"
            raise click.ClickException(f"no {WORKLOADS[name].samples} to read. {hint}")
        yield found, found.tally()


def _check_space(scratch: Path, corpus: Corpus, nbytes: int, subjects: Sequence[str]) -> None:
    written = len(subjects) + sum(name.startswith(OURS) for name in subjects)
    needed = int(nbytes * SPACE[corpus.workload.name] * written)
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise click.ClickException(
            f"{scratch} has {free / 1e9:.1f} GB left, {needed / 1e9:.1f} GB are needed; "
            "choose another --dir, or fewer --peers"
        )


def _chosen(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a callback that reads a list of known names; `none` is the empty one."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
        if text is None:
            return list(known)
        wanted = [] if text == "none" else text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise click.BadParameter(f"no '{unknown[0]}'; known: {', '.join(known)}, none")
        return wanted

    return read


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    try:
        return sorted({int(number) for number in text.split(",")})
    except ValueError:
        raise click.BadParameter("numbers with commas between, such as 0,2") from None


@click.command()
@click.option("--corpus", "root", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--workload", type=click.Choice([*WORKLOADS, "both"]), default="both")
@click.option("--formats", callback=_chosen(list(FORMATS)), help="Of ours; default: all.")
@click.option("--peers", callback=_chosen(list(PEERS)), help="Default: all that are installed.")
@click.option("--workers", default="0,2", callback=_numbers, show_default=True)
@click.option("--repeat", default=3, type=click.IntRange(1), show_default=True)
@click.option("--smoke", is_flag=True, help="A small corpus, once: whether it runs, not how fast.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Where data are written.")
def io(
    root: Path | None,
    workload: str,
    formats: list[str],
    peers: list[str],
    workers: list[int],
    repeat: int,
    smoke: bool,
    json_path: Path | None,
    plot_path: Path | None,
    parent: Path | None,
) -> None:
    """Converting and reading: our formats beside the peers, on one corpus."""
    if plot_path and find_spec("matplotlib") is None:
        raise click.ClickException('--plot needs matplotlib. pip install "geodata-train[bench]"')
    subjects, repeat = names(formats, peers), 1 if smoke else repeat
    report, results = Report(describe(subjects)), Results()
    load_before = os.getloadavg()[0]
    with scratch_folder(parent) as scratch:
        for corpus, expected in _corpora(root, workload, smoke, scratch):
            _check_space(scratch, corpus, expected.nbytes, subjects)
            report.notes.append(_about(corpus, expected))
            Run(corpus, expected, subjects, workers, repeat, scratch, results).all()
            shutil.rmtree(scratch / corpus.workload.name, ignore_errors=True)
    caption = " · ".join(report.notes)
    report.notes += _notes(load_before, repeat, smoke)
    report.rows = results.rows(subjects) + (ratios := results.ratios(subjects))
    report.goals = [] if smoke else results.goals(subjects)
    parts = [tables(results, subjects), ratio_table(ratios), *report.verdicts(), "", *report.notes]
    click.echo("\n".join(parts))
    if json_path:
        report.write(json_path)
    if plot_path:
        plot(results, subjects, plot_path, caption)
    if bad := sorted({f"{s}: {why}" for (_, s), why in results.faults.items() if serious(s, why)}):
        raise click.ClickException("; ".join(bad))


def serious(subject: str, status: str) -> bool:
    """Return whether a fault makes the run fail: wrong samples, or a failure of ours."""
    return status.startswith("WRONG") or (subject.startswith(OURS) and "installed" not in status)


def _about(corpus: Corpus, expected: Tally) -> str:
    kind = corpus.workload
    return (
        f"{kind.name}: {expected.samples:,} {kind.samples}, {expected.nbytes / 1e6:,.1f} MB, "
        f"batches of {kind.batch}"
    )


def _notes(load_before: float, repeat: int, smoke: bool) -> list[str]:
    notes = [
        f"{os.cpu_count()} cores, load {load_before:.1f} before and {os.getloadavg()[0]:.1f} "
        f"after; medians of {repeat} (least–greatest); what took over {SLOW_SECONDS} s ran once",
        f"processors are shared and noisy: ratios below {TIE} either way are ties",
        "every subject with numbers handed over each sample once: a checksum of all bytes tells",
        "read: stored bytes; ours as two buffers a batch, peers as they hand over by default; "
        "samples/s are those after the first batch, epoch samples/s all over the time of all; "
        "our first batch opens a unit for each of its lanes: with few units, compare epochs",
        "convert: one process, peers beside our convert, and beside our convert + shard, which "
        "also shuffles and tags: its output is what is read",
        "cpu: processor seconds of all processes, steadier than rates where the machine is busy",
        "memory: beyond an idle Python with torch, sum of all processes, without mapped files",
    ]
    return ["a corpus this small shows that all runs, not how fast", *notes] if smoke else notes
