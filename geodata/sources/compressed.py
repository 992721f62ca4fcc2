"""Compressed streams, read as they come: nothing is unpacked to disk, memory stays flat.

A stream may have several members one after another and is read to its true end. Where it is damaged
or ends too soon, all that stands before is given, byte by byte, and then Damaged is raised.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
"""Of compressed files; the file's own suffix stands before."""

_PACKED_BYTES = 1 << 16
_UNPACKED_BYTES = 1 << 17
_LZMA_MEMORY = 256 << 20
"""Bytes that unpacking xz may take; its densest preset needs 65 MiB."""

_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


class Damaged(OSError):
    """A stream does not hold what it should; the text says what, without content."""


class _Decompressor(Protocol):
    """What unpacks one member."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return at most `max_length` bytes more."""


class _Inflate:
    """zlib's decompressor, as those of bz2 and lzma are called."""

    def __init__(self, window: int):
        self._made = zlib.decompressobj(window)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._made.eof

    @property
    def unused_data(self) -> bytes:
        return self._made.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        made = self._made.decompress(self._made.unconsumed_tail + data, max_length)
        self.needs_input = not self._made.unconsumed_tail and len(made) < max_length
        return made


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_LZMA_MEMORY)


_MEMBERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: _Inflate(31),
    "deflate": lambda: _Inflate(-15),
    "bz2": bz2.BZ2Decompressor,
    "xz": _xz,
}
_PADDED = frozenset({"gzip", "xz"})
"""Kinds that zeros may follow."""


class _Members:
    """The members of a stream, unpacked one after another."""

    def __init__(self, packed: BinaryIO, kind: str):
        self._packed, self._kind = packed, kind
        self._member: _Decompressor = _MEMBERS[kind]()
        self._rest = b""

    def read(self, most: int) -> bytes:
        """Return the next bytes, at most `most`; none at the end."""
        while not self._member.eof or self._begin_next():
            data = b""
            if self._member.needs_input:
                data = self._more()
                if not data:
                    raise EOFError
            if made := self._member.decompress(data, most):
                return made
        return b""

    def _more(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or self._packed.read(_PACKED_BYTES)

    def _begin_next(self) -> bool:
        """Go on to the next member, if there is one."""
        self._rest = self._member.unused_data
        if self._kind == "deflate":
            return False
        padding = b"\0" if self._kind in _PADDED else b""
        while (rest := self._more()) and not rest.lstrip(padding):
            pass
        self._rest = rest.lstrip(padding) if padding else rest
        if rest:
            self._member = _MEMBERS[self._kind]()
        return bool(rest)


class _Zstd:
    """Frames of zstd, by Arrow."""

    def __init__(self, packed: BinaryIO):
        source = pa.PythonFile(packed, mode="r")
        self._stream = pa.CompressedInputStream(source, "zstd")

    def read(self, most: int) -> bytes:
        """Return the next bytes, at most `most`; none at the end."""
        made: bytes = self._stream.read(most)
        return made


class Unpacked(io.RawIOBase):
    """The content of a compressed stream that `packed` opens, twice where it is damaged."""

    def __init__(self, packed: Callable[[], BinaryIO], kind: str):
        self._open, self._kind = packed, kind
        self._given = 0
        self._byte_by_byte = False
        self._fault: OSError | None = None
        self._begin()

    def _begin(self) -> None:
        self._packed = self._open()
        zstd = self._kind == "zstd"
        self._stream = _Zstd(self._packed) if zstd else _Members(self._packed, self._kind)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self._next(min(len(buffer), _UNPACKED_BYTES))
        buffer[: len(data)] = data
        self._given += len(data)
        return len(data)

    def _next(self, most: int) -> bytes:
        if self._fault is None:
            try:
                return self._some(most)
            except _ERRORS as error:
                fault = error
            try:
                if not self._byte_by_byte:
                    self._go_back()
                    return self._some(1)
            except _ERRORS as error:
                fault = error
            self._fault = self._named(fault)
        raise self._fault

    def _some(self, most: int) -> bytes:
        data = self._stream.read(1 if self._byte_by_byte else most)
        if not data and not self._given and self._is_empty():
            raise EOFError
        return data

    def _is_empty(self) -> bool:
        with self._open() as packed:
            return not packed.read(1)

    def _go_back(self) -> None:
        """Unpack again what was given, to go on by single bytes: an error takes all of its call."""
        self._packed.close()
        self._begin()
        left, self._byte_by_byte = self._given, True
        while left and (again := self._stream.read(min(left, _UNPACKED_BYTES))):
            left -= len(again)

    def _named(self, error: Exception) -> OSError:
        if isinstance(error, Damaged) or (isinstance(error, OSError) and error.errno is not None):
            return error
        short = isinstance(error, EOFError) or "Truncated" in str(error)
        what = "ends too soon" if short else "is damaged"
        return Damaged(f"the {self._kind} stream {what}, after {self._given} bytes unpacked")
