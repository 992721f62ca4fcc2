"""What a classified dataset holds already of the records that are to be added to it.

They are compared with what may be read here: their keys always, their content where repeats go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geodata import schema as schemas
from geodata.catalog import Catalog, visible_set
from geodata.errors import SchemaError
from geodata.executors import Executor
from geodata.jobs.base import NAME_CHARS, digest_of
from geodata.jobs.comparing import print_shards, prints_folder, repeats_among
from geodata.jobs.sharding import Sharding
from geodata.manifest import Index, Shard
from geodata.partition.dedupe import LeftOut, Repeats, Stored, key_at
from geodata.partition.repeating import Routed, print_routed
from geodata.schema import KEY, SUBJECT, data_fields
from geodata.stores import GatedStore, open_store
from geodata.tags import STAGING


@dataclass(frozen=True, slots=True)
class Held:
    """The shards of the version `base` that may be read here, by store; of others, the records."""

    base: Index
    readable: list[tuple[GatedStore, list[Shard]]]
    unread: int
    executor: Executor

    @classmethod
    def of(cls, catalog: Catalog, base: Index, executor: Executor) -> Held:
        """Return what of a version may be read here."""
        access = catalog.access
        visible = visible_set(catalog, base, access.here, access.purpose)
        readable = [
            (catalog.store(base, region), [s for home, s in visible.shards if home == region])
            for region in sorted(base.regions)
        ]
        unread = sum(shard.live for _home, shard, _rule in visible.denied)
        return cls(base, readable, unread, executor)

    def without_repeats(self, work: Sharding) -> Sharding:
        """Return the work without records that are equal to one before, of it or held.

        Equal are those whose columns are, as they would be stored, with the subject's pseudonym.
        """
        columns = (SUBJECT, *(field.name for field in data_fields(work.schema)))
        known = self._prints(work, columns, "content")
        new = self._prints_to_be(work, columns)
        files = repeats_among(work.folder, self.executor, [*known, *new], len(known))
        items = {shard.shard_id: item for item, shard in enumerate(work.shards, len(known))}
        left_out = LeftOut(str(prints_folder(work.folder)), files, items)
        repeats = sum(len(left_out.rows(shard.shard_id)) for shard in work.shards)
        digest = digest_of([work.digest, files]) if repeats else work.digest
        return replace(work, left_out=left_out, repeats=repeats, digest=digest)

    def check_keys(self, work: Sharding) -> None:
        """Raise SchemaError if a key of the work is that of another record, of it or held."""
        known = self._prints(work, (KEY,), "keys")
        root = work.staging.root
        store = open_store(root, region=STAGING, access=work.staging.access)
        stored = _stored(work, work.index.format, work.index.schema_, store, (KEY,), "keys")
        new = print_shards(work.folder, self.executor, stored, work.shards, work.progress)
        files = repeats_among(work.folder, self.executor, [*known, *new], len(known))
        found = Repeats(prints_folder(work.folder), files)
        for item, shard in enumerate(work.shards, len(known)):
            rows = found.rows(item)
            if work.left_out is not None:
                rows = np.setdiff1d(rows, work.left_out.rows(shard.shard_id))
            if rows.size:
                raise SchemaError(
                    "two records have one key",
                    key=key_at(stored, shard, int(rows[0])),
                    hint="Keys are unique: is it the same source, converted another way? With "
                    "--staging DIR what was converted is kept, and what is new is added to it",
                )

    def _prints(self, work: Sharding, columns: tuple[str, ...], stage: str) -> list[dict[str, Any]]:
        """Return the fingerprints of what is held, by some columns of the dataset to be."""
        schema, found = schemas.to_json(work.schema), []
        for store, shards in self.readable:
            stored = _stored(work, self.base.format, schema, store, columns, stage)
            found += print_shards(work.folder, self.executor, stored, shards, work.progress)
        return found

    def _prints_to_be(self, work: Sharding, columns: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the fingerprints of the work's records as they would be stored."""
        name = digest_of([work.digest, columns])
        folder = str(prints_folder(work.folder))
        shared = Routed(work.routing(), work.finishing.exif, columns, folder, name[:NAME_CHARS])
        work.progress.start("compare", work.records, "records")
        found = work.folder.run(
            "routed",
            [digest_of([name, shard.shard_id]) for shard in work.shards],
            self.executor,
            print_routed,
            work.shards,
            shared,
            lambda result: work.progress.advance(result["records"]),
        )
        work.progress.finish()
        return found


def _stored(
    work: Sharding,
    form: str,
    schema: dict[str, Any],
    store: GatedStore,
    columns: tuple[str, ...],
    stage: str,
) -> Stored:
    """Return how shards are compared that lie in a store, by some of their columns."""
    return Stored(
        root=store.url,
        region=store.region,
        access=store.access,
        form=form,
        schema=schema,
        columns=columns,
        folder=str(prints_folder(work.folder)),
        stage=stage,
    )
