"""Which files are compressed, told by their first bytes, and streams of their contents."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, cast

from geodata.sources.compressed import Unpacked

_KINDS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x78\x01": "zlib",
    b"\x78\x5e": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
}
_ZLIB_HEADER = 2
_BUFFER = 1 << 18


def compression_of(start: bytes) -> str | None:
    """Return how a file with these first bytes is compressed, None where it is not."""
    return next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), None)


def unpacked(path: Path, kind: str) -> BinaryIO:
    """Return the content of a compressed file; reading raises OSError where it is damaged.

    The checksum at the end of a zlib stream is not looked at.
    """

    def packed() -> BinaryIO:
        file = path.open("rb")
        file.seek(_ZLIB_HEADER if kind == "zlib" else 0)
        return file

    raw = Unpacked(packed, "deflate" if kind == "zlib" else kind)
    return cast(BinaryIO, io.BufferedReader(raw, _BUFFER))
