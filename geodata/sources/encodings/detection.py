"""Which encoding the bytes of a text are in, by how likely its letters are in any language.

Every reading of the bytes, an encoding with a language written in it, is weighed by the bits that
its characters take (`languages`): the least is the most likely, and by how many bits it leads is
how sure it is. Readings that are the same text are no rivals. What is unlikely in all languages is
not recognised, and neither are encodings that are not listed here.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from geodata.sources.encodings.languages import Language, Unknown, folded, languages

_ENCODINGS = {
    "west": "cp1252 iso8859_15 cp850 mac_roman cp437",
    "central": "cp1250 iso8859_2 cp852 mac_latin2 iso8859_16",
    "turkish": "cp1254 iso8859_9 cp857 mac_turkish",
    "baltic": "cp1257 iso8859_13 iso8859_4 cp775",
    "vietnamese": "cp1258",
    "south": "iso8859_3",
    "celtic": "iso8859_14",
    "cyrillic": "cp1251 koi8_u koi8_r iso8859_5 cp866 mac_cyrillic cp855",
    "greek": "cp1253 iso8859_7 cp737 mac_greek",
    "hebrew": "cp1255 iso8859_8 cp862",
    "arabic": "cp1256 iso8859_6 cp720",
    "thai": "cp874",
    "japanese": "cp932 euc_jp",
    "simplified": "gb18030",
    "traditional": "cp950 big5hkscs",
    "korean": "cp949",
}
"""By script, a superset before what it holds, and the usual before the rare."""
_SEVERAL_BYTES = frozenset("cp932 euc_jp gb18030 cp950 big5hkscs cp949".split())
_OF_OLD = frozenset(
    "cp850 mac_roman cp437 cp852 mac_latin2 iso8859_16 cp857 mac_turkish iso8859_4 cp775 "
    "mac_cyrillic cp855 cp737 mac_greek cp862 cp720".split()
)
_WIDE = ("utf-16-le", "utf-16-be")

_LIKELY = 15
"""Bits less for an encoding that is likely for other reasons than the bytes."""
_LESS_USUAL, _OLD = 2, 12
"""Bits that an encoding takes for each one before it, and one that is rarely met."""
_ASCII_WEIGHT = 0.5
_ASCII_PAIRS = 400
"""Most pairs within ASCII that count: they tell of the language, not of the encoding."""
_SPACE_IN = 50
"""Bytes to a space in UTF-16 without NULs, at least: there it is half of a character."""
_SAME_WORD = 4
"""How often a word counts."""
_EVEN = 7.0
"""Bits of lead at which the confidence is a half."""
_FEW = 5.0
"""Bits that a single character may take more than usual, beside the slack of its language."""
_MARGIN = 1.0
_UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class _Reading:
    """The bytes as text in a language: the bits that it takes, and how many of these are too many.

    `text` tells equal readings: all of it, or what the bytes beyond ASCII are.
    """

    bits: float
    excess: float
    encoding: str
    text: str


def detected(data: bytes, whole: bool, likely: str = "") -> tuple[str, float] | None:
    """Return the most likely encoding and the confidence, at most 1; None if there is none.

    `data` is a text, or its beginning if not the whole; `likely` is an encoding that it may well be
    in, whatever its bytes say. UTF-8 is among the encodings if there are NULs.
    """

    def bits(reading: _Reading) -> float:
        return reading.bits - (_LIKELY if _usual_name(reading.encoding) == likely else 0)

    readings = sorted(_Readings(data, whole), key=bits)
    if not readings:
        return None
    best = readings[0]
    rival = next((bits(r) for r in readings if r.text != best.text), float("inf"))
    lead = 1 - 2 ** ((bits(best) - rival) / _EVEN)
    plausible = max(0.0, min(1.0, 1 - best.excess))
    return _usual_name(best.encoding), round(lead * plausible, 2)


class _Readings:
    """All readings of a text, or of its beginning."""

    def __init__(self, data: bytes, whole: bool):
        self._data, self._whole = data, whole
        self._has_nuls = b"\0" in data
        self._varied = data if self._has_nuls else _varied(data, whole)

        data = self._varied
        pairs = Counter(zip(b" " + data, data))  # noqa: B905
        within = {(a, b): n for (a, b), n in pairs.items() if _is_within(chr(a), chr(b))}
        self._beyond = {pair: n for pair, n in pairs.items() if pair not in within}
        self._used = sorted({byte for pair in self._beyond for byte in pair})
        ascii_pairs = {chr(a) + chr(b): n for (a, b), n in within.items()}
        self._ascii_bits = self._ascii(ascii_pairs, languages())

    def __iter__(self) -> Iterator[_Reading]:
        for encoding, rank, spoken in _candidates():
            if encoding in _SEVERAL_BYTES:
                yield from self._decoded(self._varied, encoding, rank, spoken)
            else:
                yield from self._in_bytes(encoding, rank, spoken)
        yield from self._wide()

    def _wide(self) -> Iterator[_Reading]:
        """Yield the readings as UTF-16, where all but signs without spaces has NULs."""
        if self._has_nuls:
            for place, encoding in enumerate(("utf-8", *_WIDE)):
                spoken = [*languages(), _UNKNOWN]
                yield from self._decoded(self._data, encoding, _LESS_USUAL * place, spoken)
        elif self._data.count(b" ") * _SPACE_IN < len(self._data):
            for place, encoding in enumerate(_WIDE):
                spoken = [language for language in languages() if language.in_signs]
                yield from self._decoded(self._data, encoding, _LESS_USUAL * place, spoken)

    def _in_bytes(self, encoding: str, rank: int, spoken: Sequence[Language]) -> Iterator[_Reading]:
        """Yield the readings in an encoding of one byte a character, if it has all these."""
        letters = _letters(encoding)
        if all(letters[byte] for byte in self._used):
            found = {letters[a] + letters[b]: n for (a, b), n in self._beyond.items()}
            text = "".join(letters[byte] for byte in self._used)
            yield from _weighed(found, self._ascii_bits, encoding, rank, spoken, text)

    def _decoded(
        self, data: bytes, encoding: str, rank: int, spoken: Sequence[Language]
    ) -> Iterator[_Reading]:
        """Yield the readings in an encoding whose characters have several bytes."""
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(data, final=self._whole)
        except UnicodeError:
            return
        pairs = Counter(map("".join, pairwise(" " + text)))
        within = {pair: n for pair, n in pairs.items() if _is_within(*pair)}
        beyond = {pair: n for pair, n in pairs.items() if pair not in within}
        yield from _weighed(beyond, self._ascii(within, spoken), encoding, rank, spoken, text)

    def _ascii(self, pairs: Mapping[str, int], spoken: Sequence[Language]) -> dict[str, float]:
        """Return what the ASCII of a text takes in each language: it may be English as well."""
        alike: Counter[str] = Counter()
        for pair, n in pairs.items():
            alike["".join(folded(c) or " " for c in pair)] += n
        weight = 1.0
        if not self._has_nuls:
            weight = _ASCII_WEIGHT * min(1.0, _ASCII_PAIRS / max(1, alike.total()))

        def bits(language: Language) -> float:
            return weight * sum(n * language.within_ascii(pair) for pair, n in alike.items())

        english = bits(languages()[0])
        return {x.name: min(english, bits(x)) if x.is_latin else english for x in spoken}


def _varied(data: bytes, whole: bool) -> bytes:
    """Return the words of a text, each as often as it tells something new."""
    words = data.split()
    cut = words.pop() if words and not whole else b""
    kept = [b" ".join([word] * min(n, _SAME_WORD)) for word, n in Counter(words).items()]
    return b" ".join([*kept, cut])


def _weighed(
    pairs: Mapping[str, int],
    ascii_bits: Mapping[str, float],
    encoding: str,
    rank: int,
    spoken: Sequence[Language],
    text: str,
) -> Iterator[_Reading]:
    """Yield a reading in each language; `pairs` are those not within ASCII."""
    count = max(1, sum(pairs.values()))
    for language in spoken:
        costs = language.costs
        bits = sum(n * costs[pair] for pair, n in pairs.items())
        surprise = bits / count - language.usual - language.slack - _FEW / math.sqrt(count)
        total = rank + ascii_bits[language.name] + bits
        yield _Reading(total, surprise / _MARGIN, encoding, text)


def _is_within(before: str, after: str) -> bool:
    """Return whether a pair is of ASCII, and of text."""
    return before < "\x80" and after < "\x80" and (after >= " " or after in "\t\n\v\f\r")


@cache
def _candidates() -> list[tuple[str, int, list[Language]]]:
    """Return the encodings to look at, the bits that each takes, and the languages in it."""
    return [
        (encoding, _OLD if encoding in _OF_OLD else _LESS_USUAL * place, spoken)
        for script, encodings in _ENCODINGS.items()
        for spoken in [[language for language in languages() if language.script == script]]
        for place, encoding in enumerate(encodings.split())
    ]


@cache
def _usual_name(encoding: str) -> str:
    return codecs.lookup(encoding).name


@cache
def _letters(encoding: str) -> list[str]:
    """Return what each byte is, empty if nothing."""
    return [bytes([byte]).decode(encoding, errors="ignore") for byte in range(256)]
