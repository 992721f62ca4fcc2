"""What happens in the process of one measurement."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers import Packed, Read, load
from benchmarks.workloads import Corpus, Tally

WARMING_BYTES = 1 << 20


def make(subject: str, step: str, corpus: Corpus, folder: Path) -> dict[str, float]:
    """Take one step of a conversion: `seconds`, `cpu`, and the `nbytes` of what is read later."""
    made = load(subject)
    if step == "convert":
        shutil.rmtree(folder, ignore_errors=True)
    began, used = time.perf_counter(), cpu_seconds()
    getattr(made, step)(corpus, folder)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
    return {"seconds": seconds, "cpu": cpu, "nbytes": nbytes_of(made.output(folder))}


def check(subject: str, read: Read) -> dict[str, float]:
    """Read everything and look at every byte: the parts of a `Tally`."""
    reader, tally = load(subject), Tally()
    for batch in reader.batches(read):
        if isinstance(batch, Packed):
            payloads: Iterable[Any] = batch
        else:
            payloads = (sample[reader.key] for sample in batch)
        for payload in payloads:
            tally.add(payload)
    return {
        "samples": tally.samples,
        "nbytes": tally.nbytes,
        "characters": tally.characters,
        "checksum": tally.checksum,
    }


def read(subject: str, read: Read) -> dict[str, float]:
    """Read everything: seconds to the `first` batch, `rate` in samples/s from there to the end.

    `samples` and their `length` (bytes; characters, if text comes as str) tell what came, `cpu` is
    what all processes used.
    """
    reader = load(subject)
    warm(reader.output(read.folder), read.corpus)
    samples = length = head = 0
    used, began = cpu_seconds(), time.perf_counter()
    start = began
    for batch in reader.batches(read):
        count, size = _measured(batch, reader.key)
        if not samples:
            start, head = time.perf_counter(), count
        samples, length = samples + count, length + size
    end = time.perf_counter()
    return {
        "first": start - began,
        "rate": (samples - head) / (end - start),
        "seconds": end - began,
        "cpu": cpu_seconds() - used,
        "samples": samples,
        "length": length,
    }


def _measured(batch: Any, key: int | str) -> tuple[int, int]:
    """Return a batch's samples, and the sum of their lengths."""
    if isinstance(batch, Packed):
        return len(batch), batch.length
    if isinstance(batch, list):
        return len(batch), sum(len(sample[key]) for sample in batch)
    return len(batch), batch.numel()


def cpu_seconds() -> float:
    """Return the processor time of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def warm(folder: Path, corpus: Corpus) -> None:
    """Read all files once, so that none comes from the disk while time is taken."""
    for path in [*_files(folder), *_files(corpus.folder)]:
        with path.open("rb", buffering=0) as file:
            while file.read(WARMING_BYTES):
                pass


def nbytes_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 if it is not there."""
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    return [Path(at) / name for at, _folders, names in os.walk(folder) for name in names]
