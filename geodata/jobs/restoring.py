"""Brings back the indexes and lists of versions that are damaged, from their copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from geodata.catalog import Catalog
from geodata.catalog.damage import (
    Damage,
    find_damage,
    recount,
    renew_copies,
    restore_index,
    restore_list,
    restore_sources,
)
from geodata.manifest import Version


@dataclass(slots=True)
class Restored:
    """Files that were made anew, and what is lost; versions `closed` cannot be read (yet)."""

    files: list[str] = field(default_factory=list)
    lost: list[Damage] = field(default_factory=list)
    closed: set[Version] = field(default_factory=set)


def restore(catalog: Catalog, versions: Iterable[Version], *, dry_run: bool) -> Restored:
    """Bring back what can be of versions' metadata; copies that lack are made too."""
    done = Restored()
    for version in versions:
        found = list(find_damage(catalog, [version]))
        if any(damage.kind == "index" for damage in found):
            _settle(done, found, restore_index(catalog, version, dry_run=dry_run))
            if version in done.closed or dry_run:
                done.closed.add(version)
                continue
            found = list(find_damage(catalog, [version]))
        _restore_named(catalog, version, found, done, dry_run)
    return done


def _settle(done: Restored, found: Sequence[Damage], restored: bool) -> None:
    """Write down whether damage was mended."""
    if restored:
        done.files += [damage.file for damage in found if damage.file not in done.files]
    else:
        known = {damage.file for damage in done.lost}
        done.lost += [damage for damage in found if damage.file not in known]
        done.closed |= {damage.version for damage in found if damage.closes}


def _restore_named(
    catalog: Catalog, version: Version, found: Sequence[Damage], done: Restored, dry_run: bool
) -> None:
    index = catalog.exactly(version)
    for damage in found:
        if damage.region is not None:
            whole = restore_list(catalog, index, damage.region, dry_run=dry_run)
            _settle(done, [damage], whole)
            if dry_run:
                done.closed.add(version)
        elif damage.kind == "sources":
            whole = restore_sources(catalog, index, damage.file, dry_run=dry_run)
            _settle(done, [damage], whole)
    if version in done.closed:
        return
    if recount(catalog, index, dry_run=dry_run):
        done.files.append(f"{catalog.index_store.url}/{version.key}")
        index = catalog.exactly(version)
    renewed = renew_copies(catalog, index, dry_run=dry_run)
    done.files += [file for file in renewed if file not in done.files]


def way_on(catalog: Catalog, lost: Iterable[Damage]) -> str | None:
    """Return how to go on without the versions that are lost, if any is."""
    numbers = {damage.version.number for damage in lost if damage.closes}
    if not numbers:
        return None
    newest = catalog.versions()[-1]
    if newest.number in numbers:
        back = catalog.way_back(newest)
        return back or "no version before it is whole: make the dataset anew, in another place"
    kept = {v.number for v in catalog.versions() if v.number > max(numbers)}
    return f"geodata gc DATASET --keep {len(kept)} gives up the versions that are lost"
