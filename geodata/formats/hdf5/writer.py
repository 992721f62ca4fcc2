"""Writes HDF5 shards: what HDF5 is told to put where. The only file of the format that needs h5py.

Space in the file is given out in the order in which it is asked for (the strategy NONE), so the
parts of a unit, all made before the first is written, lie next to one another. Beside the unit in
hand, HDF5 keeps up to 32 MiB of metadata, and at the end about 60 KB for each unit.

The oldest encoding of everything is chosen: newer ones add times to what a file says of itself. A
file with deflated parts goes on in that of HDF5 1.10, once what would tell times has been made.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.errors import MissingExtra
from geodata.formats.base import VERSION_KEY, stamped
from geodata.formats.hdf5.deflate import ENCODED, LEVEL, deflate
from geodata.formats.hdf5.directory import (
    ABSENT,
    ALIGNMENT,
    DEFLATED_VERSION,
    HEAD_NBYTES,
    Extent,
    encode_about,
    encode_head,
    layouts_of,
)
from geodata.formats.hdf5.sink import Sink
from geodata.formats.layout import OFFSETS, VALID, Array, Part
from geodata.formats.units import UnitCutter, one_batch
from geodata.schema import media_of

try:
    from h5py import h5d, h5f, h5fd, h5g, h5p, h5s, h5t
except ImportError:
    raise MissingExtra.of("h5py", "hdf5") from None

P = ParamSpec("P")
T = TypeVar("T")

_OWN = "__geodata__"


class Hdf5Writer:
    """Writes one HDF5 shard."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        units: UnitCutter,
        metadata: Mapping[str, str],
        *,
        deflates: bool,
    ):
        self.nbytes = 0
        self._path, self._units, self._deflates = path, units, deflates
        self._metadata = _stamped(metadata) if deflates else stamped(metadata)
        self._about = encode_about(schema, self._metadata, deflated=deflates)
        self._layouts = layouts_of(schema)
        parts = [
            (part, deflates and media_of(field) not in ENCODED)
            for field, layout in zip(schema, self._layouts, strict=True)
            for part in layout.parts
        ]
        self._pieces = [_Pieces(number, *part) for number, part in enumerate(parts)]
        self._slots: list[int] = []
        self._threads = ThreadPoolExecutor(1)
        self._file = self._apart(_File, path, deflates)
        self._release = weakref.finalize(self, _release, self._threads, self._file)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit, the columns over all units and the head."""
        for unit in self._units.flush():
            self._write_unit(unit)
        table = self._table()
        about = np.frombuffer(self._about, np.uint8)
        extents, self.nbytes = self._apart(self._file.finish, self._pieces, about, table)
        content = self._about + table.tobytes()
        head = encode_head(self._metadata[VERSION_KEY], self.nbytes, extents, content)
        self._file.seal(head)
        self._release()

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        batch = one_batch(batches)
        found: dict[str, Array] = {}
        for layout, array in zip(self._layouts, batch.columns, strict=True):
            found |= layout.flatten(array)
        arrays = [pieces.add(found, batch.num_rows) for pieces in self._pieces]
        stored = [pair for pair in zip(self._pieces, arrays, strict=True) if pair[1].nbytes]
        datasets = {pieces.names[-1]: pieces.content(array) for pieces, array in stored}
        extents = self._apart(self._file.write, datasets)
        for (pieces, _), (offset, nbytes) in zip(stored, extents, strict=True):
            pieces.offsets[-1], pieces.sizes[-1] = offset, nbytes
            self.nbytes = offset + nbytes
        self._slots.append(batch.num_rows)

    def _apart(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a call into HDF5 returns, made in a thread of its own.

        In the main thread the handler of a signal may raise at any step, in the midst of HDF5 too,
        which would not survive it. So an interrupt is raised when the call has ended.
        """
        future = self._threads.submit(call, *args, **kwargs)
        try:
            return future.result()
        finally:
            wait([future])
            del future  # an error refers to this frame

    def _table(self) -> npt.NDArray[np.int64]:
        numbers = [(p.offsets, p.counts, p.sizes)[: 2 + self._deflates] for p in self._pieces]
        columns = [column for told in numbers for column in told]
        table: npt.NDArray[np.int64] = np.array([self._slots, *columns], "<i8").T
        return np.ascontiguousarray(table)


@dataclass(frozen=True, slots=True)
class _Content:
    """What a dataset is to hold: an array, plain or as one chunk of deflated bytes."""

    array: Array
    deflated: bytes | None = None

    def write(self, dataset: Any) -> None:
        """Write all of it; nothing where it is empty."""
        if self.deflated is not None:
            dataset.write_direct_chunk((0,) * self.array.ndim, self.deflated)
        elif self.array.nbytes:
            dataset.write(h5s.ALL, h5s.ALL, self.array, dataset.get_type())

    def extent(self, dataset: Any, sink: Sink) -> Extent:
        """Return where it was written; HDF5 before 2.0 counts chunks from its own first byte."""
        if self.deflated is None:
            return dataset.get_offset() or 0, self.array.nbytes
        offset = dataset.get_chunk_info(0).byte_offset
        if not sink.holds(offset, self.deflated):
            offset += HEAD_NBYTES
        return offset, len(self.deflated)


class _Pieces:
    """A part in each unit: the dataset that holds it, where, and how much of the whole it is.

    `counts` are the values stored, `lengths` those of the whole; the offsets of later units start
    with the value that those of the unit before end with, and the whole has it once. `sizes` are
    the bytes stored.
    """

    def __init__(self, number: int, part: Part, deflates: bool):
        self.part, self.deflates, self._number = part, deflates, number
        self.names: list[str] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.lengths: list[int] = []
        self._end = 0

    def add(self, found: Mapping[str, Array], rows: int) -> Array:
        """Return the array to store of a unit of so many rows, empty where there is none."""
        array = found.get(self.part.name)
        length = self.part.count(found, rows)
        if self.part.role == OFFSETS and array is not None:
            array = array + self._end
            self._end = int(array[-1])
            length += not self.names
        self.names.append(f"{_OWN}/{len(self.names)}.{self._number}")
        self.offsets.append(0)
        self.sizes.append(0)
        self.counts.append(ABSENT if array is None else len(array))
        self.lengths.append(length)
        return np.zeros(0, self.part.dtype) if array is None else array

    def content(self, array: Array) -> _Content:
        """Return what is to be stored of the array."""
        return _Content(array, deflate(array) if self.deflates else None)

    @property
    def stored(self) -> bool:
        """Return whether any unit has the part."""
        return any(count != ABSENT for count in self.counts)

    @property
    def total(self) -> int:
        """Return the number of values of the whole; offsets of no units are one."""
        return sum(self.lengths) if self.names else int(self.part.role == OFFSETS)

    def runs(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield each dataset with values of the whole: its name, its length, how many, and where.

        They are the last of the dataset.
        """
        start = 0
        for name, count, length in zip(self.names, self.counts, self.lengths, strict=True):
            if count * length * self.part.nbytes > 0:
                yield name, count, length, start
            start += length


class _File:
    """An HDF5 file that is equal, byte for byte, for equal contents. Its first bytes are ours."""

    def __init__(self, path: Path, deflates: bool):
        creation = h5p.create(h5p.FILE_CREATE)
        creation.set_obj_track_times(False)
        creation.set_userblock(HEAD_NBYTES)
        creation.set_file_space_strategy(h5f.FSPACE_STRATEGY_NONE, False, 1)
        self._link = h5p.create(h5p.LINK_CREATE)
        self._link.set_char_encoding(h5t.CSET_UTF8)
        self._group = h5p.create(h5p.GROUP_CREATE)
        self._group.set_obj_track_times(False)
        self._contiguous = _plist(h5d.CONTIGUOUS)
        self._contiguous.set_fill_time(h5d.FILL_TIME_NEVER)
        self._groups: set[str] = set()
        self._sink = Sink(path)
        access, name = _access(self._sink, h5f.LIBVER_EARLIEST), os.fsencode(path)
        self._file = h5f.create(name, h5f.ACC_TRUNC, creation, access)
        if deflates:
            self._reopen(name)

    def write(self, contents: Mapping[str, _Content]) -> list[Extent]:
        """Write datasets, their bytes one after another; return where these lie."""
        made = [self._create_for(name, content) for name, content in contents.items()]
        for dataset, content in zip(made, contents.values(), strict=True):
            content.write(dataset)
        pairs = zip(made, contents.values(), strict=True)
        extents = [content.extent(dataset, self._sink) for dataset, content in pairs]
        self._sink.check()
        return extents

    def finish(self, parts: list[_Pieces], about: Array, table: Array) -> tuple[list[Extent], int]:
        """Write the rest and let HDF5 close; return where `about` and `table` lie, and the size."""
        for pieces in parts:
            if pieces.stored or pieces.part.role != VALID:
                self._join(pieces)
        own = {f"{_OWN}/about": _Content(about), f"{_OWN}/table": _Content(table)}
        extents = self.write(own)
        self._file.close()
        self._sink.check()
        return extents, self._sink.seek(0, os.SEEK_END)

    def seal(self, head: bytes) -> None:
        """Write the first bytes of a finished file."""
        self._sink.seek(0)
        self._sink.write(memoryview(head))
        self._sink.check()

    def release(self) -> None:
        """Close what is open; nothing is written any more."""
        self._sink.end()
        if self._file.valid:
            self._file.close()
        self._sink.close()

    def _join(self, pieces: _Pieces) -> None:
        """Make the dataset of a part over all units; where a unit has no validity, all is valid."""
        part, shape = pieces.part, (pieces.total, *pieces.part.shape)
        plist, whole = _plist(h5d.VIRTUAL), h5s.create_simple(shape)
        plist.set_fill_value(np.array(part.role == VALID, part.dtype))
        for name, count, length, start in pieces.runs():
            source = h5s.create_simple((count, *part.shape))
            if count > length:
                _select(source, count - length, (length, *part.shape))
            _select(whole, start, (length, *part.shape))
            plist.set_virtual(whole, b".", name.encode(), source)
        if plist.get_virtual_count():
            self._create(part.name, part.dtype, shape, plist)
        else:
            self.write({part.name: _Content(np.zeros(shape, part.dtype))})

    def _create_for(self, name: str, content: _Content) -> Any:
        plist = self._contiguous if content.deflated is None else _one_chunk(content.array)
        return self._create(name, content.array.dtype, content.array.shape, plist)

    def _create(self, name: str, dtype: Any, shape: tuple[int, ...], plist: Any) -> Any:
        """Return a new dataset, making the groups that it stands in."""
        for end in (i for i, character in enumerate(name) if character == "/"):
            self._create_group(name[:end])
        kind, space = h5t.py_create(dtype, logical=True), h5s.create_simple(shape)
        return h5d.create(self._file, name.encode(), kind, space, plist, self._link)

    def _create_group(self, name: str) -> None:
        if name not in self._groups:
            h5g.create(self._file, name.encode(), self._link, self._group)
            self._groups.add(name)

    def _reopen(self, name: bytes) -> None:
        """Have what follows in the encoding of HDF5 1.10, in which a lone chunk has no index.

        An index takes 2 KB. The root and our group, which has one link for each part of each unit,
        stay in the oldest encoding.
        """
        try:
            self._create_group(_OWN)
            self._file.close()
            self._sink.check()
            access = _access(self._sink, h5f.LIBVER_V110)
            self._file = h5f.open(name, h5f.ACC_RDWR, access)
        except BaseException:
            self._sink.close()
            raise


def _stamped(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a shard's metadata with the version in which parts may be deflated."""
    made = stamped(metadata)
    return {**made, VERSION_KEY: str(max(int(made[VERSION_KEY]), DEFLATED_VERSION))}


def _release(threads: ThreadPoolExecutor, file: _File) -> None:
    """Have HDF5 done with a file, finished or not, before the interpreter is."""
    threads.shutdown()
    file.release()


def _access(sink: Sink, oldest: int) -> Any:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(oldest, h5f.LIBVER_V110)
    access.set_alignment(1, ALIGNMENT)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5fd.fileobj_driver, sink)
    return access


def _one_chunk(array: Array) -> Any:
    """Return the layout of an array whose values are deflated as one."""
    plist = _plist(h5d.CHUNKED)
    plist.set_chunk(array.shape)
    plist.set_fill_time(h5d.FILL_TIME_NEVER)
    if array.dtype.itemsize > 1:
        plist.set_shuffle()
    plist.set_deflate(LEVEL)
    return plist


def _plist(layout: int) -> Any:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_obj_track_times(False)
    plist.set_layout(layout)
    return plist


def _select(space: Any, start: int, shape: tuple[int, ...]) -> None:
    """Select the values from `start` on."""
    space.select_hyperslab((start, *[0] * (len(shape) - 1)), shape)
