"""Whether the files of a source are still those that were listed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from geodata.errors import ConfigError
from geodata.sources.base import OnDisk
from geodata.sources.filelist import SourceFile


class Files(Protocol):
    """Files as they were listed."""

    @property
    def files(self) -> Sequence[SourceFile]:
        """Return them, in their order."""

    def on_disk(self, index: int) -> OnDisk:
        """Return where one lies, and what tells whether it changed."""


def check_unchanged(source: Files, numbers: Iterable[int]) -> None:
    """Raise ConfigError naming the first of some files that is not as it was listed."""
    for number in numbers:
        path, nbytes, mtime_ns = source.on_disk(number)
        now, changed_ns = _found(path)
        if changed_ns != mtime_ns or nbytes not in (now, None):
            raise ConfigError(
                "the source changed while it was read",
                file=os.fsencode(source.files[number].name).decode(errors="backslashreplace"),
                hint="Run it again with --restart to go on with it as it is now",
            )


def _found(path: str) -> tuple[int, int]:
    """Return the size and modification time in ns of what lies at a path, 0 and 0 if nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116, once for each of millions of files
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
