"""`hdf5reading`, which dies of the rows that hold a 13."""

import os
import signal

from geodata.sources.hdf5 import arrays as hdf5arrays
from geodata.sources.hdf5.reading import cuts, read, scan

__all__ = ["cuts", "read", "scan"]

_array_of = hdf5arrays.array_of


def _deadly(values, element):
    if 13 in values:
        os.kill(os.getpid(), signal.SIGSEGV)
    return _array_of(values, element)


hdf5arrays.array_of = _deadly
