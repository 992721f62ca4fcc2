"""What is said in audio files, as text that lies beside them.

`a.txt` or `a.lab` is of `a.wav`. A list in the files' folder has a file's name, with or without its
suffix, and its text in each line: behind a blank in `*.trans.txt`, behind a tab in a `.tsv` of two
fields. A text of the file's own goes before that of a list.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from geodata.sources.batches import Unfit
from geodata.sources.corpus import Corpus
from geodata.sources.encodings.declared import UTF8, coding_of_text
from geodata.sources.filelist import FileList
from geodata.sources.kinds import BESIDE
from geodata.sources.listing import Listing, suffix_of
from geodata.sources.lookup import folder_of, index_of, narrowed, stem_of, with_stem
from geodata.sources.options import Reading

SUFFIXES = BESIDE["audio"]
MOST_BYTES = 64 << 20
"""Of a list; one folder's lists are held in memory while its files are read."""

_AT = "its transcript:"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_OWN = (".txt", ".lab")
_LIST = ".trans.txt"
_LOOKED_AT = 64
"""Lines of what may be a list."""


class Transcripts:
    """The texts of a corpus of audio files."""

    def __init__(self, listing: Listing, audio: FileList, reading: Reading):
        """Choose the transcripts among the files of `listing`; `ignored` counts the others."""
        self._encoding = reading.encoding
        texts = listing.only(SUFFIXES)
        self._corpus = Corpus(texts, "", reading)
        lists = {i for i in range(len(texts.files)) if self._is_list(i, audio)}
        own = {i for i, name in enumerate(texts.files.names()) if _is_own(name, audio)}
        rest = set(range(len(texts.files))) - lists - own
        found = narrowed(texts, rest).suffixes()
        self.ignored = Counter({suffix: found[suffix] for suffix in SUFFIXES & found.keys()})
        self._corpus = Corpus(narrowed(texts, lists | own), "", reading)
        self._lists: dict[str, list[int]] = {}
        for index, name in enumerate(self.files.names()):
            if _suffix(name) not in _OWN:
                self._lists.setdefault(folder_of(name), []).append(index)
        self._held: tuple[str, dict[str, str | Unfit] | Unfit] = ("/", {})

    @property
    def files(self) -> FileList:
        """Return the files that hold transcripts."""
        return self._corpus.files

    def of(self, name: str) -> str | None:
        """Return the transcript of an audio file, if any; raise Unfit where it cannot be read."""
        beside = with_stem(self.files, stem_of(name))
        own = {_suffix(self.files.name(index)): index for index in beside}
        for suffix in _OWN:
            if suffix in own:
                return self._text(own[suffix]).strip() or None
        listed = self._listed(folder_of(name))
        base = name.rpartition("/")[2]
        text = listed.get(base, listed.get(stem_of(base)))
        if isinstance(text, Unfit):
            raise text
        return text or None

    def _listed(self, folder: str) -> dict[str, str | Unfit]:
        """Return the texts in a folder's lists; those of the last folder asked for are held."""
        if self._held[0] != folder:
            try:
                self._held = folder, self._united(self._lists.get(folder, ()))
            except Unfit as error:
                self._held = folder, error
        texts = self._held[1]
        if isinstance(texts, Unfit):
            raise texts
        return texts

    def _united(self, lists: Iterable[int]) -> dict[str, str | Unfit]:
        texts: dict[str, str | Unfit] = {}
        for index in lists:
            for name, text in self._lines(index):
                if texts.setdefault(name, text) != text:
                    texts[name] = Unfit("it has two transcripts")
        return texts

    def _lines(self, index: int) -> Iterator[tuple[str, str | Unfit]]:
        """Yield name and text of each line of a list."""
        tabs = _suffix(self.files.name(index)) == ".tsv"
        for number, line in enumerate(self._text(index, by_line=True).split("\n"), 1):
            fields = line.split("\t" if tabs else None, 1)
            if fields and fields[0].strip():
                text = fields[1].strip() if len(fields) == 2 else ""
                fault = Unfit(f"{_AT} invalid UTF-8 in line {number}")
                yield fields[0].strip(), text if _is_utf8(line) else fault

    def _text(self, index: int, by_line: bool = False) -> str:
        """Return the text of a file; raise Unfit where it cannot be read.

        By line, bytes that are not UTF-8 are left as surrogates.
        """
        try:
            text = self._decoded(self._corpus.content(index), by_line)
        except Unfit as error:
            raise Unfit(f"{_AT} {error}") from error
        return text.removeprefix("\ufeff")

    def _decoded(self, data: bytes, by_line: bool) -> str:
        coding = coding_of_text(self._encoding, data)
        if by_line and coding.name == UTF8:
            return data.decode(errors="surrogateescape")
        try:
            return coding.text(data)
        except UnicodeError as error:
            raise Unfit(coding.fault(error)) from error

    def _is_list(self, index: int, audio: FileList) -> bool:
        """Return whether the first lines of a file are as in a list, and one names audio."""
        name, suffix = self.files.name(index), _suffix(self.files.name(index))
        listed = suffix == ".tsv" or name.endswith(_LIST)
        if not listed or self.files.nbytes(index) > MOST_BYTES:
            return False
        try:
            lines = filter(str.strip, self._text(index, by_line=True).split("\n"))
        except Unfit:
            return name.endswith(_LIST)
        tab = "\t" if suffix == ".tsv" else None
        rows = [line.split(tab) for line in islice(lines, _LOOKED_AT)]
        even = suffix != ".tsv" or all(len(row) == 2 for row in rows)
        return even and any(_names(folder_of(name) + row[0].strip(), audio) for row in rows)


def _is_own(name: str, audio: FileList) -> bool:
    return _suffix(name) in _OWN and bool(with_stem(audio, stem_of(name)))


def _names(name: str, audio: FileList) -> bool:
    return index_of(audio, name) is not None or bool(with_stem(audio, name))


def _suffix(name: str) -> str:
    """Return the suffix of a text; that of a list in two parts."""
    return _LIST if name.endswith(_LIST) else suffix_of(os.fsencode(name))


def _is_utf8(text: str) -> bool:
    return text.isascii() or not _SURROGATE.search(text)
