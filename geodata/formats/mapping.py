"""Shard files as memory maps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from geodata.errors import CorruptShard, ObjectNotFound


def map_file(path: Path) -> pa.Buffer:
    """Return the bytes of a file without reading them."""
    try:
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except FileNotFoundError:
        raise ObjectNotFound("no such shard", shard=path.name) from None
    except (pa.ArrowInvalid, OSError):
        raise CorruptShard("an empty file, or one that cannot be mapped", shard=path.name) from None
