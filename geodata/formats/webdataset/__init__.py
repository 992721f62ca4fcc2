"""The format `webdataset` and its compressed variants: `shard` joins what the others do."""

from geodata.formats.webdataset.shard import WebDatasetFormat

__all__ = ["WebDatasetFormat"]
