"""HDF5 of any layout: arrays along the first axis, or a group or object for each sample."""
