"""A dataset as a Petastorm dataset: a copy that `petastorm.make_reader` opens.

Each shard becomes a file, each unit a row group; erased records are left out. The key is the column
`geodata_key`. The copy is the user's: what is erased in the dataset later stays in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from geodata import schema as schemas
from geodata.catalog import Catalog, locate
from geodata.config import GeodataConfig
from geodata.durable import point, storing, sync
from geodata.errors import ConfigError, PolicyDenied, SchemaError
from geodata.executors import get_executor, in_order
from geodata.formats import get_format
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.jobs.petastormcolumns import Column, column_of, ranks_of
from geodata.manifest import Index, Shard
from geodata.partition.opening import open_in_place
from geodata.policy import Movement
from geodata.schema import KEY, SUBJECT, media_of
from geodata.sources.petastorm.client import write_metadata
from geodata.sources.petastorm.environment import needed
from geodata.stores import Access, open_store

PURPOSE = "petastorm export"
KEY_COLUMN = "geodata_key"


@dataclass(slots=True)
class ExportReport:
    """What was exported; `denied` records may not be from here."""

    dataset: str
    version: str
    folder: str
    columns: list[str]
    files: int
    records: int
    bytes: int
    denied: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all files have in common."""

    form: str
    schema: dict[str, Any]
    columns: tuple[str, ...]
    decode_images: bool
    access: Access
    folder: str


@dataclass(frozen=True, slots=True)
class _Task:
    """A shard to write, and where it lies."""

    root: str
    region: str
    shard: Shard


def export(
    reference: str,
    folder: str | Path,
    *,
    config: GeodataConfig | None = None,
    columns: Sequence[str] | None = None,
    decode_images: bool = False,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the dataset version that `reference` names as a Petastorm dataset into a new folder.

    `columns` are those to write (None: all). With `decode_images` Petastorm decodes the images.
    `cache` is the user's folder for caches, with Petastorm's environment (None: ~/.cache). Raises
    ConfigError, SchemaError for a column that Petastorm cannot hold, PolicyDenied where nothing may
    be exported from here, CorruptShard.
    """
    began = time.monotonic()
    interpreter, shown = needed(cache).interpreter, progress or Silent()
    target = _checked(Path(folder).absolute())
    place = locate(reference, config)
    catalog = Catalog.at(place, PURPOSE)
    index = catalog.index(place.version)
    fields = _fields(schemas.from_json(index.schema_), columns)
    if decode_images and not any(media_of(field) == "image" for field in fields):
        raise ConfigError("--decode-images is for images, and no column to export holds any")
    made = [column_of(field, decode_images) for field in fields]
    tasks, denied = _allowed(catalog, index)
    if not tasks and not denied:
        raise ConfigError(f"{index.version} holds no records", file=catalog.root)
    if not tasks:
        raise PolicyDenied(f"{catalog.access.here} may export none of the {denied:,} records")
    names = tuple(field.name for field in fields)
    with _appearing(target) as work:
        shared = _Shared(
            index.format, index.schema_, names, decode_images, catalog.access, str(work)
        )
        shown.start("export", sum(task.shard.nbytes for task in tasks), "B")
        executor = get_executor("local", workers)
        results = in_order(
            executor, _write, tasks, shared, lambda task, _: shown.advance(task.shard.nbytes)
        )
        shown.finish()
        _write_metadata(interpreter, work, _name_of(index.dataset), made, results)
        nbytes = sum(file.stat().st_size for file in work.iterdir())
    return ExportReport(
        dataset=index.dataset,
        version=index.version,
        folder=str(target),
        columns=[column.name for column in made],
        files=len(tasks),
        records=sum(result["records"] for result in results),
        bytes=nbytes,
        denied=denied,
        seconds=round(time.monotonic() - began, 3),
    )


def _allowed(catalog: Catalog, index: Index) -> tuple[list[_Task], int]:
    """Return the shards that may be exported from here, and how many records may not; all logged.

    A copy leaves the dataset's reach, which policy may treat otherwise than reading.
    """
    gate, here = catalog.access.gate, catalog.access.here
    tasks, denied = [], 0
    for home in sorted(index.regions):
        root = catalog.store(index, home).url
        for shard in catalog.shards(index, home):
            about = shard.shard_id, shard.live
            if gate.record(Movement("export", shard.tag, home, here, PURPOSE, *about)).allowed:
                tasks.append(_Task(root, home, shard))
            else:
                denied += shard.live
    return tasks, denied


def _checked(folder: Path) -> Path:
    """Return a folder that does not exist or is empty; ConfigError for any other."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("the folder holds something", file=str(folder), hint="Choose a new one")
    return folder


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `target` when the body has ended well.

    What a killed run of the same was making goes. StoreError while another one runs.
    """
    job = JobFolder(target.parent, f"petastorm-{digest_of(target.name)[:12]}")
    with job.held():
        try:
            job.clear_work()
            _checked(target)
            with storing(job.work):
                job.work.mkdir()
            yield job.work
            with storing(target):
                for path in [*job.work.iterdir(), job.work]:
                    sync(path)
                point("rename export")
                job.work.rename(target)
                point("renamed export")
                sync(target.parent)
        finally:
            job.remove()
            with suppress(OSError):  # others have jobs there
                job.path.parent.rmdir()


def _fields(schema: pa.Schema, columns: Sequence[str] | None) -> list[pa.Field]:
    """Return the fields to write, the key's first."""
    known = {field.name: field for field in schema if field.name not in (KEY, SUBJECT)}
    if KEY_COLUMN in known:
        raise SchemaError("the name is that of the exported key", column=KEY_COLUMN)
    known = {KEY_COLUMN: pa.field(KEY_COLUMN, pa.string()), **known}
    wanted = list(known) if columns is None else list(columns)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"there is no column '{name}'", hint=f"There are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]


def _name_of(dataset: str) -> str:
    """Return a name for the Unischema, of which named tuples make the name of a class."""
    return "geodata_" + re.sub(r"\W", "_", dataset, flags=re.ASCII)


def _write(shared: _Shared, task: _Task) -> dict[str, Any]:
    """Write one shard's file."""
    schema = schemas.from_json(shared.schema)
    fields = _fields(schema, shared.columns)
    columns = [column_of(field, shared.decode_images) for field in fields]
    store = open_store(task.root, region=task.region, access=shared.access)
    reader = open_in_place(get_format(shared.form), store, task.shard, schema, check=True)
    name = f"{task.shard.shard_id}.parquet"
    stored = pa.schema([pa.field(column.name, column.stored) for column in columns])
    path = Path(shared.folder, name)
    ranks: dict[str, set[int]] = {column.name: set() for column in columns if column.shape is None}
    nulls: set[str] = set()
    records = groups = 0
    needed_columns = [KEY, *(field.name for field in fields if field.name != KEY_COLUMN)]
    with closing(reader), storing(path), pq.ParquetWriter(path, stored) as file:
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit, needed_columns)
            batch = batch.filter(batch.column(KEY).is_valid())
            if not batch.num_rows:
                continue
            for column in ranks:
                ranks[column] |= ranks_of(batch.column(column))
            made = _encoded(batch, columns, stored)
            nulls |= {n for n, a in zip(stored.names, made.columns, strict=True) if a.null_count}
            file.write_batch(made, row_group_size=batch.num_rows)
            records, groups = records + batch.num_rows, groups + 1
    return {"name": name, "records": records, "groups": groups, "ranks": ranks, "nulls": nulls}


def _encoded(batch: pa.RecordBatch, columns: list[Column], stored: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column in columns:
        array = batch.column(KEY if column.name == KEY_COLUMN else column.name)
        arrays.append(column.encode(array))
    return pa.RecordBatch.from_arrays(arrays, schema=stored)


def _write_metadata(
    interpreter: Path,
    folder: Path,
    name: str,
    columns: list[Column],
    results: Sequence[dict[str, Any]],
) -> None:
    """Let Petastorm's own interpreter write the Unischema, from the columns and their ranks."""
    request = {
        "folder": str(folder),
        "name": name,
        "fields": [
            column.to_json(_rank(column, results), any(column.name in r["nulls"] for r in results))
            for column in columns
        ],
        "groups": {result["name"]: result["groups"] for result in results},
    }
    write_metadata(interpreter, request)


def _rank(column: Column, results: Sequence[dict[str, Any]]) -> int:
    found = set().union(*(result["ranks"].get(column.name, ()) for result in results))
    if len(found) > 1:
        raise SchemaError(
            f"tensors of {len(found)} ranks: a Unischema states one",
            column=column.name,
            hint="Leave it out with --columns",
        )
    return int(found.pop()) if found else 1
