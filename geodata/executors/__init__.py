"""Map tasks over processes."""

from geodata.executors.base import Executor, get_executor, in_order

__all__ = ["Executor", "get_executor", "in_order"]
