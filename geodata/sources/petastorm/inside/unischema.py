"""Writes the `_common_metadata` of a dataset of ours.

A request comes from standard input as JSON: the `folder`, a `name`, the `fields`, and the row
`groups` of each file. Its Unischema needs neither pyspark nor OpenCV to be opened.
"""

from __future__ import annotations

import json
import pickle
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from petastorm import codecs, unischema

from .pickles import METADATA, UNISCHEMA_KEY

_ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
_TYPES: dict[str, Any] = {"Decimal": Decimal, "object": object, "bytes": bytes}
_CODECS = {"NdarrayCodec", "CompressedImageCodec"}


def field_of(about: dict[str, Any]) -> Any:
    """Return a field of a Unischema; what is stored may always be null."""
    dtype = _TYPES.get(about["dtype"]) or getattr(np, about["dtype"])
    codec = None
    if about["codec"] in _CODECS:
        codec = object.__new__(getattr(codecs, about["codec"]))  # to be made it asks for OpenCV
    if isinstance(codec, codecs.CompressedImageCodec):
        codec.__dict__.update(_image_codec=".png", _quality=80)
    return unischema.UnischemaField(about["name"], dtype, tuple(about["shape"]), codec, True)


def main() -> None:
    """Write the metadata that the request asks for, as `materialize_dataset` does."""
    request = json.load(sys.stdin)
    folder, groups = Path(request["folder"]), request["groups"]
    made = unischema.Unischema(request["name"], [field_of(about) for about in request["fields"]])
    entries = {
        UNISCHEMA_KEY: pickle.dumps(made),
        _ROW_GROUPS_KEY: json.dumps(groups).encode(),
    }
    schema = pq.read_schema(folder / next(iter(groups)))
    pq.write_metadata(schema.with_metadata(entries), folder / METADATA)
