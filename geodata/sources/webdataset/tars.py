"""The samples of a tar: members of one key, as stock readers of WebDataset group them.

A member's key is its path up to the first dot of its last part, its extension the rest, in small
letters. Folders, members without an extension, hidden ones (`._x.jpg`) and those below `__name__/`
are passed over, and counted. Of a key whose members do not follow one another stock readers make
several samples; here they are one, at the place of the first.

To know which members belong together the headers are visited first, and 16 bytes kept for every
run of members with one key. A plain tar is then read run by run, wherever they lie, and may be cut
where no key has members on both sides. A compressed tar is read once more in order; samples that
wait for members are held up to `HELD_BYTES`, beyond it they are faulty.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from geodata.formats.webdataset.tarball import BLOCK
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.decompress import compression_of, unpacked
from geodata.sources.walking import HIDDEN, SPECIAL
from geodata.sources.webdataset.tarblocks import FOLDER, LINKS, Broken, Entry, TarStream, starts_tar

HELD_BYTES = 64 << 20
"""Most bytes of samples that wait for members in a compressed tar, and of a faulty sample."""

Wanted = Callable[[str, int], int]
"""Returns how many bytes of a member are wanted, from its extension and its size."""

_Int64s = npt.NDArray[np.int64]
_BUFFER = 16 << 10


@dataclass(slots=True)
class Member:
    """A member: its name as it stands, its extension, and as much of its content as was wanted."""

    name: bytes
    extension: str
    size: int
    content: bytes = b""


@dataclass(slots=True)
class Sample:
    """The members of one key, and what is wrong with them: the member's name, and the reason.

    `row` counts from 1 in the part of the tar that is read. Without a row it is no sample, but what
    is wrong with the tar. The contents of a faulty one are kept, or all `dropped`.
    """

    row: int | None
    key: str
    members: list[Member] = field(default_factory=list)
    fault: tuple[bytes, str] | None = None
    dropped: bool = False

    @property
    def nbytes(self) -> int:
        """Return how many bytes of contents are held."""
        return sum(len(member.content) for member in self.members)

    def blame(self, name: bytes, reason: str) -> None:
        """Note the first thing that is wrong."""
        self.fault = self.fault or (name, reason)

    def drop(self) -> None:
        """Let go of all contents, for good."""
        self.dropped = True
        self.members.clear()


@dataclass(slots=True)
class _Runs:
    """Runs of members with one key: a hash of each key, where each starts, where the last stops."""

    hashes: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    stop: int = 0
    broken: Broken | None = None
    ignored: Counter[str] = field(default_factory=Counter)
    """Members that are passed over, by what they are."""

    def end_at(self, place: int, sample: Sample) -> None:
        """Blame the sample of a run if the tar breaks within or after it."""
        if place == len(self.starts) - 1 and self.broken and not self.broken.whole:
            sample.fault = sample.key.encode(), str(self.broken)

    def several(self) -> dict[int, int]:
        """Return of how many runs each key has several, by its hash."""
        hashes, counts = np.unique(np.array(self.hashes, np.uint64), return_counts=True)
        more = counts > 1
        return dict(zip(hashes[more].tolist(), counts[more].tolist(), strict=True))


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """Return a member's key and extension; None where it has none, or is passed over."""
    folder, slash, last = name.rpartition(b"/")
    stem, dot, extension = last.partition(b".")
    if not (stem and dot) or _is_meta(name):
        return None
    return folder + slash + stem, extension.decode(errors="surrogateescape").lower()


def _is_meta(name: bytes) -> bool:
    """Return whether a member lies below `__name__/`."""
    first, slash, _ = name.partition(b"/")
    return bool(slash and len(first) >= 4 and first.startswith(b"__") and first.endswith(b"__"))


def _passed_over(entry: Entry) -> str:
    """Return what a member is that has no key."""
    if entry.kind == FOLDER:
        return "folder"
    if entry.name.rpartition(b"/")[2].startswith(b"."):
        return HIDDEN
    if _is_meta(entry.name):
        return "metadata of a tar"
    if entry.kind:
        return "link in an archive" if entry.kind in LINKS else SPECIAL
    return "no suffix"


def is_packed(path: Path) -> bool:
    """Return whether a tar is compressed, and so can only be read in order."""
    start = _start(path)
    return not starts_tar(start) and compression_of(start) is not None


def cuts(path: Path, nbytes: int, target: int) -> list[int]:
    """Return offsets of a plain tar from 0 to `nbytes`, about `target` bytes apart.

    No key has members on both sides of one.
    """
    with _opened(path) as stream:
        runs = _runs(stream, 0, None)
    _, order = np.unique(np.array(runs.hashes), return_inverse=True)
    last = np.zeros(len(order), np.int64)
    last[order] = np.arange(len(order))
    upto = np.maximum.accumulate(last[order])
    free = np.flatnonzero(upto[:-1] == np.arange(len(order) - 1)) + 1
    found = [0]
    for offset in np.array(runs.starts)[free].tolist():
        if offset - found[-1] >= target:
            found.append(offset)
    return [*found, nbytes]


def samples(
    path: Path, start: int, stop: int | None, wanted: Wanted, ignored: Counter[str]
) -> Iterator[Sample]:
    """Yield the samples in bytes [start, stop) of a tar (None: to its end).

    Counts in `ignored` what is passed over. What is wrong with the tar is told by the sample that
    it may concern, or by one without a row after all others. Raises OSError where the file cannot
    be opened.
    """
    packed = is_packed(path)
    with _opened(path) as stream:
        runs = _runs(stream, start, stop)
    ignored.update(runs.ignored)
    with _opened(path) as stream:
        read = _in_order(stream, runs, wanted) if packed else _by_runs(stream, runs, wanted)
        yield from read
    if runs.broken and (runs.broken.whole or not runs.starts):
        yield Sample(None, "", fault=(b"", str(runs.broken)))


def _runs(stream: TarStream, start: int, stop: int | None) -> _Runs:
    runs, last = _Runs(), None
    try:
        for entry in stream.members(start, stop):
            named = _named(entry)
            if named is None:
                runs.ignored[_passed_over(entry)] += 1
            elif named[0] != last:
                last = named[0]
                runs.hashes.append(_hash(last))
                runs.starts.append(entry.start)
            runs.stop = entry.start + 1
        if start == runs.stop == 0:
            raise Broken("the tar holds no member")
    except Broken as broken:
        runs.broken = broken
    return runs


def _by_runs(stream: TarStream, runs: _Runs, wanted: Wanted) -> Iterator[Sample]:
    """Yield the samples of a plain tar in the order of their first members."""
    bounds = list(pairwise([*runs.starts, runs.stop]))
    hashes = np.array(runs.hashes, np.uint64)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    owner: _Int64s = first[inverse]
    places = np.argsort(owner, kind="stable").tolist()
    row = 0
    for _, group in groupby(places, key=owner.__getitem__):
        made: dict[bytes, Sample] = {}
        for place in group:
            for key, members in groupby(_members(stream, *bounds[place]), key=_key):
                if key not in made:
                    row += 1
                    made[key] = Sample(row, text(key))
                _take(stream, made[key], members, wanted)
                runs.end_at(place, made[key])
        yield from made.values()


def _in_order(stream: TarStream, runs: _Runs, wanted: Wanted) -> Iterator[Sample]:
    """Yield the samples of a compressed tar, each when its last member has come."""
    left = runs.several()
    waiting: dict[bytes, Sample] = {}
    held = row = 0
    groups = groupby(_members(stream, 0, runs.stop), key=_key)
    for place, ((key, members), hashed) in enumerate(zip(groups, runs.hashes, strict=False)):
        sample = waiting.pop(key, None)
        if sample is None:
            row += 1
            sample = Sample(row, text(key))
        held -= sample.nbytes
        _take(stream, sample, members, wanted)
        runs.end_at(place, sample)
        left[hashed] = left.get(hashed, 1) - 1
        if left[hashed] == 0:
            del left[hashed]
            yield sample
            continue
        if held + sample.nbytes > HELD_BYTES:
            sample.blame(key, "its members lie too far apart in a compressed tar")
            sample.drop()
        held += sample.nbytes
        waiting[key] = sample
    yield from waiting.values()


def _take(
    stream: TarStream, sample: Sample, members: Iterator[tuple[bytes, str, Entry]], wanted: Wanted
) -> None:
    """Add members to a sample, reading what is wanted of each."""
    for _, extension, entry in members:
        fault = _fault(sample, extension, entry)
        if fault:
            sample.blame(entry.name, fault)
        if sample.fault and sample.nbytes + entry.size > HELD_BYTES:
            sample.drop()
        if entry.kind or sample.dropped:
            continue
        try:
            content = stream.read(min(entry.size, wanted(extension, entry.size)))
        except Broken as broken:
            sample.blame(entry.name, str(broken))
        else:
            sample.members.append(Member(entry.name, extension, entry.size, content))


def _fault(sample: Sample, extension: str, entry: Entry) -> str | None:
    """Return why a member cannot be taken, whatever it holds."""
    if entry.kind:
        return f"the member is {entry.kind}"
    if not _is_utf8(entry.name):
        return "the member's name is not UTF-8"
    if not extension:
        return "the member's name ends with a dot"
    if any(member.extension == extension for member in sample.members):
        return "two members have this name"
    size = entry.size + sum(member.size for member in sample.members)
    return TOO_LONG if size > MAX_RECORD else None


def _members(stream: TarStream, start: int, stop: int) -> Iterator[tuple[bytes, str, Entry]]:
    """Yield key, extension and place of each member that has a key, as far as the tar goes."""
    try:
        for entry in stream.members(start, stop):
            named = _named(entry)
            if named:
                yield *named, entry
    except Broken:
        return


def _named(entry: Entry) -> tuple[bytes, str] | None:
    return None if entry.kind == FOLDER else split_name(entry.name)


def _key(member: tuple[bytes, str, Entry]) -> bytes:
    return member[0]


def _hash(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def text(name: bytes) -> str:
    """Return a member's name or key, printable whatever its bytes."""
    return name.decode(errors="backslashreplace")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def head_of(path: Path) -> bytes:
    """Return the first header, as far as it can be read; raise OSError where there is no file."""
    with _opened(path) as stream, suppress(Broken):
        return stream.read(BLOCK)
    return b""


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(BLOCK)


@contextmanager
def _opened(path: Path) -> Iterator[TarStream]:
    """Open a tar, and decompress it as it is read."""
    start = _start(path)
    packing = None if starts_tar(start) else compression_of(start)
    if packing is None:
        with path.open("rb", buffering=_BUFFER) as file:
            yield TarStream(file, os.fstat(file.fileno()).st_size)
    else:
        with unpacked(path, packing) as content:
            yield TarStream(content, None)
