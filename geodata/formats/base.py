"""What a shard format is, and the registry of the formats.

A format knows one shard file: no rotation, upload, region or manifest. At birth a shard is cut
into units (a row group, a run of tar members), each readable by one byte range; unit boundaries
follow from the rows and `unit_bytes` alone, never from how the rows were batched. A row whose
`__key__` is null is a tombstone: all its columns are null, and it keeps its slot.

The conformance suite in `tests/formats/conformance.py`, subclassed per format, is the definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import ConfigError, CorruptShard, FormatVersionError
from geodata.formats.slices import Slices
from geodata.schema import media_of

FORMAT_VERSION = 1
VERSION_KEY = "geodata.format_version"
"""Under which every shard's metadata hold the version."""

MEDIA_UNIT_BYTES = 1 << 20
UNIT_BYTES = 4 << 20


def stamped(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a shard's metadata with the format version that is written now."""
    return {**metadata, VERSION_KEY: str(FORMAT_VERSION)}


def check_version(stored: str | int | None, shard: str, newest: int = FORMAT_VERSION) -> None:
    """Refuse a shard of a later format version than `newest`, and one that has none."""
    text = str(stored)
    if not (text.isascii() and text.isdigit()):
        raise CorruptShard("no shard of geodata", shard=shard)
    if int(text) > newest:
        raise FormatVersionError(
            f"format version {int(text)} is newer than {newest}",
            hint="Upgrade geodata-train to read it",
            shard=shard,
        )


def unit_bytes_for(schema: pa.Schema) -> int:
    """Return the target bytes of a unit: 1 MiB with encoded media, else 4 MiB."""
    encoded = any(media_of(field) in ("image", "audio") for field in schema)
    return MEDIA_UNIT_BYTES if encoded else UNIT_BYTES


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Where a unit lies in its file: bytes [offset, offset + length), holding `slots` rows."""

    offset: int
    length: int
    slots: int


@runtime_checkable
class ShardWriter(Protocol):
    """Writes one shard file at the path it was created with."""

    nbytes: int
    """Bytes written so far; rows still buffered for the next unit are not counted."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; the schema must equal the shard's."""

    def close(self) -> None:
        """Write what is buffered and the trailer."""


@runtime_checkable
class ShardReader(Protocol):
    """Reads one shard file. Every read returns columns in schema order."""

    schema: pa.Schema
    metadata: Mapping[str, str]
    """What the shard was created with, and the format version under `VERSION_KEY`."""
    num_rows: int
    unit_slots: Sequence[int]
    """Rows per unit, fixed at birth."""

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a unit, tombstones included: the fast path."""

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the rows with these numbers, in the order given (repeats allowed)."""

    def close(self) -> None:
        """Release the file; further reads are an error."""


@runtime_checkable
class MappedReader(ShardReader, Protocol):
    """A reader that also tells where bytes lie plain in the mapped file, so that none is decoded.

    The text among them is as it stands, UTF-8 or not.
    """

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return where the values of a unit lie, for those of the columns that are in the file so.

        They are columns of strings or binaries, the same in all units of all shards of a schema.
        The slices stay good after `close`.
        """


class Format(Protocol):
    """One way to lay records out in a file."""

    name: str
    suffix: str
    """Of a shard file, with its dot."""
    index_suffix: str | None
    """Of the file beside the shard that makes opening O(1); None where the shard needs none."""

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> ShardWriter:
        """Start a shard; `metadata` (the tag, say) is stored inside it.

        With `unit_slots` the units hold exactly these numbers of rows, whatever their bytes: an
        erasure rewrites a shard so.
        """

    def open(self, path: Path, index: Path | None = None) -> ShardReader:
        """Open a shard; CorruptShard if it is none, FormatVersionError if it is too new."""

    def write_index(self, path: Path, index: Path) -> None:
        """Write the index, made from the shard alone; ValueError where the format has none."""

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:
        """Return where each unit lies."""

    def row_nbytes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return, for each row, about how many bytes of the file it takes at most."""


FORMATS = {
    "parquet": "geodata.formats.parquet:ParquetFormat",
    "webdataset": "geodata.formats.webdataset.shard:WebDatasetFormat",
    "webdataset+gzip": "geodata.formats.webdataset.shard:WebDatasetGzipFormat",
    "webdataset+xz": "geodata.formats.webdataset.shard:WebDatasetXzFormat",
    "hdf5": "geodata.formats.hdf5.shard:Hdf5Format",
    "hdf5+gzip": "geodata.formats.hdf5.shard:Hdf5GzipFormat",
    "tfrecord": "geodata.formats.tfrecord.shard:TfRecordFormat",
}


def get_format(name: str) -> Format:
    """Return the format of that name, loading its packages now."""
    if name not in FORMATS:
        raise ConfigError(f"no format '{name}'", hint=f"Known: {', '.join(FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    made: Format = getattr(import_module(module), attribute)()
    return made
