"""An earlier version once more, as the newest one. Nothing is deleted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from geodata.catalog import Catalog, locate, stamp
from geodata.config import GeodataConfig
from geodata.errors import ConfigError, ManifestError, ObjectNotFound
from geodata.jobs.base import SCHEMA_VERSION
from geodata.jobs.gc import versions_held
from geodata.manifest import FORMAT_VERSION, Index, Shard, Version


@dataclass(slots=True)
class RollbackReport:
    """What a rollback does: the version `of` which it is, and how the newest one changes.

    `records_before` is None where the newest one is damaged.
    """

    dataset: str
    of: str
    before: str
    version: str | None
    records: int
    records_before: int | None
    shards: int
    dry_run: bool = False
    unchanged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def rollback(
    reference: str, *, config: GeodataConfig | None = None, dry_run: bool = False
) -> RollbackReport:
    """Commit the version that NAME@VERSION names once more, on top of the newest.

    The newest may be damaged: its number stays taken. An erasure stays one: it is the version's
    newest revision that comes back. Raises ConfigError, ManifestError if that is damaged,
    ObjectNotFound if a file of it is gone, CommitConflict if another writer was faster, StoreError
    while `gc` runs.
    """
    place = locate(reference, config)
    if place.version is None:
        raise ConfigError("back to which version?", hint="geodata rollback DATASET@v2")
    with nullcontext() if dry_run else versions_held(place):
        return _rolled_back(Catalog.at(place, "rollback"), place.version, dry_run)


def _rolled_back(catalog: Catalog, version: Version, dry_run: bool) -> RollbackReport:
    wanted, newest = catalog.index(version), catalog.resolve()
    try:
        latest = catalog.exactly(newest)
    except ManifestError:
        latest = None
    shards = {region: catalog.shards(wanted, region) for region in wanted.regions}
    report = RollbackReport(
        dataset=wanted.dataset,
        of=wanted.version,
        before=str(newest),
        version=None,
        records=wanted.records,
        records_before=latest.records if latest else None,
        shards=sum(map(len, shards.values())),
        dry_run=dry_run,
        unchanged=latest is not None and _same(latest, wanted),
    )
    if report.unchanged:
        report.version = str(newest)
        return report
    for region, found in shards.items():
        _check_there(catalog, wanted, region, found)
    if not dry_run:
        draft = wanted.model_copy(
            update={
                **stamp(),
                "format_version": FORMAT_VERSION,
                "report": {**wanted.report, "operation": "rollback", "of": wanted.version},
            }
        )
        onto = wanted.model_copy(update={"version": str(newest)})  # with roots where its files lie
        report.version = catalog.commit(draft, shards, onto=onto).version
    return report


def _same(latest: Index, wanted: Index) -> bool:
    lists = ({name: e.listing.sha256 for name, e in i.regions.items()} for i in (latest, wanted))
    same = latest.schema_ == wanted.schema_ and latest.labels == wanted.labels
    return same and next(lists) == next(lists)


def _check_there(catalog: Catalog, index: Index, region: str, shards: list[Shard]) -> None:
    store = catalog.store(index, region)
    for shard in shards:
        for ref in shard.files.values():
            try:
                found = store.stat(ref.path).nbytes
            except ObjectNotFound:
                found = -1
            if found != ref.nbytes:
                raise ObjectNotFound(
                    f"a file of {index.version} is not there any more, or is damaged",
                    shard=shard.shard_id,
                    region=region,
                    file=ref.path,
                    hint="geodata verify DATASET@VERSION tells what is missing",
                )
