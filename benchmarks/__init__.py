"""Measurements, each against a peer or a baseline in the same run; `python -m benchmarks list`."""
