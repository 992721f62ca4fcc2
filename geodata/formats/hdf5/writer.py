"""Writes HDF5 shards: what HDF5 is told to put where. The only file that needs h5py.

Space in the file is given out in the order in which it is asked for (the strategy NONE), so the
parts of a unit, all made before the first is written, lie next to one another. Beside the unit in
hand, HDF5 keeps up to 32 MiB of metadata, and at the end about 60 KB for each unit.

The oldest encoding of everything is chosen: newer ones add times to what a file says of itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.durable import sync
from geodata.errors import MissingExtra
from geodata.formats.base import VERSION_KEY, stamped
from geodata.formats.hdf5.directory import (
    ABSENT,
    ALIGNMENT,
    HEAD_NBYTES,
    Extent,
    encode_about,
    encode_head,
    layouts_of,
)
from geodata.formats.layout import OFFSETS, VALID, Array, Part
from geodata.formats.units import UnitCutter, one_batch

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
        self, path: Path, schema: pa.Schema, units: UnitCutter, metadata: Mapping[str, str]
    ):
        self.nbytes = 0
        self._path, self._units = path, units
        self._metadata = stamped(metadata)
        self._about = encode_about(schema, self._metadata)
        self._layouts = layouts_of(schema)
        parts = [part for layout in self._layouts for part in layout.parts]
        self._pieces = [_Pieces(number, part) for number, part in enumerate(parts)]
        self._slots: list[int] = []
        self._threads = ThreadPoolExecutor(1)
        self._file = self._apart(_File, path)
        self._release = weakref.finalize(self, _release, self._threads, self._file)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, writing the units that they close."""
        for unit in self._units.push(batch):
            self._write_unit(unit)

    def close(self) -> None:
        """Write the last unit, the columns over all units and the head; sync the file to disk."""
        for unit in self._units.flush():
            self._write_unit(unit)
        table = self._table()
        about = np.frombuffer(self._about, np.uint8)
        extents, self.nbytes = self._apart(self._file.finish, self._pieces, about, table)
        content = self._about + table.tobytes()
        head = encode_head(self._metadata[VERSION_KEY], self.nbytes, extents, content)
        self._file.seal(head)
        self._release()
        sync(self._path)

    def _write_unit(self, batches: list[pa.RecordBatch]) -> None:
        batch = one_batch(batches)
        found: dict[str, Array] = {}
        for layout, array in zip(self._layouts, batch.columns, strict=True):
            found |= layout.flatten(array)
        arrays = [pieces.add(found, batch.num_rows) for pieces in self._pieces]
        stored = [pair for pair in zip(self._pieces, arrays, strict=True) if pair[1].nbytes]
        datasets = {pieces.names[-1]: array for pieces, array in stored}
        extents = self._apart(self._file.write, datasets)
        for (pieces, _), (offset, nbytes) in zip(stored, extents, strict=True):
            pieces.offsets[-1] = offset
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
        columns = [column for pieces in self._pieces for column in (pieces.offsets, pieces.counts)]
        table: npt.NDArray[np.int64] = np.array([self._slots, *columns], "<i8").T
        return np.ascontiguousarray(table)


class _Pieces:
    """A part in each unit: the dataset that holds it, where, and how much of the whole it is.

    `counts` are the values stored, `lengths` those of the whole; the offsets of later units start
    with the value that those of the unit before end with, and the whole has it once.
    """

    def __init__(self, number: int, part: Part):
        self.part, self._number = part, number
        self.names: list[str] = []
        self.offsets: list[int] = []
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
        self.counts.append(ABSENT if array is None else len(array))
        self.lengths.append(length)
        return np.zeros(0, self.part.dtype) if array is None else array

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


class _Sink:
    """The file under HDF5, which would not survive an error of its file and so meets none.

    The first error is kept for `check`; from then on nothing is written.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._at = 0
        self._ended = False
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raise what went wrong since the file was opened; once, or it would refer to itself."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure
        if self._ended:
            raise ValueError("the shard was given up")

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)

    def end(self) -> None:
        """Write nothing more."""
        self._ended = True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset`, as HDF5 asks for."""
        end = os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0
        self._at = end + offset
        return self._at

    def tell(self) -> int:
        """Return where the next bytes go."""
        return self._at

    def write(self, data: memoryview) -> int:
        """Write all of `data`."""
        with self._kept():
            left = memoryview(data)
            while left and not self._ended:
                written = os.pwrite(self._descriptor, left, self._at)
                self._at, left = self._at + written, left[written:]
        return len(data)

    def readinto(self, data: memoryview) -> int:
        """Read back what was written, and zeros after it."""
        count = 0
        with self._kept():
            count = os.preadv(self._descriptor, [data], self._at)
        data[count:] = bytes(len(data) - count)
        return len(data)

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        with self._kept():
            if not self._ended:
                os.ftruncate(self._descriptor, size)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure, self._ended = self._failure or error, True


class _File:
    """An HDF5 file that is equal, byte for byte, for equal contents. Its first bytes are ours."""

    def __init__(self, path: Path):
        creation, access = h5p.create(h5p.FILE_CREATE), h5p.create(h5p.FILE_ACCESS)
        creation.set_obj_track_times(False)
        creation.set_userblock(HEAD_NBYTES)
        creation.set_file_space_strategy(h5f.FSPACE_STRATEGY_NONE, False, 1)
        access.set_libver_bounds(h5f.LIBVER_EARLIEST, h5f.LIBVER_V110)
        access.set_alignment(1, ALIGNMENT)
        access.set_fclose_degree(h5f.CLOSE_STRONG)
        self._sink = _Sink(path)
        access.set_fileobj_driver(h5fd.fileobj_driver, self._sink)
        self._file = h5f.create(os.fsencode(path), h5f.ACC_TRUNC, creation, access)
        self._link = h5p.create(h5p.LINK_CREATE)
        self._link.set_char_encoding(h5t.CSET_UTF8)
        self._group = h5p.create(h5p.GROUP_CREATE)
        self._group.set_obj_track_times(False)
        self._contiguous = _plist(h5d.CONTIGUOUS)
        self._contiguous.set_fill_time(h5d.FILL_TIME_NEVER)
        self._groups: set[str] = set()

    def write(self, arrays: Mapping[str, Array]) -> list[Extent]:
        """Write datasets, their bytes one after another; return where these lie."""
        made = [
            self._create(name, array.dtype, array.shape, self._contiguous)
            for name, array in arrays.items()
        ]
        for dataset, array in zip(made, arrays.values(), strict=True):
            if array.nbytes:
                dataset.write(h5s.ALL, h5s.ALL, array, dataset.get_type())
        self._sink.check()
        pairs = zip(made, arrays.values(), strict=True)
        return [(dataset.get_offset() or 0, array.nbytes) for dataset, array in pairs]

    def finish(self, parts: list[_Pieces], about: Array, table: Array) -> tuple[list[Extent], int]:
        """Write the rest and let HDF5 close; return where `about` and `table` lie, and the size."""
        for pieces in parts:
            if pieces.stored or pieces.part.role != VALID:
                self._join(pieces)
        extents = self.write({f"{_OWN}/about": about, f"{_OWN}/table": table})
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
            self.write({part.name: np.zeros(shape, part.dtype)})

    def _create(self, name: str, dtype: Any, shape: tuple[int, ...], plist: Any) -> Any:
        """Return a new dataset, making the groups that it stands in."""
        for end in (i for i, character in enumerate(name) if character == "/"):
            if name[:end] not in self._groups:
                h5g.create(self._file, name[:end].encode(), self._link, self._group)
                self._groups.add(name[:end])
        kind, space = h5t.py_create(dtype, logical=True), h5s.create_simple(shape)
        return h5d.create(self._file, name.encode(), kind, space, plist, self._link)


def _release(threads: ThreadPoolExecutor, file: _File) -> None:
    """Have HDF5 done with a file, finished or not, before the interpreter is."""
    threads.shutdown()
    file.release()


def _plist(layout: int) -> Any:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_obj_track_times(False)
    plist.set_layout(layout)
    return plist


def _select(space: Any, start: int, shape: tuple[int, ...]) -> None:
    """Select the values from `start` on."""
    space.select_hyperslab((start, *[0] * (len(shape) - 1)), shape)
