"""Cache tiers: digest → local file, single flight."""

from geodata.cache.base import Cache, CacheStats
from geodata.cache.nvme import NvmeCache
from geodata.cache.tiers import TieredCache, open_cache

__all__ = ["Cache", "CacheStats", "NvmeCache", "TieredCache", "open_cache"]
