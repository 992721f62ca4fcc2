"""HDF5 files that others wrote: opened without locks, and looked through without leaving them.

No link is followed but the hard links of the file itself: soft and external links are counted and
passed over, as are named types, so that nothing leads out of the file or round in a circle. A
dataset whose values lie in other files (external or virtual storage) is refused. This file alone
among the sources needs h5py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geodata.errors import MissingExtra
from geodata.sources.corpus import Broken, unreadable
from geodata.sources.hdf5.types import (
    BYTES,
    COMPLEX,
    ENUM,
    LIST,
    NUMBER,
    STRUCT,
    TEXT,
    TIME,
    Array,
    Element,
    Member,
    Refused,
)
from geodata.sources.observed import MAX_FIELDS

try:
    import h5py
    from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5t, h5z
except ImportError:
    raise MissingExtra.of("h5py", "hdf5") from None

FAULTS = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)
"""What h5py raises for a damaged file."""

_MOST_DEPTH = 32
_CACHE_BYTES = 64 << 20
"""Most bytes of decompressed chunks kept of a dataset, so that none is decompressed twice."""

_SURE_BYTES = 1 << 30
_MOST_RATIO = 1 << 16
"""A dataset of more than the former claims at most so many times what is stored of it."""

_PLUGINS = (307, 32001, 32004, 32008, 32013, 32015, 32017, 32026, 32028)
"""Registered numbers of filters that plugins bring: bzip2, Blosc, LZ4, bitshuffle, ZFP, zstd, …"""

_BARE_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_SIGNS = {
    "truncated": "the file is truncated",
    "already open for write": "the file is being written, or its writer was killed (see h5clear)",
}
"""What HDF5 says, and what it means."""

_DROP = "Take it out of the file, or store it as numbers, text or bytes"
_COPY = "Copy the values into the file: h5repack -l CONTI IN.h5 OUT.h5"
_UNPACK = "Compress it anew: h5repack -f GZIP=4 IN.h5 OUT.h5, where its filter is installed"


@dataclass(frozen=True, slots=True)
class Link:
    """A hard link in a group, and the object it leads to; None where that cannot be opened."""

    raw: bytes
    target: Any

    @property
    def name(self) -> str:
        """Return the name; Refused where it is not UTF-8."""
        return text_of(self.raw)

    @property
    def is_group(self) -> bool:
        """Return whether it leads to a group."""
        return isinstance(self.target, h5g.GroupID)

    @property
    def is_array(self) -> bool:
        """Return whether it leads to a dataset of rows."""
        return isinstance(self.target, h5d.DatasetID) and bool(self.target.shape)

    @property
    def is_scalar(self) -> bool:
        """Return whether it leads to a dataset of one value, or of none."""
        return isinstance(self.target, h5d.DatasetID) and not self.target.shape


def load_plugins() -> None:
    """Load the filters that are installed as plugins."""
    for code in _PLUGINS:
        h5z.filter_avail(code)


def sample_file(*, grouped: bool) -> h5py.File:
    """Return a file in memory of most kinds of values: parallel arrays, or groups of them."""
    file = h5py.File("sample", "w", driver="core", backing_store=False)
    for place in ("s0/", "s1/") if grouped else ("",):
        file[f"{place}numbers"] = np.zeros((2, 2))
        file[f"{place}texts"] = ["a", "b"]
        file[f"{place}fixed"] = np.zeros(2, "S2")
        file[f"{place}packed"] = np.zeros(2, [("a", "i4"), ("b", "S2")])
        file.create_dataset(f"{place}list", (2,), h5py.vlen_dtype(np.int32))[0] = [1]
        file.create_dataset(f"{place}zipped", data=[1, 2], compression="gzip", chunks=(2,))
    return file


def open_file(path: Path) -> h5py.File:
    """Open a file for reading, without a lock; raise Broken where it is no HDF5."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise Broken(unreadable(error)) from error
    try:
        return h5py.File(path, "r", locking=False)
    except FAULTS as error:
        text = str(error)
        known = (reason for sign, reason in _SIGNS.items() if sign in text)
        raise Broken(next(known, "the file is not HDF5, or it is damaged")) from None


def close_file(file: h5py.File) -> None:
    """Close a file, which may not close well if it is damaged."""
    with suppress(*FAULTS):
        file.close()


def links_of(
    group: Any, ignored: Counter[str], start: int = 0, count: int | None = None
) -> Iterator[Link]:
    """Yield the hard links of a group in the order of their names' bytes; count all others.

    `count` is how many links to look at, from the number `start` on; None is all.
    """
    for _, raw in hard_links(group, ignored, start, count):
        link = link_at(group, raw)
        if link is None:
            ignored["named type"] += 1
        else:
            yield link


def hard_links(
    group: Any, ignored: Counter[str], start: int = 0, count: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yield number and name of the hard links, which are not opened; the rest as `links_of`."""
    names = _names(group, start, group.get_num_objs() if count is None else count)
    for number, (raw, kind) in enumerate(names, start):
        if kind == h5l.TYPE_HARD:
            yield number, raw
        else:
            ignored["soft link" if kind == h5l.TYPE_SOFT else "link to another file"] += 1


def link_at(group: Any, raw: bytes) -> Link | None:
    """Open the hard link of this name; None for a named type."""
    try:
        target = h5o.open(group, raw)
    except FAULTS:
        return Link(raw, None)
    return Link(raw, target) if isinstance(target, h5g.GroupID | h5d.DatasetID) else None


def _names(group: Any, start: int, count: int) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []

    def note(name: bytes, info: Any) -> bool | None:
        found.append((name, info.type))
        return True if len(found) == count else None

    if count and start < group.get_num_objs():
        group.links.iterate(note, info=True, idx=start)
    return found


class Walk:
    """Finds the datasets of a file. A group is entered once, by its first name."""

    def __init__(self, ignored: Counter[str]):
        self._ignored = ignored
        self._entered: set[tuple[int, int]] = set()
        self._found = 0

    def datasets(
        self, group: Any, prefix: str = "", path: bytes = b"", depth: int = 0
    ) -> Iterator[tuple[str, bytes, Any]]:
        """Yield the name in dots, the path and the id of each dataset below a group.

        Indexes of PyTables (`_i_...`) are passed over, and so are dimensions of netCDF that are no
        variables: they have a length and no values. Raises Refused for more than can be columns.
        """
        self._entered.add(_address(group))
        self._count_attributes(group)
        if depth > _MOST_DEPTH or self._found + group.get_num_objs() > MAX_FIELDS:
            raise Refused(
                f"it holds more than {MAX_FIELDS} datasets, or groups {_MOST_DEPTH} deep",
                "Make each record a group of the same datasets, or store fewer",
            )
        for link in links_of(group, self._ignored):
            name, place = f"{prefix}{link.name}", path + b"/" + link.raw
            if link.target is None:
                raise Refused(f"'{name}' cannot be opened", "Write the file again")
            if not link.is_group:
                if _is_bare_dimension(link.target):
                    self._ignored["dimension of netCDF"] += 1
                    continue
                self._found += 1
                self._count_attributes(link.target)
                yield name, place, link.target
            elif link.name.startswith("_i_"):
                self._ignored["index of PyTables"] += 1
            elif _address(link.target) in self._entered:
                self._ignored["group that is linked again"] += 1
            else:
                yield from self.datasets(link.target, f"{name}.", place, depth + 1)

    def _count_attributes(self, target: Any) -> None:
        self._ignored["attribute"] += int(h5a.get_num_attrs(target))


def _is_bare_dimension(dataset: Any) -> bool:
    """Return whether a dataset only stands for a dimension of netCDF, by what its NAME says."""
    try:
        found = h5py.Dataset(dataset).attrs.get("NAME", b"")
    except FAULTS:
        return False
    return isinstance(found, bytes) and found.startswith(_BARE_DIMENSION)


def member_of(name: str, path: bytes, dataset: Any) -> Member:
    """Return what a dataset holds; Refused where records cannot."""
    try:
        kind, shape, plist = dataset.get_type(), dataset.shape, dataset.get_create_plist()
        element = element_of(kind, name)
        chunk = plist.get_chunk()[0] if plist.get_layout() == h5d.CHUNKED else 1
    except FAULTS:
        raise Refused(f"'{name}' has a type that cannot be read", _DROP) from None
    _check_storage(name, dataset, plist, kind.get_size() * prod(shape))
    return Member(name, path, shape, element, kind.get_size(), int(chunk))


def open_dataset(file: h5py.File, member: Member) -> h5py.Dataset:
    """Open a dataset with a cache that holds one run of chunks."""
    access = h5p.create(h5p.DATASET_ACCESS)
    nbytes = min(_CACHE_BYTES, member.chunk * member.row_nbytes)
    access.set_chunk_cache(521, max(1 << 20, nbytes), 1.0)
    return h5py.Dataset(h5d.open(file.id, member.path, access))


def value_of(dataset: Any, count: int | None = None) -> Any:
    """Return what a dataset holds, or the first `count` of its rows."""
    opened = h5py.Dataset(dataset)
    return opened[()] if count is None else opened[:count]


def attribute_names(group: Any) -> list[bytes]:
    """Return the names of a group's attributes, but those by which PyTables knows it."""
    names: list[bytes] = []
    h5a.iterate(group, names.append)
    if b"CLASS" in names and b"VERSION" in names:
        return [name for name in names if name not in (b"CLASS", b"VERSION", b"TITLE", b"FILTERS")]
    return names


def attribute_of(group: Any, raw: bytes, name: str) -> tuple[Element, Array | None]:
    """Return what an attribute holds and its value; None where it is empty."""
    found = h5a.open(group, raw)
    element = element_of(found.get_type(), name)
    if found.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return element, None
    value: Array = np.zeros(found.shape, found.dtype)
    found.read(value, mtype=h5t.py_create(found.dtype))
    return element, value


def element_of(kind: Any, name: str) -> Element:
    """Return what one value of an HDF5 type is; Refused where Arrow has nothing for it."""
    dtype, code = kind.dtype, kind.get_class()
    if dtype.kind == "b":
        return Element(NUMBER, dtype, pa.bool_())
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return Element(COMPLEX, dtype, pa.from_numpy_dtype(np.dtype(f"f{dtype.itemsize // 2}")))
    if code in _FORMS:
        return _FORMS[code](kind, name)
    if code in (h5t.INTEGER, h5t.BITFIELD, h5t.FLOAT) and dtype.itemsize <= 8:
        return Element(NUMBER, dtype, pa.from_numpy_dtype(dtype.newbyteorder("=")))
    what = "references" if code == h5t.REFERENCE else f"values of type {dtype}"
    raise Refused(f"'{name}' holds {what}, which records cannot", _DROP)


def _text(kind: Any, _: str) -> Element:
    padding = None if kind.is_variable_str() else kind.get_strpad()
    trims = {h5t.STR_NULLTERM: _to_null, h5t.STR_SPACEPAD: _without_spaces}
    return Element(TEXT, kind.dtype, pa.string(), trim=trims.get(padding))


def _enumeration(kind: Any, _: str) -> Element:
    members = range(kind.get_nmembers())
    names = {int(kind.get_member_value(i)): text_of(kind.get_member_name(i)) for i in members}
    integer = kind.get_super().dtype
    return Element(ENUM, integer, pa.from_numpy_dtype(integer.newbyteorder("=")), names=names)


def _opaque(kind: Any, name: str) -> Element:
    if kind.dtype.kind not in "mM":
        return Element(BYTES, kind.dtype, pa.binary())
    try:
        return Element(TIME, kind.dtype, pa.from_numpy_dtype(kind.dtype))
    except pa.ArrowException:
        raise Refused(f"'{name}' holds times in odd units", "Store seconds or less") from None


def _varying(kind: Any, name: str) -> Element:
    item = element_of(kind.get_super(), name)
    if item.dtype == np.dtype(np.uint8) and item.form == NUMBER and not item.shape:
        return Element(BYTES, kind.dtype, pa.binary())
    return Element(LIST, kind.dtype, pa.null(), item=item)


def _compound(kind: Any, name: str) -> Element:
    fields = []
    for number in range(kind.get_nmembers()):
        below = text_of(kind.get_member_name(number))
        fields.append((below, element_of(kind.get_member_type(number), f"{name}.{below}")))
    return Element(STRUCT, kind.dtype, pa.null(), fields=tuple(fields))


def _array(kind: Any, name: str) -> Element:
    item = element_of(kind.get_super(), name)
    return replace(item, shape=(*kind.get_array_dims(), *item.shape))


_FORMS: dict[int, Callable[[Any, str], Element]] = {
    h5t.STRING: _text,
    h5t.ENUM: _enumeration,
    h5t.OPAQUE: _opaque,
    h5t.VLEN: _varying,
    h5t.COMPOUND: _compound,
    h5t.ARRAY: _array,
}


def text_of(raw: bytes) -> str:
    """Return a name as text; Refused where it is none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Refused("a name in it is not UTF-8", "Rename it") from None


def _check_storage(name: str, dataset: Any, plist: Any, nbytes: int) -> None:
    """Refuse values that lie in other files, that no filter unpacks, or that are not there."""
    if plist.get_external_count() or plist.get_layout() == h5d.VIRTUAL:
        raise Refused(f"the values of '{name}' lie elsewhere (external or virtual storage)", _COPY)
    for number in range(plist.get_nfilters()):
        code = plist.get_filter(number)[0]
        if not h5z.filter_avail(code):
            raise Refused(f"'{name}' is compressed by filter {code}, not installed here", _UNPACK)
    stored = dataset.get_storage_size()
    if nbytes and not stored:
        raise Refused(f"the values of '{name}' were never written", "Write the file again")
    if nbytes > _SURE_BYTES and nbytes > _MOST_RATIO * stored:
        raise Refused(f"'{name}' claims far more values than the file holds", "Write it again")


def _address(target: Any) -> tuple[int, int]:
    info = h5o.get_info(target)
    return int(info.fileno), int(info.addr)


def _to_null(text: bytes) -> bytes:
    return text.partition(b"\0")[0]


def _without_spaces(text: bytes) -> bytes:
    return text.rstrip(b" ")
