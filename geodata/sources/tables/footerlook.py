"""The look at a Parquet file's footer that may end its process; done in a guarded one."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from geodata.sources.guard.guarded import Say
from geodata.sources.tables.footers import DAMAGE, look_at


def look(asked: dict[str, Any], say: Say) -> None:
    """Tell of each file of `paths` whether what its footer says of its columns makes sense."""
    for path in asked["paths"]:
        say({"sound": _is_sound(path)})


def _is_sound(path: str) -> bool:
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for number in range(file.num_row_groups):
                look_at(file.metadata.row_group(number), file.schema_arrow)
    except DAMAGE:
        return False
    return True
