"""Whoever is measured: this project's formats, and the libraries that people use instead."""

from benchmarks.peers.base import (
    OURS,
    PEERS,
    Packed,
    Read,
    Subject,
    describe,
    load,
    missing,
    names,
    steps_of,
)

__all__ = [
    "OURS",
    "PEERS",
    "Packed",
    "Read",
    "Subject",
    "describe",
    "load",
    "missing",
    "names",
    "steps_of",
]
