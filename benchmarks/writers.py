"""Who converts a corpus: ours, the peers by their own writers, and a plain copy as the limit.

Each is a function of (source, folder, workers); those that have no parallel way of their own are
measured with one process only. Peers write no digests and do not sync; ours does both.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from geodata.formats import FORMATS

SHARD_NBYTES = 64 << 20
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Images in a folder for each class, or a file of JSON lines; how many records it holds."""

    name: str
    path: Path
    records: int

    @property
    def images(self) -> bool:
        """Return whether its records are images."""
        return self.path.is_dir()

    def files(self) -> list[tuple[Path, int]]:
        """Return the files, sorted by name, with the number of their class."""
        if not self.images:
            return [(self.path, 0)]
        classes = sorted(path for path in self.path.iterdir() if path.is_dir())
        return [(file, i) for i, path in enumerate(classes) for file in sorted(path.iterdir())]

    def read(self, part: int = 0, parts: int = 1) -> Iterator[dict[str, Any]]:
        """Yield the records as a peer is given them, or those of one of several equal parts."""
        if self.images:
            for path, label in self.files()[part::parts]:
                yield {"image": path.read_bytes(), "label": label}
        else:
            with self.path.open(encoding="utf-8") as lines:
                for line in islice(lines, part, None, parts):
                    yield json.loads(line)

    def first(self) -> dict[str, Any]:
        """Return a record that has a value in each field, of several records."""
        found: dict[str, Any] = {}
        for record in islice(self.read(), 10_000):
            found.update({name: value for name, value in record.items() if value is not None})
        return found


def plain(source: Source, folder: Path, workers: int) -> None:  # noqa: ARG001
    """Copy all bytes into files of the size of a shard, and sync them."""
    folder.mkdir(parents=True)
    out, left = None, 0
    for path, _label in source.files():
        with path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                if out is None or left <= 0:
                    _end(out)
                    out, left = (
                        (folder / f"{len(list(folder.iterdir())):05}").open("wb"),
                        SHARD_NBYTES,
                    )
                left -= out.write(data)
    _end(out)


def _end(file: Any) -> None:
    if file is not None:
        file.flush()
        os.fsync(file.fileno())
        file.close()


def ours(form: str) -> Callable[[Source, Path, int], None]:
    """Return our conversion into a format."""

    def write(source: Source, folder: Path, workers: int) -> None:
        import geodata

        kind = "images" if source.images else "jsonl"
        report = geodata.convert(source.path, folder, format=form, kind=kind, workers=workers)
        assert report.records_out == source.records

    return write


def webdataset(source: Source, folder: Path, workers: int) -> None:  # noqa: ARG001
    """Write tars by ShardWriter."""
    import webdataset as wds

    folder.mkdir(parents=True)
    pattern = str(folder / "data-%05d.tar")
    with wds.ShardWriter(pattern, maxsize=SHARD_NBYTES, verbose=0) as writer:
        for number, record in enumerate(source.read()):
            if source.images:
                sample = {"jpg": record["image"], "cls": record["label"]}
            elif list(record) == ["text"]:
                sample = {"txt": record["text"]}
            else:
                sample = {"json": record}
            writer.write({"__key__": f"{number:08}", **sample})


def mosaicml(source: Source, folder: Path, workers: int) -> None:  # noqa: ARG001
    """Write MDS shards by MDSWriter."""
    from benchmarks.peers.mosaicml import MDSWriter

    kinds = {bytes: "bytes", str: "str", int: "int", float: "float64"}
    first = source.first()
    columns = {name: kinds[type(value)] for name, value in first.items()}
    blank = {name: type(value)() for name, value in first.items()}
    with MDSWriter(columns=columns, out=str(folder), size_limit=SHARD_NBYTES) as writer:
        for record in source.read():
            writer.write({n: blank[n] if record.get(n) is None else record[n] for n in columns})


def litdata(source: Source, folder: Path, workers: int) -> None:
    """Write chunks by optimize."""
    import litdata as lit

    lit.optimize(
        fn=partial(_records, source, workers),
        inputs=list(range(workers)),
        output_dir=str(folder),
        chunk_bytes=SHARD_NBYTES,
        num_workers=workers,
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def _records(source: Source, parts: int, part: int) -> Iterator[dict[str, Any]]:
    yield from source.read(part, parts)


def hf_datasets(source: Source, folder: Path, workers: int) -> None:
    """Make a dataset of a generator and write it as Parquet."""
    from datasets import Dataset, Features, Value

    kinds = {bytes: "binary", str: "string", int: "int64", float: "float64"}
    features = Features({n: Value(kinds[type(v)]) for n, v in source.first().items()})
    made = Dataset.from_generator(
        _parts,
        features=features,
        cache_dir=str(folder / "cache"),
        gen_kwargs={"source": source, "parts": list(range(workers)), "of": workers},
        num_proc=workers if workers > 1 else None,
    )
    made.to_parquet(str(folder / "data.parquet"))


def _parts(source: Source, parts: list[int], of: int) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from source.read(part, of)


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer: its function, the distributions it needs, whether it uses several processes."""

    write: Callable[[Source, Path, int], None]
    packages: tuple[str, ...] = ()
    parallel: bool = False
    count: Callable[[Path], int] | None = None
    """How many records it has written."""


def _count_tar(folder: Path) -> int:
    names: set[str] = set()
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as shard:
            names |= {name.partition(".")[0] for name in shard.getnames()}
    return len(names)


def _count_mds(folder: Path) -> int:
    shards = json.loads((folder / "index.json").read_text())["shards"]
    return sum(shard["samples"] for shard in shards)


def _count_chunks(folder: Path) -> int:
    chunks = json.loads((folder / "index.json").read_text())["chunks"]
    return sum(chunk["chunk_size"] for chunk in chunks)


def _count_parquet(folder: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(folder / "data.parquet").num_rows)


PLAIN = "plain copy"
OURS = "geodata/"
WRITERS = {
    PLAIN: Writer(plain),
    **{f"{OURS}{form}": Writer(ours(form), parallel=True) for form in FORMATS},
    "webdataset": Writer(webdataset, ("webdataset",), count=_count_tar),
    "mosaicml": Writer(mosaicml, ("mosaicml-streaming",), count=_count_mds),
    "litdata": Writer(litdata, ("litdata",), parallel=True, count=_count_chunks),
    "hf-datasets": Writer(hf_datasets, ("datasets",), parallel=True, count=_count_parquet),
}
