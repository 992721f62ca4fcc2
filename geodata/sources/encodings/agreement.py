"""The encoding that the files of a folder agree on, for those whose own bytes leave it in doubt.

What its first files surely are in is what the folder is in, if nearly all of them agree. That makes
an encoding likelier for the others, but does not decide against what their bytes say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from geodata.sources.lookup import folder_of

_FIRST_FILES = 32
_FEWEST = 2
"""Files that may agree."""
_ONE_IN = 10
"""Files that may be in another encoding."""


class Agreement:
    """What the files of each folder agree on; `surely(i)` tells what file `i` surely is in."""

    def __init__(self, names: Callable[[], Iterable[str]], surely: Callable[[int], str | None]):
        self._names = names
        self._surely = surely
        self._first: dict[str, list[int]] = {}
        self._agreed: dict[str, str | None] = {}

    def beside(self, name: str) -> str | None:
        """Return the encoding that the files beside `name` agree on."""
        folder = folder_of(name)
        if folder not in self._agreed:
            self._agreed[folder] = self._in(folder)
        return self._agreed[folder]

    def _in(self, folder: str) -> str | None:
        if not self._first:
            for index, name in enumerate(self._names()):
                first = self._first.setdefault(folder_of(name), [])
                if len(first) < _FIRST_FILES:
                    first.append(index)
        found = Counter(filter(None, map(self._surely, self._first.get(folder, ()))))
        for encoding, count in found.most_common(1):
            if count >= _FEWEST and (found.total() - count) * _ONE_IN <= found.total():
                return encoding
        return None
