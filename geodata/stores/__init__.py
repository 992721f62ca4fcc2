"""Objects at a URL, each store in a region, behind the gate."""

from geodata.stores.base import Access, GatedStore, ObjectInfo, Store, open_store

__all__ = ["Access", "GatedStore", "ObjectInfo", "Store", "open_store"]
