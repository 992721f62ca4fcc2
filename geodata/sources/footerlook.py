"""The look at a Parquet file's footer that may end its process; done in a guarded one."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from geodata.sources.footers import DAMAGE, look_at
from geodata.sources.guarded import Say


def look(asked: dict[str, Any], say: Say) -> None:
    """Tell whether what the footer of the file at `path` says of its columns makes sense."""
    try:
        with pq.ParquetFile(asked["path"], pre_buffer=False) as file:
            for number in range(file.num_row_groups):
                look_at(file.metadata.row_group(number), file.schema_arrow)
    except DAMAGE:
        say({"sound": False})
    else:
        say({"sound": True})
