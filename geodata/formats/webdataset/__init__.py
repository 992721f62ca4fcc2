"""The format `webdataset`: `shard` writes and reads it, the others are its parts."""

from geodata.formats.webdataset.shard import WebDatasetFormat

__all__ = ["WebDatasetFormat"]
