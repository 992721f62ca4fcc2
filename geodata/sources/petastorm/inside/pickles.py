"""The pickled schema of a Petastorm dataset, opened here only, with nothing but known names.

It can name Petastorm's own classes, NumPy's scalar types and a few plain ones; types of pyspark,
which is not installed, become empty classes.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from petastorm import codecs, unischema

from .fields import Field, Unreadable

METADATA = "_common_metadata"
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"

_LEGACY = ("av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit")
_OF_PETASTORM = {
    unischema: "Unischema UnischemaField",
    codecs: "ScalarCodec NdarrayCodec CompressedNdarrayCodec CompressedImageCodec",
}
_KNOWN: dict[tuple[str, str], Any] = {
    **{
        (module.__name__, name): getattr(module, name)
        for module, names in _OF_PETASTORM.items()
        for name in names.split()
    },
    ("collections", "OrderedDict"): OrderedDict,
    ("decimal", "Decimal"): Decimal,
    ("numpy", "dtype"): np.dtype,
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (object, tuple, list, dict, str, bytes, int, float, bool)
    },
}


class _Opener(pickle.Unpickler):
    """Opens a pickled Unischema, and nothing that names anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a known class, or raise."""
        for old in _LEGACY:
            if module.startswith(f"{old}."):
                module = f"petastorm.{module[len(old) + 1 :]}"
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if (module, name) in (("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")):
            return _reconstructed
        scalar = getattr(np, name, None) if module == "numpy" and name.isidentifier() else None
        if isinstance(scalar, type) and issubclass(scalar, np.generic):
            return scalar
        if module == "pyspark.sql.types" and name.isidentifier():
            return type(name, (), {})
        raise Unreadable(f"the pickled schema names {module}.{name}, which is not opened")


def _reconstructed(kind: type, base: type, state: Any) -> Any:
    """Make an object as old pickles ask for it."""
    return object.__new__(kind) if base is object else base.__new__(kind, state)


def unischema_of(path: str) -> tuple[Any, pa.Schema]:
    """Return the Unischema in a dataset's `_common_metadata`, and the Arrow schema of its files."""
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise Unreadable(f"{METADATA} cannot be read") from error
    pickled = (schema.metadata or {}).get(UNISCHEMA_KEY)
    if pickled is None:
        raise Unreadable(f"{METADATA} holds no Unischema")
    try:
        found = _Opener(io.BytesIO(pickled)).load()
        fields = list(found.fields.values())
        assert all(isinstance(field.name, str) for field in fields)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"the pickled schema cannot be opened: {type(error).__name__}") from error
    return found, schema


def fields_of(path: str) -> list[Field]:
    """Return the columns of the dataset whose `_common_metadata` lies at `path`."""
    found, schema = unischema_of(path)
    known = {field.name: field.type for field in schema}
    return [Field(field, known.get(field.name)) for field in found.fields.values()]
