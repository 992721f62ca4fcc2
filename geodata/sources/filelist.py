"""The files of a corpus in a few arrays: millions of them stay small and travel fast."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import overload

from geodata.sources.archives import Member

Entry = tuple[bytes, int, int] | tuple[bytes, int, int, Member]
"""Name, size, modification time, and where it lies if that is in an archive."""


_NOWHERE = Member(-1, 0, 0, 0, 0)
"""The place of a file that lies in no archive."""

_NAMES = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
"""How names are decoded: what `os.fsdecode` does, without its questions."""

_RUN = 4096
"""Files that are taken at once."""

_AFTER_SLASH = b"0"
"""The byte that follows the slash: a folder's name and it come after all that lies in it."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the corpus: its name below the source's root, its size and modification time.

    Bytes of the name that are not UTF-8 are surrogates, as in `os.fsdecode`.
    """

    name: str
    nbytes: int
    mtime_ns: int


Run = tuple[bytes, Sequence[bytes], Sequence[int], Sequence[int]]
"""Files of a folder: its name with a slash or nothing; their names in it, sizes and times."""


class FileList(Sequence[SourceFile]):
    """Files in order, which is that of their names' bytes, kept in a few arrays."""

    def __init__(self, entries: Iterable[Entry], *, ordered: bool = False):
        """Take them in any order; one after another where they are `ordered` already."""
        places = _Places()

        def runs() -> Iterator[Run]:
            coming = iter(entries if ordered else sorted(entries))
            while run := list(islice(coming, _RUN)):
                places.extend(run)
                names, sizes, mtimes = zip(*(entry[:3] for entry in run), strict=True)
                yield b"", names, sizes, mtimes

        self._take(runs())
        self._places = places.columns

    @classmethod
    def of_runs(cls, runs: Iterable[Run]) -> FileList:
        """Return the files of folders, which come one after another in order."""
        made = cls(())
        made._take(runs)
        return made

    def _take(self, runs: Iterable[Run]) -> None:
        packed = bytearray()
        self._bounds, self._sizes, self._mtimes = array("q", [0]), array("q"), array("q")
        for folder, names, sizes, mtimes in runs:
            lengths = (len(folder) + length for length in map(len, names))
            ends = accumulate(lengths, initial=len(packed))
            self._bounds.extend(islice(ends, 1, None))
            packed += folder
            packed += folder.join(names)
            self._sizes.extend(sizes)
            self._mtimes.extend(mtimes)
        self._names = bytes(packed)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[SourceFile]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> SourceFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SourceFile]: ...
    def __getitem__(self, index: int | slice) -> SourceFile | Sequence[SourceFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return SourceFile(self.name(place), self._sizes[place], self._mtimes[place])

    def name(self, index: int) -> str:
        """Return the name of the file `index`, which is not negative."""
        return str(self._names[self._bounds[index] : self._bounds[index + 1]], *_NAMES)

    def nbytes(self, index: int) -> int:
        """Return the size of the file `index`."""
        return self._sizes[index]

    def mtime_ns(self, index: int) -> int:
        """Return the modification time of the file `index`, or of its archive."""
        return self._mtimes[index]

    def member(self, index: int) -> Member | None:
        """Return where the file `index` lies in an archive; None if it is a file of its own."""
        if self._places is None or self._places[0][index] < 0:
            return None
        return Member(*(column[index] for column in self._places))

    def may_name(self, pattern: re.Pattern[bytes]) -> bool:
        """Return whether a pattern is found in any name, or across two: a quick first look."""
        return pattern.search(self._names) is not None

    def names(self) -> Iterator[str]:
        """Yield the name of each file."""
        return (str(name, *_NAMES) for name in self.raw_names())

    def raw_names(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of the names of the files [start, stop)."""
        stop = len(self) if stop is None else stop
        bounds = pairwise(memoryview(self._bounds)[start : stop + 1])
        return (self._names[begin:end] for begin, end in bounds)

    def by_folder(self, numbers: range) -> Iterator[range]:
        """Cut a run of files where the first folder of their names changes.

        Each file that lies in none is a run of its own.
        """
        at = numbers.start
        while at < numbers.stop:
            name, start = self._names[self._bounds[at] : self._bounds[at + 1]], at
            folder, slash, _ = name.partition(b"/")
            after = range(at + 1, numbers.stop)
            at = self.place_of(folder + _AFTER_SLASH, after) if slash else after.start
            yield range(start, at)

    def place_of(self, name: bytes, among: range) -> int:
        """Return the place of the first file, of those `among`, whose name is not before `name`."""
        bounds, names = self._bounds, self._names
        return (
            bisect_left(among, name, key=lambda i: names[bounds[i] : bounds[i + 1]]) + among.start
        )

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """Yield name, size, modification time of the files [start, stop) (all, if none are said).

        With them comes the place of a file in an archive, if it has one.
        """
        stop = len(self) if stop is None else stop
        names = self.raw_names(start, stop)
        numbers = (memoryview(column)[start:stop] for column in (self._sizes, self._mtimes))
        plain = zip(names, *numbers, strict=True)
        if self._places is None:
            yield from plain
            return
        for index, entry in enumerate(plain, start):
            member = self.member(index)
            yield entry if member is None else (*entry, member)


class _Places:
    """The places of files in archives, field by field; archive -1 is none, None: all are none."""

    def __init__(self) -> None:
        self.columns: list[array[int]] | None = None
        self._outside = 0

    def extend(self, entries: Sequence[Entry]) -> None:
        """Take the places of the next files."""
        members = [entry[3] if len(entry) > 3 else _NOWHERE for entry in entries]
        if self.columns is None:
            if all(member is _NOWHERE for member in members):
                self._outside += len(members)
                return
            fields = zip("iqqIHB", _NOWHERE, strict=True)
            self.columns = [array(code, [value]) * self._outside for code, value in fields]
        for column, values in zip(self.columns, zip(*members, strict=True), strict=True):
            column.extend(values)
