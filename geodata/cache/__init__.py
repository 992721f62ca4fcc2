"""Cache tiers: digest → local file, single flight."""

from geodata.cache.base import Cache, CacheStats
from geodata.cache.nvme import NvmeCache

__all__ = ["Cache", "CacheStats", "NvmeCache"]
