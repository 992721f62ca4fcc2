"""Shards in WebDataset's layout: a tar, in which a unit is a run of members.

A record's members follow one another: `.json` first, then those of `columns`. Their stem is
the key, percent-encoded but for [A-Za-z0-9_-], so that stock readers, which split at the first
dot, find it whole ("%" stands for the empty key). Members under `__geodata__/`, which stock
readers skip, hold what is said of the shard (`shard.json`, `end.json`) and a tombstone's slot.

With `webdataset` nothing is compressed. A record costs 1 KiB for its `.json` and about 768 bytes of
header and padding for each other member: text of 1 KB a record is 2 to 5 times larger than in
Parquet.

With `webdataset+gzip` and `webdataset+xz` the same tar is compressed, each unit by itself, into the
one stream that every stock reader of tar.gz and tar.xz takes it for. Headers and padding shrink to
some 100 bytes a record; a unit is unpacked as a whole and decoded from memory. Text of 98 languages
in files of 7 KB shrinks by 68 per cent with gzip, where one core writes 20 MB and reads 240 MB a
second, and by 77 with xz, where it writes 3 MB and reads 90 MB. Encoded media shrink by little more
than the padding and are read faster from a plain tar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.canonical import array_nbytes
from geodata.formats.base import ShardReader, UnitRange
from geodata.formats.mapping import map_file
from geodata.formats.units import UnitCutter
from geodata.formats.webdataset.columns import Plan, plan
from geodata.formats.webdataset.gzipped import Gzip
from geodata.formats.webdataset.index import save
from geodata.formats.webdataset.reader import PackedReader, WebDatasetReader, index_of
from geodata.formats.webdataset.scan import scan
from geodata.formats.webdataset.segments import Codec, Plain
from geodata.formats.webdataset.tarball import BLOCK, header_nbytes, padded_nbytes, stem_nbytes
from geodata.formats.webdataset.writer import WebDatasetWriter
from geodata.formats.webdataset.xz import Xz
from geodata.schema import KEY

Int64s = npt.NDArray[np.int64]


class WebDatasetFormat:
    """The format `webdataset`."""

    name = "webdataset"
    suffix = ".tar"
    index_suffix: str | None = ".index"
    codec: Codec | None = None

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> WebDatasetWriter:
        """Start a shard."""
        units = UnitCutter(schema, self.row_nbytes, unit_bytes, unit_slots)
        packer = self.codec.packer() if self.codec else Plain()
        return WebDatasetWriter(path, schema, units, metadata, packer)

    def open(self, path: Path, index: Path | None = None) -> ShardReader:
        """Open a shard by its index, or by a scan of its headers."""
        if self.codec:
            return PackedReader(path, index, self.codec)
        return WebDatasetReader(path, index)

    def write_index(self, path: Path, index: Path) -> None:
        """Write the index, an Arrow file that `index` describes."""
        save(scan(map_file(path), path.name, self.codec), index)

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:
        """Return the blocks of each unit's members, or the bytes they are packed in."""
        return list(index_of(map_file(path), path, index, self.codec).units)

    def row_nbytes(self, batch: pa.RecordBatch) -> Int64s:
        """Return the bytes of each record's members with headers and padding; JSON is a guess."""
        places = plan(batch.schema)
        keys = batch.column(batch.schema.get_field_index(KEY))
        names = stem_nbytes(keys)
        total = _member_nbytes(names + len(".json"), _json_nbytes(batch, places))
        for member in places.members:
            suffix = max(len(suffix) for suffix in member.suffixes)
            total += _member_nbytes(names + suffix, member.nbytes(batch.column(member.column)))
        return np.where(keys.is_valid(), total, BLOCK)


class WebDatasetGzipFormat(WebDatasetFormat):
    """The format `webdataset+gzip`."""

    name = "webdataset+gzip"
    suffix = ".tar.gz"
    codec: Codec = Gzip()


class WebDatasetXzFormat(WebDatasetFormat):
    """The format `webdataset+xz`."""

    name = "webdataset+xz"
    suffix = ".tar.xz"
    codec: Codec = Xz()


def packed_format(path: Path) -> str | None:
    """Return the compressed format whose frame a file has, if there is one."""
    data = memoryview(map_file(path)).cast("B")
    for form in (WebDatasetGzipFormat, WebDatasetXzFormat):
        with suppress(ValueError):
            form.codec.segments(data)
            return form.name
    return None


def _member_nbytes(names: Int64s, contents: Int64s) -> Int64s:
    """Return the bytes of members with names and contents of these lengths; -1: no member."""
    return np.where(contents < 0, 0, header_nbytes(names) + padded_nbytes(contents))


def _json_nbytes(batch: pa.RecordBatch, places: Plan) -> Int64s:
    """Return about how long each record's JSON is at most."""
    total = np.full(batch.num_rows, len("{}"), np.int64)
    for i in places.json:
        field, array = batch.schema.field(i), batch.column(i)
        wide = 1 if field.type in (pa.string(), pa.large_string()) else 3
        sizes = wide * (array_nbytes(array) + 1) + len(field.name) + len('"":,')
        total += np.where(array.is_valid(), sizes, 0)
    return total
