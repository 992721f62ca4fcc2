"""Makes anew what is damaged, as far as that goes, and lists what is beyond repair.

First come the version's index and lists, from their copies (of all versions, where none is named);
then the indexes and sidecars of shards, from the shards. What is made anew of a shard has the
digest it had, for it follows from the shard alone; what an other release would write otherwise gets
a new version of the dataset, and so does a sidecar that lost token counts which took a tokenizer's
file: it is named. A damaged shard cannot be mended from within: it is named, and left out of a new
version if that is asked for.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from geodata import schema as schemas
from geodata.catalog import Catalog, Change, locate, tag_of_file
from geodata.config import GeodataConfig
from geodata.digests import digest_of as bytes_digest
from geodata.durable import storing
from geodata.errors import CorruptShard, PolicyDenied, StoreError
from geodata.executors import get_executor, in_order
from geodata.formats import get_format
from geodata.formats.joined import MAIN, beside, data_parts, is_sidecar, open_shard
from geodata.jobs.base import SCHEMA_VERSION, JobFolder, Progress, Silent, digest_of
from geodata.jobs.restoring import Restored, restore, way_on
from geodata.manifest import FileRef, Index, Shard, Version
from geodata.partition import measure
from geodata.partition.opening import Placed
from geodata.partition.sealing import SIDECAR, file_ref
from geodata.prepare.tokens import Counting
from geodata.stores import Access, open_store


@dataclass(slots=True)
class RepairReport:
    """`repaired`: {shard, file} made anew; no shard has the version's own files.

    `lost`: {shard, region, file, problem, records, dropped} of what could not be. A new version
    leaves out a shard that lost records (`dropped`), not one whose index is amiss. `uncounted` are
    the shards whose tokens were counted and are no longer. `way` is how to go on without a version
    that is lost.
    """

    dataset: str
    version: str
    shards: int
    repaired: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    dropped: int = 0
    """Records that a new version leaves out."""
    dry_run: bool = False
    way: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether all is whole now."""
        return all(entry["dropped"] for entry in self.lost)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, "ok": self.ok, **asdict(self)}


@dataclass(frozen=True, slots=True)
class _Shared:
    form: str
    schema: dict[str, Any]
    counted: dict[str, Any] | None
    """Whose tokens were counted, and how, as the version's report tells."""
    access: Access
    works: dict[str, str]
    dry_run: bool


def repair(
    reference: str,
    *,
    config: GeodataConfig | None = None,
    drop_lost: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Mend the version that `reference` names; `drop_lost` commits one without damaged shards.

    Shards are looked at in the place where they lie; not where a list that names them is lost. What
    is beyond repair is reported, not raised.
    """
    place = locate(reference, config)
    catalog = Catalog.at(place, "repair")
    version = catalog.resolve(place.version)
    versions = [version]
    if place.version is None:
        versions += [other for other in catalog.versions() if other != version]
    folder = JobFolder(Path(place.root), "repair")
    with folder.held():
        restored = restore(catalog, versions, dry_run=dry_run)
        report = _report_of(catalog, version, restored, dry_run)
        if version not in restored.closed:
            index = catalog.exactly(version)
            _mend_shards(catalog, index, report, drop_lost, workers, progress or Silent())
        folder.remove()
    return report


def _report_of(
    catalog: Catalog, version: Version, restored: Restored, dry_run: bool
) -> RepairReport:
    """Return what is known when a dataset's metadata have been looked at."""
    whole = catalog.newest_whole()
    name = whole.dataset if whole is not None else Path(catalog.root).name
    return RepairReport(
        dataset=name,
        version=str(version),
        shards=0,
        repaired=[{"shard": None, "file": file} for file in restored.files],
        lost=[
            {
                "shard": None,
                "region": damage.region,
                "file": damage.file,
                "problem": damage.problem,
                "records": damage.records,
                "dropped": False,
            }
            for damage in restored.lost
        ],
        dry_run=dry_run,
        way=way_on(catalog, restored.lost),
    )


def _mend_shards(
    catalog: Catalog,
    index: Index,
    report: RepairReport,
    drop_lost: bool,
    workers: int | None,
    shown: Progress,
) -> None:
    """Make anew what can be of all shards' files, and commit what has other files now."""
    placed = list(_placed(catalog, index))
    report.shards = len(placed)
    folders = {p.region: JobFolder(Path(p.root), "repair") for p in placed}
    works = {region: str(folder.work) for region, folder in folders.items()}
    counted = index.report.get("counted")
    shared = _Shared(index.format, index.schema_, counted, catalog.access, works, report.dry_run)
    shown.start("repair", sum(p.shard.nbytes for p in placed), "B")
    executor = get_executor("local", workers)
    results = in_order(executor, _mend, placed, shared, lambda p, _: shown.advance(p.shard.nbytes))
    shown.finish()
    for found in results:
        report.repaired += found["repaired"]
        report.lost += found["lost"]
        report.uncounted += found["uncounted"]
    if not report.dry_run:
        lines = {number: found["line"] for number, found in enumerate(results) if found["line"]}
        changed = {number: Shard.from_line(line) for number, line in lines.items()}
        _commit(catalog, index, placed, changed, report, drop_lost)
    for folder in folders.values():
        folder.remove()


def _placed(catalog: Catalog, index: Index) -> Iterator[Placed]:
    for region in sorted(index.regions):
        root = catalog.store(index, region).url
        for shard in catalog.shards(index, region):
            yield Placed(root, region, shard)


def _mend(shared: _Shared, placed: Placed) -> dict[str, Any]:
    """Make anew what can be of a shard's files; say what was, and what is lost."""
    shard = placed.shard
    store = open_store(placed.root, region=placed.region, access=shared.access)
    paths: dict[str, Path] = {}
    damaged: dict[str, str] = {}
    for part, ref in shard.files.items():
        tag = tag_of_file(shard, part)
        path = store.local_path(ref.path, tag, shard.shard_id, action="verify")
        assert path is not None, "stores of shards that are mended are local"
        paths[part] = path
        if problem := _problem(path, ref):
            damaged[part] = problem
    told: dict[str, Any] = {"repaired": [], "lost": [], "uncounted": [], "line": None}
    for part in data_parts(shard.files):
        if part in damaged:
            told["lost"].append(_lost(placed, part, damaged[part]))
            continue
        for what in (beside(part, "index"), beside(part, "units")):
            if what in damaged:
                try:
                    shard = _renewed(shared, placed, shard, part, what, paths)
                except (CorruptShard, PolicyDenied, ValueError) as error:
                    told["lost"].append(_lost(placed, what, str(error)))
                    continue
                told["repaired"].append({"shard": shard.shard_id, "file": shard.files[what].path})
                if what == SIDECAR and _lost_counts(shared, placed.shard, shard):
                    told["uncounted"].append(shard.shard_id)
    if shard != placed.shard:
        told["line"] = shard.to_line()
    return told


def _problem(path: Path, ref: FileRef) -> str | None:
    """Return what is wrong with a file; StoreError where that cannot be told from here."""
    try:
        found = file_ref(path, ref.path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        if error.errno == errno.EIO:
            return f"cannot be read: {error.strerror}"
        text = f"cannot be read: {error.strerror}"
        raise StoreError(text, file=str(path), hint="Make it readable first") from error
    if found.nbytes != ref.nbytes:
        return f"has {found.nbytes} bytes, not {ref.nbytes}"
    return None if found == ref else "does not match its digest"


def _lost(placed: Placed, part: str, problem: str) -> dict[str, Any]:
    shard = placed.shard
    return {
        "shard": shard.shard_id,
        "region": placed.region,
        "file": shard.files[part].path,
        "problem": problem,
        "records": shard.live,
        "dropped": False,
    }


def _renewed(
    shared: _Shared, placed: Placed, shard: Shard, part: str, what: str, paths: dict[str, Path]
) -> Shard:
    """Return the shard with an index or a sidecar made anew and delivered."""
    form = get_format(shared.form)
    store = open_store(placed.root, region=placed.region, access=shared.access)
    counting = _counting(shared) if part == MAIN else None
    if counting is not None or not is_sidecar(what):  # what is made anew takes reading the records
        store.local_path(shard.files[part].path, shard.tag, shard.shard_id, shard.live)
    made = Path(shared.works[placed.region]) / shard.shard_id / paths[what].name
    with storing(made):
        made.parent.mkdir(parents=True, exist_ok=True)
        if is_sidecar(what):
            made.write_bytes(_sidecar(shared, shard, part, paths, counting))
        else:
            form.write_index(paths[part], made)
    old = shard.files[what]
    ref = file_ref(made, old.path)
    if ref != old:
        stem = old.path.removesuffix(paths[what].name)
        mark = bytes_digest(made.read_bytes()).rpartition(":")[2][:8]
        ref = replace(ref, path=f"{stem}{mark}-{paths[what].name}")
    if not shared.dry_run:
        store.put(ref.path, made, tag_of_file(shard, what), about=shard.shard_id)
    return shard if ref == old else replace(shard, files={**shard.files, what: ref})


def _sidecar(
    shared: _Shared, shard: Shard, part: str, paths: dict[str, Path], counting: Counting | None
) -> bytes:
    """Return a sidecar made anew, with the tokens that it counted where that takes no file."""
    form = get_format(shared.form)
    _digest, units = measure(form, paths[part], None, shard.content_digest)
    if counting is None:
        return units.to_bytes()
    count, schema = counting.opened(), schemas.from_json(shared.schema)
    reader = open_shard(form, {name: paths[name] for name in data_parts(paths)}, schema)
    try:
        batches = (reader.read_unit(n, [counting.column]) for n in range(len(reader.unit_slots)))
        tokens = tuple(tuple(count(batch).tolist()) for batch in batches)
    finally:
        reader.close()
    made = (replace(units, tokens=tokens).to_bytes(), units.to_bytes())
    old = shard.files[SIDECAR].sha256
    return next((data for data in made if hashlib.sha256(data).hexdigest() == old), made[0])


def _counting(shared: _Shared) -> Counting | None:
    return None if shared.counted is None else Counting.again(shared.counted)


def _lost_counts(shared: _Shared, old: Shard, new: Shard) -> bool:
    """Return whether a sidecar made anew lacks the token counts that it had."""
    counted = shared.counted is not None and _counting(shared) is None
    return counted and new.files[SIDECAR] != old.files[SIDECAR]


def _dropped(placed: list[Placed], report: RepairReport) -> set[str]:
    """Return the shards that lost records, and mark what is told of them as dropped."""
    shards = [p.shard for p in placed]
    data = {shard.files[part].path for shard in shards for part in data_parts(shard.files)}
    lost = {entry["shard"] for entry in report.lost if entry["file"] in data}
    for entry in report.lost:
        entry["dropped"] = entry["shard"] in lost
    return lost


def _commit(
    catalog: Catalog,
    index: Index,
    placed: list[Placed],
    changed: dict[int, Shard],
    report: RepairReport,
    drop_lost: bool,
) -> None:
    """Commit what has other files now, and leave out what is lost if that is asked for."""
    lost = _dropped(placed, report) if drop_lost else set()
    added: dict[str, list[Shard]] = {}
    for number, shard in changed.items():
        if shard.shard_id not in lost:
            added.setdefault(placed[number].region, []).append(shard)
    gone = lost | {shard.shard_id for found in added.values() for shard in found}
    if not gone:
        return
    removed = [p.shard for p in placed if p.shard.shard_id in gone]
    report.dropped = sum(p.shard.live for p in placed if p.shard.shard_id in lost)
    lines = sorted(shard.to_line() for found in added.values() for shard in found)
    change = Change(
        operation="repair",
        plan_digest=digest_of(["repair", index.version, sorted(gone), lines]),
        added=added,
        removed=removed,
        report=None,
    )
    report.version = catalog.amend(index, change).version
