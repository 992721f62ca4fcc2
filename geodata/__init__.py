"""Regional training data: convert, partition by region, cache, serve in an exact order.

    raw corpus → sources → tagging → partition → formats → manifest → stores → cache → loader

Apache Arrow is the one in-memory currency. The public API is the functions that the commands call,
loaded when they are first used: `geodata.convert`, `append`, `shard`, `add_column`, `drop`,
`compact`, `history`, `rollback`, `gc`, `repair`, `inspect`, `verify`, `list_files`. `Converting`
says which keywords `convert` and `append` take, two of which are a `Reading` and a `Preparing`. The
loader is `geodata.loader.build_loader`.
`canonical` (row sizes and content digests of Arrow values) and `durable` (whole files, exclusive
creates) are layers of their own because formats, jobs and the cache all rest on them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geodata.version import __version__

if TYPE_CHECKING:
    from geodata.jobs.addcolumn import add_column
    from geodata.jobs.append import append
    from geodata.jobs.compact import compact
    from geodata.jobs.convert import convert
    from geodata.jobs.converting import Converting
    from geodata.jobs.drop import drop
    from geodata.jobs.gc import gc
    from geodata.jobs.history import history
    from geodata.jobs.inspect import inspect
    from geodata.jobs.ls import list_files
    from geodata.jobs.repair import repair
    from geodata.jobs.rollback import rollback
    from geodata.jobs.shard import shard
    from geodata.jobs.verify import verify
    from geodata.prepare import Preparing
    from geodata.sources import Reading

_EXPORTS = {
    "Converting": "geodata.jobs.converting",
    "Preparing": "geodata.prepare",
    "Reading": "geodata.sources",
    "add_column": "geodata.jobs.addcolumn",
    "append": "geodata.jobs.append",
    "compact": "geodata.jobs.compact",
    "convert": "geodata.jobs.convert",
    "drop": "geodata.jobs.drop",
    "gc": "geodata.jobs.gc",
    "history": "geodata.jobs.history",
    "repair": "geodata.jobs.repair",
    "rollback": "geodata.jobs.rollback",
    "shard": "geodata.jobs.shard",
    "inspect": "geodata.jobs.inspect",
    "verify": "geodata.jobs.verify",
    "list_files": "geodata.jobs.ls",
}

__all__ = [
    "Converting",
    "Preparing",
    "Reading",
    "__version__",
    "add_column",
    "append",
    "compact",
    "convert",
    "drop",
    "gc",
    "history",
    "inspect",
    "list_files",
    "repair",
    "rollback",
    "shard",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'geodata' has no attribute '{name}'")
