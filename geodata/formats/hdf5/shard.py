"""Shards in HDF5, natural to stock h5py and read by us without it.

The names are those of `layout`: numbers and tensors of fixed shape stand under the column's own
name, bytes and strings as flat `uint8` with `int64` offsets, each over the whole shard:

    with h5py.File("shard.h5") as file:
        offsets = file["image/offsets"]                              # rows + 1
        image = file["image/data"][offsets[7] : offsets[8]].tobytes()
        label = file["label"][7]
        if "label:valid" in file and not file["label:valid"][7]:     # there where there are nulls
            label = None

These datasets are virtual. The bytes lie in `__geodata__/UNIT.PART`, a contiguous dataset for each
part of each unit, in which the units follow one another: a column of a unit, or a unit, is one run
of bytes. A block of 512 bytes before HDF5's own (its user block) says where in the file
`__geodata__/about` (schema and metadata as JSON) and `__geodata__/table` (the place of every part)
lie, and how large the file is. Hence a reader is a mapping of the file: it opens no HDF5, takes no
lock, survives a fork, follows no link of a hostile file, and copies nothing but booleans, validity
and offsets. A row is taken from views of its unit, so no more than the row's bytes and the unit's
offsets and texts (which must be UTF-8) are touched.

With `hdf5` nothing is compressed. Encoded media take as much as in Parquet; text, labels and keys,
which Parquet compresses, take 2 to 5 times as much. A unit adds about 350 bytes for each part.

With `hdf5+gzip` each part of each unit, encoded media and what would not shrink excepted, is one
chunk under HDF5's own filters: a unit is still one run of bytes, and stock h5py needs no plugin. A
chunk is inflated as a whole, here as there, and kept for the rows that follow if it fits the cache:
with HDF5 before 2.0 open with `h5py.File(path, rdcc_nbytes=16 << 20)`. Text of 98 languages in
files of 7 KB shrinks by 70 per cent in the order of its folders, and by 63 once it is shuffled; one
core writes 20 MB and reads 300 MB of it in a second. Either format reads the files of both; a
release that does not know version 2 refuses compressed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import CorruptShard
from geodata.formats.base import UnitRange
from geodata.formats.hdf5.deflate import ENCODED
from geodata.formats.hdf5.directory import Directory, load
from geodata.formats.layout import Array, Layout
from geodata.formats.mapping import map_file
from geodata.formats.slices import RAGGED, Slices, runs_of
from geodata.formats.units import UnitCutter, select, starts_of, take_by_unit
from geodata.schema import media_of

if TYPE_CHECKING:
    from geodata.formats.hdf5.writer import Hdf5Writer


class Hdf5Format:
    """The format `hdf5`."""

    name = "hdf5"
    suffix = ".h5"
    index_suffix: str | None = None
    deflates = False
    """Whether what is written is compressed; a file that is read says so itself."""

    def create(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        unit_bytes: int,
        metadata: Mapping[str, str],
        unit_slots: Sequence[int] | None = None,
    ) -> Hdf5Writer:
        """Start a shard; MissingExtra without h5py."""
        from geodata.formats.hdf5.writer import Hdf5Writer

        units = UnitCutter(schema, self.row_nbytes, unit_bytes, unit_slots)
        return Hdf5Writer(path, schema, units, metadata, deflates=self.deflates)

    def open(self, path: Path, index: Path | None = None) -> Hdf5Reader:  # noqa: ARG002
        """Open a shard; its table is its index."""
        return Hdf5Reader(path)

    def write_index(self, path: Path, index: Path) -> None:  # noqa: ARG002
        """Refuse: the table is the index."""
        raise ValueError("an HDF5 shard has no index beside it")

    def units(self, path: Path, index: Path | None = None) -> list[UnitRange]:  # noqa: ARG002
        """Return the byte range of each unit: its parts, and HDF5's headers between them."""
        return load(map_file(path), path.name).ranges()

    def row_nbytes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the bytes of each row in its parts."""
        total = np.zeros(batch.num_rows, np.int64)
        for field, array in zip(batch.schema, batch.columns, strict=True):
            total += Layout(field).nbytes(array)
        return total


class Hdf5GzipFormat(Hdf5Format):
    """The format `hdf5+gzip`: all but encoded media is deflated."""

    name = "hdf5+gzip"
    deflates = True


class Hdf5Reader:
    """Reads one HDF5 shard from its mapping: columns not asked for are not touched."""

    def __init__(self, path: Path):
        self._shard = path.name
        self._data: pa.Buffer | None = map_file(path)
        self._directory: Directory = load(self._data, path.name)
        self.schema: pa.Schema = self._directory.schema
        self.metadata: Mapping[str, str] = self._directory.metadata
        self.unit_slots: Sequence[int] = self._directory.slots.tolist()
        self._starts = starts_of(self.unit_slots)
        self.num_rows = int(self._starts[-1])

    def read_unit(self, unit: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return all rows of a unit, as views of the mapping where it is not compressed."""
        schema = select(self.schema, columns)
        if not 0 <= unit < len(self.unit_slots):
            raise IndexError(f"no unit {unit} of {len(self.unit_slots)}")
        if self._data is None:
            raise ValueError("the shard is closed")
        data = np.frombuffer(self._data, np.uint8)
        arrays = [self._column(data, unit, field.name) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def runs(self, unit: int, columns: Sequence[str]) -> Mapping[str, Slices]:
        """Return where encoded media lie; shorter values are cheaper to take in Arrow."""
        media = [name for name in columns if media_of(self.schema.field(name)) in ENCODED]
        ragged = [name for name in media if self.schema.field(name).type in RAGGED]
        if not ragged:
            return {}
        batch = self.read_unit(unit, ragged)
        return {name: runs_of(batch.column(name)) for name in ragged}

    def take(self, rows: Sequence[int], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return rows in the order given, copying these alone out of their units."""
        schema = select(self.schema, columns)
        if self._data is None:
            raise ValueError("the shard is closed")
        if len(rows) == 0:
            nothing = [pa.nulls(0, field.type) for field in schema]
            return pa.RecordBatch.from_arrays(nothing, schema=schema)
        return take_by_unit(lambda unit: self.read_unit(unit, columns), self._starts, rows)

    def close(self) -> None:
        """Release the file."""
        self._data = None

    def _column(self, data: Array, unit: int, name: str) -> pa.Array:
        try:
            layout, parts = self._directory.column(unit, name, data)
            return layout.build(parts, self.unit_slots[unit])
        except ValueError as error:
            text = f"its parts do not fit one another ({error})"
            raise CorruptShard(text, shard=self._shard, unit=unit, column=name) from None
