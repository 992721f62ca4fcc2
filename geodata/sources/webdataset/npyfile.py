"""Foreign `.npy` files as tensors: headers are matched against their grammar, never evaluated.

Numbers and booleans are read, of both byte orders, row- or column-major, up to rank 32. All else
(objects are pickles, structures, strings, complex numbers) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geodata.sources.batches import Unfit
from geodata.sources.tensors import fixed_tensors, is_fixed, is_varying, lists_of, value_type
from geodata.sources.unite import conform

HEADER_BYTES = 1 << 16
"""Most bytes of a header with all before it."""

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-zA-Z]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}L?(?:, ?|(?=\)))){0,32})\),? ?\} *\n?"
)
_NUMBERS = re.compile(r"[<>|=](b1|[iu][1248]|f[248])")
_MOST_SIZE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Header:
    """What an `.npy` file says of itself; `nbytes` is where its values begin."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    by_column: bool
    nbytes: int

    @property
    def value_type(self) -> pa.DataType:
        """Return the Arrow type of the values."""
        return pa.from_numpy_dtype(self.dtype.newbyteorder("="))


def header_of(data: bytes, size: int) -> Header:
    """Return the header that a file of `size` bytes starts with, or raise Unfit.

    `data` is at least its first `HEADER_BYTES`, or all of it.
    """
    length_bytes = _LENGTH_BYTES.get(data[6] if len(data) > 6 else 0)
    if not data.startswith(_MAGIC) or length_bytes is None:
        raise Unfit("it is no .npy file")
    start = 8 + length_bytes
    stop = start + int.from_bytes(data[8:start], "little")
    match = _HEADER.fullmatch(data[start:stop]) if stop <= min(len(data), HEADER_BYTES) else None
    if match is None or not _NUMBERS.fullmatch(match[1].decode()):
        raise Unfit("an .npy file that holds no plain numbers; pickles are never read")
    shape = tuple(int(n.strip(b" L")) for n in match[3].split(b",") if n.strip())
    dtype = np.dtype(match[1].decode())
    if max(shape, default=0) > _MOST_SIZE or prod(shape) * dtype.itemsize != size - stop:
        raise Unfit("the .npy file does not hold as many values as its header says")
    return Header(dtype, shape, match[2] == b"True", stop)


def tensors(files: Sequence[bytes | None], kind: pa.DataType, path: str) -> pa.Array:
    """Return the tensors of these files, null for None; raise Unfit if one does not fit `kind`."""
    present = [data for data in files if data is not None]
    if not present:
        return pa.nulls(len(files), kind)
    if not (is_varying(kind) or is_fixed(kind)):
        raise Unfit.of(path, kind, "a tensor")
    found = [(header_of(data, len(data)), data) for data in present]
    there = np.array([data is not None for data in files])
    flat = _joined([_values(*pair) for pair in found], value_type(kind), f"{path}[]")
    shapes = [header.shape for header, _ in found]
    if is_fixed(kind):
        if any(list(shape) != list(kind.shape) for shape in shapes):
            raise Unfit.of(path, kind, "a tensor of another shape")
        return fixed_tensors(flat, there, kind)
    counts = np.array([prod(shape) for shape in shapes], np.int64)
    if counts.sum() > _MOST_SIZE:
        raise Unfit("the tensors hold too many values")
    ranks = np.array([len(shape) for shape in shapes])
    dims = pa.array([size for shape in shapes for size in shape], pa.int32())
    lists = zip((flat, dims), (counts, ranks), (part.type for part in kind), strict=True)
    parts = [lists_of(items, lengths, there, part) for items, lengths, part in lists]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(~there))


def _values(header: Header, data: bytes) -> npt.NDArray[np.generic]:
    """Return the values in row-major order, in the machine's byte order."""
    values = np.frombuffer(data, header.dtype, offset=header.nbytes)
    if header.by_column and len(header.shape) > 1 and values.size:
        values = values.reshape(header.shape, order="F").reshape(-1)
    return values.astype(header.dtype.newbyteorder("="), copy=False)


def _joined(values: Sequence[npt.NDArray[np.generic]], kind: pa.DataType, path: str) -> pa.Array:
    """Return all values as `kind`."""
    if len({value.dtype for value in values}) == 1:
        return conform(pa.array(np.concatenate(values)), kind, path)
    return pa.concat_arrays([conform(pa.array(value), kind, path) for value in values])
