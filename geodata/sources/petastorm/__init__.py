"""Petastorm datasets, read by an interpreter of their own.

Petastorm needs versions of pyarrow and numpy that nothing else here does, and keeps its schema as a
pickle. So it lives in a virtual environment (`environment`). What runs there is `inside`: it opens
the pickle, with nothing but known names, and decodes the rows; `client` speaks with it over pipes,
in Arrow.
"""

from geodata.sources.petastorm.dataset import PetastormDataset

__all__ = ["PetastormDataset"]
