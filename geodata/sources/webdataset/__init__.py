"""Tars of samples, as the `webdataset` package groups them."""
