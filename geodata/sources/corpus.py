"""What the kinds of source share: their files, the keys of their records, pieces of whole files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from geodata.sources import compressed
from geodata.sources.archives import FAULTS, Archives, Member, opened_member
from geodata.sources.base import OnDisk, Piece, Reject
from geodata.sources.batches import BATCH_BYTES, Origin, Unfit
from geodata.sources.compressed import Damaged, Unpacked
from geodata.sources.contents import Contents, Known
from geodata.sources.encodings.agreement import Agreement
from geodata.sources.encodings.declared import (
    CERTAIN,
    HEAD_BYTES,
    Coding,
    checked_encoding,
    coding_of,
    coding_of_text,
    is_bare,
)
from geodata.sources.filelist import FileList
from geodata.sources.listing import Listing
from geodata.sources.options import AS_FOUND, DETECT, Reading
from geodata.sources.unchanged import check_unchanged

MAX_RECORD = (1 << 30) - 1
"""Bytes of the longest record, which stands in memory several times on its way."""

TOO_LONG = "the record holds 1 GiB or more"
NOT_UTF8_NAME = "the file's name is not UTF-8"
CHANGED = "the file changed since it was listed"

_LOOKED_THROUGH = 8 << 20
_BEFORE_BYTES = 1 << 10
"""Of a file to find a byte beyond ASCII in, and of what comes before that."""

_FILE_COST = 512
"""What opening a file costs, in bytes read: keeps pieces of tiny files bounded."""

_PAGE = 4096
"""Bytes read at once from a file that was empty when it was listed."""

_READ_AHEAD = 1 << 17
"""Bytes taken at once from a stream that has to be unpacked."""

_KEPT_BYTES = 64 << 20
"""Bytes of a compressed file that are kept before it is known that it is not too long."""


class Broken(Exception):
    """A file that is not what it was taken for, or not any more; the text says why."""


class Corpus:
    """The files of one corpus. Its kinds derive from it; nothing is held open between calls."""

    kind: str
    glances = False
    reads_own_files = True
    checks_as_it_reads = False

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        self.root = listing.root
        self.reading = reading
        self.encoding = checked_encoding(reading.encoding)
        self.reads_own_files = self.reads_own_files and self.encoding != DETECT
        self.source_id = source_id
        self.files: FileList = listing.files
        self.ignored = listing.ignored
        self._root = str(listing.root)
        self._single = listing.single
        self._archives = listing.archives
        self._archive_names = frozenset(listing.archives)

    def path(self, index: int) -> Path:
        """Return where the file `index` lies, which is not in an archive."""
        return self.root if self._single else self.root / self.files.name(index)

    def on_disk(self, index: int) -> OnDisk:
        """Return where the file `index`, or its archive, lies, and its size and time there."""
        files, member = self.files, self.files.member(index)
        if member is not None:
            return self._archive(member.archive), None, files.mtime_ns(index)
        return self._path_of(files.name(index)), files.nbytes(index), files.mtime_ns(index)

    def opened(self, index: int) -> BinaryIO:
        """Return the content of the file `index` as a stream, unpacked from what it is packed in.

        Raises OSError, then or when it is read; Damaged says what is wrong with it.
        """
        kind = self.compression(index)
        packed = self._packed(index)
        if kind is None:
            return packed()
        return io.BufferedReader(Unpacked(packed, kind), _READ_AHEAD)

    def _packed(self, index: int) -> Callable[[], BinaryIO]:
        """Return what opens the file `index` as it was before any archive."""
        member = self.files.member(index)
        if member is None:
            path = self.path(index)
            return lambda: path.open("rb")
        if member.fault:
            raise Damaged(FAULTS[member.fault])
        return partial(
            opened_member, self._archive(member.archive), member, self.files.nbytes(index)
        )

    def head(self, index: int, nbytes: int) -> bytes:
        """Return the beginning of the file `index`, unpacked as far as it can be.

        Raises OSError.
        """
        head = b""
        with self.opened(index) as stream, suppress(Damaged):
            while more := stream.read1(nbytes - len(head)):  # type: ignore[attr-defined]
                head += more
        return head

    def recognised(self, piece: Piece) -> dict[str, tuple[str, float]]:
        """Return the encodings recognised of the piece's files, each with its confidence."""
        found = {}
        if self.encoding == DETECT:
            for index in filter(self.named_in_utf8, piece.numbers):
                with suppress(OSError, Unfit):
                    coding = self.coding(index, self.head(index, HEAD_BYTES))
                    if coding.confidence is not None:
                        found[self.shown(index)] = coding.name, coding.confidence
        return found

    def coding(self, index: int, head: bytes) -> Coding:
        """Return how the file `index` is encoded, which begins with `head`; Unfit if in doubt."""
        if self.encoding == DETECT and len(head) >= HEAD_BYTES and is_bare(head):
            head = self._beyond_ascii(index)
        name = self.files.name(index)
        return coding_of(self.encoding, head[:HEAD_BYTES], partial(self._agreement.beside, name))

    def _beyond_ascii(self, index: int) -> bytes:
        """Return what follows the first bytes of a file that are all ASCII, if it comes soon."""
        block = b""
        with self.opened(index) as stream:
            for _ in range(0, _LOOKED_THROUGH, HEAD_BYTES):
                block, before = stream.read(HEAD_BYTES), block
                if not is_bare(block):
                    return before[-_BEFORE_BYTES:] + block
                if len(block) < HEAD_BYTES:
                    break
        return block

    def text_coding(self, name: str, data: bytes) -> Coding:
        """Return how a file is encoded that is all text; Unfit if that is not sure."""
        return coding_of_text(self.encoding, data, partial(self._agreement.beside, name))

    @cached_property
    def _agreement(self) -> Agreement:
        return Agreement(self.files.names, self._surely)

    def _surely(self, index: int) -> str | None:
        """Return the encoding that a file is in if its bytes leave no doubt."""
        with suppress(OSError, Unfit):
            coding = coding_of(DETECT, self.head(index, HEAD_BYTES))
            return coding.name if (coding.confidence or 0) >= CERTAIN else None
        return None

    def compression(self, index: int) -> str | None:
        """Return the kind of compression that the file's suffix says, if it says one."""
        return _compression_of(self.files.name(index))

    def is_plain(self, index: int) -> bool:
        """Return whether the bytes of the file `index` lie on disk as they are, at its path."""
        return self.files.member(index) is None and self.compression(index) is None

    def bare_name(self, index: int) -> str:
        """Return the name of the file `index` without the suffix of its compression."""
        name = self.files.name(index)
        return name if self.compression(index) is None else name.rpartition(".")[0]

    def class_of(self, name: str) -> str | None:
        """Return the first folder in a file's name, inside its archive; None where there is none.

        What leads an archive's name nowhere is passed over: slashes at the start, `.` and `..`.
        """
        if not self._archives:
            folder, slash, _ = name.partition("/")
            return folder if slash else None
        folders = name.split("/")[:-1]
        paths = accumulate(folders, "{}/{}".format)
        inside = next((i for i, path in enumerate(paths, 1) if path in self._archive_names), 0)
        folders = [folder for folder in folders[inside:] if folder not in ("", ".", "..")]
        return folders[0] if folders else None

    def origin_of(self, keys: Sequence[str]) -> Origin:
        """Return where the records with these keys stand, each of which is all of its file."""
        if self._single:
            return Origin(self.shown(0))
        return Origin([key[len(self.source_id) + 1 :] for key in keys])

    def _archive(self, number: int) -> str:
        name = self._archives[number]
        return f"{self._root}/{name}" if name else self._root

    def shown(self, index: int) -> str:
        """Return the name of the file `index`, printable whatever its bytes."""
        return _printable(self.files.name(index))

    def key(self, index: int) -> str:
        """Return the start of the keys of the records in the file `index`."""
        return self._key_of(self.files.name(index))

    def named_in_utf8(self, index: int) -> bool:
        """Return whether keys can be made of the file's name."""
        return self._keyed(self.files.name(index))

    def whole_files(self, target_bytes: int) -> list[Piece]:
        """Return pieces of whole files: small ones together, up to about `target_bytes`."""
        bounds, cost = [0], 0
        for index in range(len(self.files)):
            nbytes = self.files.nbytes(index)
            if cost and cost + nbytes > target_bytes:
                bounds.append(index)
                cost = 0
            cost += nbytes + _FILE_COST
        return [self._run(first, stop) for first, stop in pairwise([*bounds, len(self.files)])]

    def _run(self, first: int, stop: int) -> Piece:
        nbytes = sum(map(self.files.nbytes, range(first, stop)))
        return Piece(first, stop - first, 0, nbytes if stop - first == 1 else 0, nbytes)

    def by_file(self, piece: Piece) -> Iterator[Piece]:
        """Yield the part of the piece that lies in each of its files."""
        if piece.files == 1:
            yield piece
        else:
            for index in piece.numbers:
                yield self._run(index, index + 1)

    def whole_records(
        self,
        piece: Piece,
        examine: Callable[[str, memoryview], Known],
        reject: Callable[[Reject], None],
    ) -> Iterator[Contents[Known]]:
        """Yield the piece's files, about 8 MiB at a time.

        `examine(name, content)` returns what is known of a file, or raises Unfit. A file that is
        not as it was listed is a ConfigError.
        """
        found = Contents[Known](BATCH_BYTES)
        with Archives(self._archive) as archives:
            for index in piece.numbers:
                name, content = self.files.name(index), None
                try:
                    content = self._read_into(found, index, name)
                    if content is None:
                        data = self._content(index, name, archives)
                        check_unchanged(self, [index])
                        if not found.fits(len(data)):
                            if found.keys:
                                yield found
                            found = Contents[Known](max(BATCH_BYTES, len(data)))
                        content = found.put(data)
                    known = examine(name, content)
                except Unfit as error:
                    check_unchanged(self, [index])
                    reject(Reject(_printable(name), None, str(error), bytes(content or b"")))
                else:
                    found.keep(self._key_of(name), known, len(content))
        if found.keys:
            yield found

    def content(self, index: int) -> bytes:
        """Return all of the file `index`, unpacked; raise Unfit if it cannot be a record."""
        with Archives(self._archive) as archives:
            return self._content(index, self.files.name(index), archives)

    def _path_of(self, name: str) -> str:
        return self._root if self._single else f"{self._root}/{name}"

    def _key_of(self, name: str) -> str:
        return self.source_id if self._single else f"{self.source_id}/{name}"

    def _keyed(self, name: str) -> bool:
        return self._single or name.isascii() or _printable(name) == name

    def _read_into(self, found: Contents[Any], index: int, name: str) -> memoryview | None:
        """Read a plain file to where there is room; None where there is not, or of any other."""
        member, nbytes = self.files.member(index), self.files.nbytes(index)
        if member or not found.fits(nbytes) or nbytes > MAX_RECORD:
            return None
        if _compression_of(name) or not self._keyed(name):
            return None
        try:
            return found.read(self._path_of(name), nbytes, self.files.mtime_ns(index))
        except OSError as error:
            raise Unfit(unreadable(error)) from error

    def _content(self, index: int, name: str, archives: Archives) -> bytes:
        if not self._keyed(name):
            raise Unfit(NOT_UTF8_NAME)
        member, nbytes = self.files.member(index), self.files.nbytes(index)
        packed = _compression_of(name) is not None
        if member is None and not packed and nbytes > MAX_RECORD:
            raise Unfit(TOO_LONG)
        try:
            if packed:
                data = self._unpacked(index)
            elif member is None:
                data = _bytes_of(self._path_of(name), nbytes)
            else:
                data = _content_of(member, nbytes, archives)
        except OSError as error:
            raise Unfit(unreadable(error)) from error
        if len(data) > MAX_RECORD:
            raise Unfit(TOO_LONG)
        return data

    def _unpacked(self, index: int) -> bytes:
        """Return the content of a compressed file; see first, if it is long, that it has an end."""
        with self.opened(index) as stream:
            data = stream.read(_KEPT_BYTES)
            if len(data) < _KEPT_BYTES:
                return data
            length = _KEPT_BYTES
            while more := stream.read1(_READ_AHEAD):  # type: ignore[attr-defined]
                length += len(more)
                if length > MAX_RECORD:
                    raise Unfit(TOO_LONG)
        with self.opened(index) as stream:
            return stream.read()


def _content_of(member: Member, nbytes: int, archives: Archives) -> bytes:
    if member.fault:
        raise Unfit(FAULTS[member.fault])
    if max(nbytes, member.packed) > MAX_RECORD:
        raise Unfit(TOO_LONG)
    return archives.content(member, nbytes)


def _bytes_of(path: str, nbytes: int) -> bytes:
    """Return the bytes of a file of about `nbytes`, no more than it takes to be too long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts, left = [], MAX_RECORD + 1
        while part := os.read(descriptor, min(max(nbytes + 1, _PAGE), left)):
            parts.append(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _compression_of(name: str) -> str | None:
    return compressed.SUFFIXES.get("." + name.rpartition(".")[2].lower())


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")


def unreadable(error: OSError) -> str:
    """Return the reason of a rejected file, or of the rest of one, that cannot be read."""
    if isinstance(error, Damaged):
        return str(error)
    return f"the file cannot be read: {error.strerror or type(error).__name__}"
