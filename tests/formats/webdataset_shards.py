"""What webdataset's own reader finds in a shard."""

import gc
import warnings

import webdataset


def stock(path, decode=False):
    """Return what webdataset's own reader reads; it leaves its file open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        dataset = webdataset.WebDataset(str(path), shardshuffle=False)
        found = list(dataset.decode() if decode else dataset)
        del dataset
        gc.collect()
    return found
