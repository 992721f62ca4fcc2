"""The format `hdf5`: `shard` reads it, `writer` writes it, `directory` says where all lies."""

from geodata.formats.hdf5.shard import Hdf5Format

__all__ = ["Hdf5Format"]
