"""Shard formats: one shard file ↔ record batches."""

from geodata.formats.base import (
    FORMAT_VERSION,
    FORMATS,
    Format,
    MappedReader,
    ShardReader,
    ShardWriter,
    UnitRange,
    get_format,
    unit_bytes_for,
)

__all__ = [
    "FORMATS",
    "FORMAT_VERSION",
    "Format",
    "MappedReader",
    "ShardReader",
    "ShardWriter",
    "UnitRange",
    "get_format",
    "unit_bytes_for",
]
