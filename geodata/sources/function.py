"""A source of the user's own: a Python function that yields one dict a record."""

from __future__ import annotations

from geodata.errors import ConfigError
from geodata.sources.options import Reading


class FunctionSource:
    """Records that a function yields."""

    def __init__(self, name: str, source_id: str | None, reading: Reading):
        raise ConfigError(f"no corpus: {name}")
