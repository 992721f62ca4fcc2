"""Compares the fingerprints of many items, bucket by bucket, within a job that may be killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geodata.errors import CommitConflict
from geodata.executors import Executor
from geodata.jobs.base import NAME_CHARS, JobFolder, Progress, digest_of
from geodata.manifest import Index, Shard
from geodata.partition.dedupe import Compared, Stored, bits_for, find_repeats, print_shard

PRINTS_DIR = "prints"


def prints_folder(folder: JobFolder) -> Path:
    """Return where the fingerprints of a job lie."""
    return folder.path / PRINTS_DIR


def print_shards(
    folder: JobFolder,
    executor: Executor,
    stored: Stored,
    shards: Sequence[Shard],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return the fingerprints of all shards, item by item."""
    names = [stored.name(shard) for shard in shards]
    progress.start("compare", sum(shard.live for shard in shards), "records")
    found = folder.run(
        stored.stage,
        names,
        executor,
        print_shard,
        shards,
        stored,
        lambda result: progress.advance(result["records"]),
    )
    progress.finish()
    return found


def repeats_among(
    folder: JobFolder, executor: Executor, prints: Sequence[dict[str, Any]], first: int
) -> tuple[str, ...]:
    """Return the files that tell which records of the items from `first` on repeat one before."""
    runs = tuple((item, run) for item, found in enumerate(prints) for run in found["runs"])
    bits = bits_for(sum(found["records"] for found in prints))
    basis = digest_of([runs, bits, first])
    compared = Compared(
        str(prints_folder(folder)), f"repeats-{basis[:NAME_CHARS]}", runs, bits, first
    )
    found = folder.run(
        "repeats",
        basis,
        executor,
        find_repeats,
        range(1 << bits),
        compared,
        lambda _: None,
    )
    return tuple(result["file"] for result in found if result["repeats"])


def check_same(base: Index, latest: Index) -> None:
    """Raise CommitConflict where another version came between, which is to be compared first."""
    if latest.version != base.version:
        raise CommitConflict(f"{latest.version} came first")
