"""Routes records by their tags and cuts them into sealed shards bounded by bytes.

`routing` sends each record to its destination, `cutter` writes a destination as shards, `sealing`
fixes what the manifest promises of a shard.
"""

from geodata.partition.cutter import ShardCutter
from geodata.partition.sealing import Sealed, measure, seal

__all__ = ["Sealed", "ShardCutter", "measure", "seal"]
