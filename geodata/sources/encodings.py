"""What encoding a file's text is in: as the user says, or recognised with a measure of doubt.

Text is decoded strictly, so that no byte is guessed at. To recognise an encoding, likely ones
compete by what `charset_normalizer` says of their readings: letters as usual in a language, less
the mess. Of Latin letters, the accented ones must be of one language; of Chinese, Japanese and
Korean, many the most usual. UTF-8 and byte order marks come first. What does not clearly lead is
not taken.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from geodata.errors import ConfigError, MissingExtra
from geodata.sources.batches import Unfit
from geodata.sources.options import DETECT

UTF8 = "utf-8"
HEAD_BYTES = 1 << 16
"""Of a file, looked at to recognise its encoding."""

_BEFORE_BYTES = 1 << 10
"""Before the first byte that is not UTF-8, looked at where it comes late in a text."""

SURE = 0.5
"""Least confidence of an encoding that is taken."""

_LEAST_WORTH = 0.1
_LEAST_COHERENCE = 0.5
"""With the letters of the likeliest language, of a text in Latin letters."""
_ENOUGH_LETTERS = 16
"""Beyond ASCII, to tell encodings apart: different ones where the script is not Latin."""
_CERTAIN_LEAD = 0.3
"""By how much the most plausible reading leads when its confidence is 1."""

_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BY_MARK = {"utf-16": "utf-16-le", "utf-32": "utf-32-le", "utf-8-sig": UTF8}
"""Encodings whose files say more by their mark; what they are without one."""

_NO_FILES = frozenset({"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})
_LIKELY = (
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 iso8859_2 iso8859_3 iso8859_4 "
    "iso8859_5 iso8859_6 iso8859_7 iso8859_8 cp874 koi8_r koi8_u cp866 cp932 euc_jp iso2022_jp "
    "gb18030 big5 cp949 euc_kr"
).split()
_LATIN = frozenset("cp1250 cp1252 cp1254 cp1257 cp1258 iso8859_2 iso8859_3 iso8859_4".split())
_ACCENTED = {
    "Croatian": "čćđšž",
    "Czech": "áčďéěíňóřšťúůýž",
    "Danish": "æøåéóö",
    "Dutch": "éèëïöüáíóĳ",
    "English": "éèïöçñ",
    "Estonian": "äöõüšž",
    "Finnish": "äöå",
    "French": "àâæçéèêëîïôœùûüÿ",
    "German": "äöüßé",
    "Hungarian": "áéíóöőúüű",
    "Italian": "àèéìíîòóùú",
    "Lithuanian": "ąčęėįšųūž",
    "Norwegian": "æøåéòôó",
    "Polish": "ąćęłńóśźż",
    "Portuguese": "áâãàçéêíóôõúü",
    "Romanian": "ăâîșțşţ",
    "Slovak": "áäčďéíĺľňóôŕšťúýž",
    "Slovene": "čšž",
    "Spanish": "áéíñóúü",
    "Swedish": "åäöé",
    "Turkish": "çğıöşüâîû",
}
"""Letters beside a to z, by language."""
_LIKELY_LANGUAGES = 3
"""Of those that `charset_normalizer` sees, how many may be the language of a text."""

_USUAL = {
    "cp932 euc_jp iso2022_jp": [chr(code) for code in range(0x3041, 0x30FF)],
    "cp949 euc_kr": "이다는을의에가고하로기지사도자한를대인시리으부어나라아서과그스일수장전",
    "gb18030": "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同"
    "工也能下过子说产种面而方后多定行学法所民得经由权自等",
    "big5": "的一是在不了有和人這中大為上個國我以要他時來用們生到作地於出就分對成會可主發年動同"
    "工也能下過子說產種面而方後多定行學法所民得經由權自等",
}
"""Characters that make up a third or more of what is written in a language with many of them."""
_USUAL_OF = {
    encoding: frozenset(usual) for names, usual in _USUAL.items() for encoding in names.split()
}

_MIXED = re.compile(r"(?<=[A-Za-z])[^\W\x00-\x7f]|[^\W\x00-\x7f](?=[A-Za-z])")
"""Letters of two scripts in one word."""
_JOINING = frozenset("’‘·\xad")
_SIGNS = _JOINING | frozenset("“”„–—…«»•€£§°©®™¡¿´×½¼¾²³ºª\xa0")
"""That are usual beside letters."""
_DECLARE = "say which it is with --encoding"


@dataclass(frozen=True, slots=True)
class Coding:
    """How a file is encoded: the codec, and the confidence in it where it was recognised."""

    name: str = UTF8
    confidence: float | None = None

    @property
    def mark(self) -> bytes:
        """Return the byte order mark, which is no text."""
        return "\ufeff".encode(self.name) if self.name.startswith("utf-") else b""

    @property
    def newline(self) -> bytes:
        """Return what ends a line; it stands at multiples of its length only."""
        return "\n".encode(self.name)

    def text(self, data: bytes) -> str:
        """Return the text of some bytes; raises UnicodeError, with the place where there is one."""
        text = data.decode(self.name)
        if self.name == "utf-7":
            text.encode()
        return text

    def fault(self, error: UnicodeError, start: int = 0, of: str = "") -> str:
        """Return the reason of a record that does not decode, whose first byte is at `start`."""
        where = f" at byte {start + getattr(error, 'start', 0)}{of}"
        if self.name != UTF8:
            return f"invalid {self.name}{where}"
        return f"invalid UTF-8{where}; if it is in another encoding, {_DECLARE}"


PLAIN = Coding()


def checked_encoding(name: str) -> str:
    """Return the usual name of an encoding, or `detect`; ConfigError if there is none of it."""
    if name == DETECT:
        _detector()
        return name
    try:
        found = codecs.lookup(name)
        ends = "\n".encode(found.name)
    except (LookupError, ValueError, TypeError) as error:
        raise _unknown(name) from error
    if not getattr(found, "_is_text_encoding", True) or found.name in _NO_FILES or not ends:
        raise _unknown(name)
    return found.name


def _unknown(name: str) -> ConfigError:
    hint = f"utf-8, utf-16, latin-1, cp1252, shift_jis, …, or {DETECT}: as Python knows them"
    return ConfigError(f"no encoding of text '{name}'", hint=hint)


def encoding_of_names(encoding: str) -> str | None:
    """Return the encoding of names in archives that are not UTF-8, if the user says one."""
    says_one = encoding not in (UTF8, DETECT) and "a/".encode(encoding) == b"a/"
    return encoding if says_one else None


def coding_of(encoding: str, head: bytes) -> Coding:
    """Return how a file that begins with `head` is encoded; Unfit if that is not sure."""
    if encoding in _BY_MARK:
        marked = (name for mark, name in _MARKS if head.startswith(mark))
        family = encoding.partition("-sig")[0]
        return Coding(next((n for n in marked if n.startswith(family)), _BY_MARK[encoding]))
    if encoding != DETECT:
        return Coding(encoding)
    found = _recognised(head)
    if found is None:
        raise Unfit(f"it is not UTF-8, and its encoding is not certain; {_DECLARE}")
    return found


def coding_of_text(encoding: str, data: bytes) -> Coding:
    """Return how a whole text is encoded, looking at where it is not UTF-8."""
    if encoding == DETECT:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            if error.start > HEAD_BYTES // 2 and b"\0" not in data[:4]:
                data = data[error.start - _BEFORE_BYTES :]
    return coding_of(encoding, data[:HEAD_BYTES])


@lru_cache(maxsize=64)
def _recognised(head: bytes) -> Coding | None:
    for mark, name in _MARKS:
        if head.startswith(mark):
            return PLAIN if name == UTF8 else Coding(name, 1.0)
    wide = _wide(head)
    if wide is not None:
        return Coding(wide, 1.0)
    try:
        codecs.getincrementaldecoder(UTF8)().decode(head, final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        whole = len(head) < HEAD_BYTES
        return _most_plausible(head if whole else head[: _last_blank(head)])
    return PLAIN


def _wide(head: bytes) -> str | None:
    """Return the kind of UTF-16 without a mark, by the zeros beside characters of ASCII."""
    zeros = head[::2].count(0), head[1::2].count(0)
    if min(zeros) or max(zeros) * 5 < len(head) * 2:
        return None
    return "utf-16-le" if zeros[1] else "utf-16-be"


def _last_blank(head: bytes) -> int:
    """Return where surely no character is cut in two: blanks are part of none."""
    return max(head.rfind(b"\n"), head.rfind(b" ")) % (len(head) + 1)


def _most_plausible(head: bytes) -> Coding | None:
    """Return the encoding whose reading is the most plausible one by far, if there is one."""
    readings: dict[str, tuple[float, float, str]] = {}
    for match in _detector()(head, cp_isolation=_LIKELY, enable_fallback=False):
        text = str(match)
        readings.setdefault(text, (*_worth(match, text), match.encoding))
    ranked = sorted(readings.values(), reverse=True)
    if not ranked or ranked[0][0] < _LEAST_WORTH:
        return None
    worth, evidence, encoding = ranked[0]
    lead = worth - (ranked[1][0] if len(ranked) > 1 else -1)
    confidence = round(evidence * min(1.0, lead / _CERTAIN_LEAD), 2)
    return Coding(codecs.lookup(encoding).name, confidence) if confidence >= SURE else None


def _worth(match: Any, text: str) -> tuple[float, float]:
    """Return how plausible a reading is, and how much evidence there is for it, both at most 1."""
    worth = float(match.coherence - match.chaos)
    if match.encoding in _LATIN:
        share, letters = _in_language(text, match.languages[:_LIKELY_LANGUAGES])
        enough = match.coherence >= _LEAST_COHERENCE
        evidence = min(1.0, letters / _ENOUGH_LETTERS) if enough else 0.0
        return (worth + share - 1, evidence) if letters else (worth, 1.0)
    beyond = Counter(letter for letter in text if letter > "\x7f")
    count = max(1, beyond.total())
    usual = _USUAL_OF.get(match.encoding)
    if usual is not None:
        worth = sum(beyond[letter] for letter in usual) / count - float(match.chaos)
    mixed = len(_MIXED.findall(text)) / count
    return worth - mixed, min(1.0, len(beyond) / _ENOUGH_LETTERS)


def _in_language(text: str, languages: Sequence[str]) -> tuple[float, int]:
    """Return the share of letters beyond ASCII that one language has, and how many they are.

    The share is less for what stands oddly: capitals and signs inside words, unusual signs.
    """
    letters: Counter[str] = Counter()
    odd = 0
    for found in re.finditer(r"[^\x00-\x7f]", text):
        letter, at = found[0], found.start()
        after = text[at - 1 : at].islower()
        if letter.isalpha():
            letters[letter.lower()] += 1
            odd += after and letter.isupper()
        elif letter not in _SIGNS or (
            after and text[at + 1 : at + 2].islower() and letter not in _JOINING
        ):
            letters[letter] += 1
            odd += 2
    if not letters:
        return 1.0, 0
    known = [_ACCENTED.get(language, "") for language in languages]
    most = max((sum(letters[letter] for letter in usual) for usual in known), default=0)
    return max(-1.0, (most - odd) / letters.total()), letters.total()


def _detector() -> Any:
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        raise MissingExtra.of("charset-normalizer", "encodings") from error
    return from_bytes
