"""Loaded by the server that workers are forked from, and nowhere else.

A worker that starts while its parent ends finds nothing to work with any more; it says nothing of
it, since the parent has said what happened.
"""

from __future__ import annotations

import sys
from types import TracebackType

_PARENT_GONE = (FileNotFoundError, EOFError, ConnectionError)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, _PARENT_GONE):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell
