"""Is every byte what the manifest promises? What is wrong is told shard by shard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from geodata import schema as schemas
from geodata.canonical import ContentHasher
from geodata.catalog import Catalog, Place, locate, tag_of_file
from geodata.catalog.damage import Damage, find_damage
from geodata.config import GeodataConfig
from geodata.errors import GeodataError, ManifestError
from geodata.executors import get_executor
from geodata.formats import Format, get_format
from geodata.formats.joined import MAIN, as_written, beside, data_parts, open_shard
from geodata.jobs.base import SCHEMA_VERSION, Progress, Silent
from geodata.manifest import Index, Shard, Units, Version, totals
from geodata.partition import measure
from geodata.partition.sealing import file_ref
from geodata.schema import KEY
from geodata.stores import Access, open_store


@dataclass(slots=True)
class VerifyReport:
    """Whether all is intact; `problems` are {shard, problem}: of a version, if no shard has it.

    `version` is the one whose shards were checked.
    """

    dataset: str
    version: str
    ok: bool
    shards: int
    records: int
    bytes: int
    problems: list[dict[str, str]]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Task:
    root: str
    region: str
    access: Access
    shard: Shard


def verify(
    reference: str,
    *,
    config: GeodataConfig | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check all digests, counts, indexes and contents of the version that `reference` names.

    Where it names none, the indexes and lists of all versions are checked, and the shards of the
    newest whose index is not damaged. Shards are checked in the place where they lie; nothing is
    moved. Problems are reported, not raised.
    """
    began = time.monotonic()
    place = locate(reference, config)
    catalog = Catalog.at(place, "verify")
    version = catalog.resolve(place.version)
    versions = catalog.versions() if place.version is None else [version]
    listed = [_told(damage) for damage in find_damage(catalog, reversed(versions))]
    index = _newest_open(catalog, versions)
    if index is None:
        return _report(place, str(version), None, 0, listed, began)
    if index.version != str(version):
        text = f"it is damaged, so the shards checked are those of {index.version}"
        listed.append({"shard": str(version), "problem": text})
    tasks = _tasks(catalog, index)
    placed = [task for own in tasks.values() for task in own]
    listed += _miscounted(index, tasks)
    listed += _shards(index, placed, workers, progress or Silent())
    return _report(place, index.version, index, len(placed), listed, began)


def _report(
    place: Place,
    version: str,
    index: Index | None,
    shards: int,
    problems: list[dict[str, str]],
    began: float,
) -> VerifyReport:
    return VerifyReport(
        dataset=index.dataset if index else Path(place.root).name,
        version=version,
        ok=not problems,
        shards=shards,
        records=index.records if index else 0,
        bytes=index.nbytes if index else 0,
        problems=problems,
        seconds=round(time.monotonic() - began, 3),
    )


def _newest_open(catalog: Catalog, versions: Sequence[Version]) -> Index | None:
    """Return the newest of these versions whose index is not damaged."""
    newest = {version.number: version for version in versions}
    for version in reversed(newest.values()):
        with suppress(ManifestError):
            return catalog.exactly(version)
    return None


def _told(damage: Damage) -> dict[str, str]:
    where = f"{damage.version} region {damage.region}" if damage.region else str(damage.version)
    return {"shard": where, "problem": f"{damage.problem}: {damage.file}"}


def _tasks(catalog: Catalog, index: Index) -> dict[str, list[_Task]]:
    """Return the shards of each region whose list is whole."""
    tasks = {}
    for region in sorted(index.regions):
        root = catalog.store(index, region).url
        with suppress(ManifestError):
            shards = catalog.shards(index, region)
            tasks[region] = [_Task(root, region, catalog.access, shard) for shard in shards]
    return tasks


def _miscounted(index: Index, tasks: Mapping[str, Sequence[_Task]]) -> Iterator[dict[str, str]]:
    """Yield where the index counts other shards, records or bytes than the lists hold."""
    for region, own in tasks.items():
        entry = index.regions[region]
        if entry != totals(entry.root, entry.listing, [task.shard for task in own]):
            yield {"shard": f"region {region}", "problem": "the index has other totals"}


def _shards(
    index: Index, tasks: Sequence[_Task], workers: int | None, shown: Progress
) -> list[dict[str, str]]:
    """Return what is wrong with shards, in their order."""
    shown.start("verify", sum(task.shard.nbytes for task in tasks), "B")
    problems: dict[int, list[str]] = {}
    with closing(get_executor("local", workers).run(_check, tasks, index)) as finished:
        for number, found in finished:
            problems[number] = found
            shown.advance(tasks[number].shard.nbytes)
    shown.finish()
    return [
        {"shard": tasks[number].shard.shard_id, "problem": problem}
        for number in sorted(problems)
        for problem in problems[number]
    ]


def _check(index: Index, task: _Task) -> list[str]:
    """Return what is wrong with a shard."""
    store = open_store(task.root, region=task.region, access=task.access)
    paths: dict[str, Path] = {}
    problems = []
    for name, ref in sorted(task.shard.files.items()):
        tag = tag_of_file(task.shard, name)
        path = store.local_path(ref.path, tag, task.shard.shard_id, action="verify")
        if path is None or not path.is_file():
            problems.append(f"{ref.path} is missing")
            continue
        paths[name] = path
        found = file_ref(path, ref.path)
        if found.nbytes != ref.nbytes:
            problems.append(f"{ref.path} has {found.nbytes} bytes, not {ref.nbytes}")
        elif found.sha256 != ref.sha256:
            problems.append(f"{ref.path} does not match its digest")
    if not paths.keys() >= set(data_parts(task.shard.files)):
        return problems
    try:
        return problems + list(_contents(index, task, paths))
    except GeodataError as error:
        return [*problems, str(error)]


def _contents(index: Index, task: _Task, paths: dict[str, Path]) -> Iterator[str]:
    """Yield where sidecar, index, counts and values disagree with the shard itself.

    The values are read through the index, so a wrong index shows as wrong units or values.
    """
    form, like = get_format(index.format), task.shard.content_digest
    for part in data_parts(paths):
        yield from _structure(form, task.shard, paths, part)
    reader = as_written(open_shard(form, paths, schemas.from_json(index.schema_)))
    hasher = ContentHasher(reader.schema, like)
    live = 0
    try:
        for unit in range(len(reader.unit_slots)):
            batch = reader.read_unit(unit)
            hasher.update(batch)
            live += batch.num_rows - batch.column(KEY).null_count
    finally:
        reader.close()
    if live != task.shard.live:
        yield f"{live} records, not {task.shard.live}"
    if hasher.hexdigest() != task.shard.content_digest:
        yield "the values do not match the content digest"


def _structure(form: Format, shard: Shard, paths: dict[str, Path], part: str) -> Iterator[str]:
    """Yield where sidecar, units and index disagree with a file of the shard that holds records."""
    named = "" if part == MAIN else f" of {part}"
    index, sidecar = paths.get(beside(part, "index")), beside(part, "units")
    _digest, units = measure(form, paths[part], None, shard.content_digest)
    if sidecar in paths:
        stored = Units.from_bytes(paths[sidecar].read_bytes(), shard.files[sidecar].path)
        if stored != units:
            yield f"the sidecar{named} does not describe the shard's units"
    slots = tuple(unit.slots for unit in units.units)
    if slots != shard.slots:
        yield f"the shard{named} has {sum(slots)} rows in {len(slots)} units, unlike the manifest"
    if index is not None and form.units(paths[part], index) != form.units(paths[part]):
        yield f"the index{named} does not describe the shard's units"
