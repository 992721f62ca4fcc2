"""What encoding a file's text is in: as the user says, or recognised with a measure of doubt.

Text is decoded strictly, so that no byte is guessed at. UTF-8 and byte order marks come first, also
where some bytes of UTF-8 are damaged; then what is most likely in any language (`detection`). What
does not clearly lead is not taken.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from geodata.errors import ConfigError
from geodata.sources.batches import Unfit
from geodata.sources.encodings.detection import detected
from geodata.sources.options import DETECT

UTF8 = "utf-8"
HEAD_BYTES = 1 << 16
"""Of a file, looked at to recognise its encoding."""

_AROUND = 32
"""Before and after a byte that comes late in a text."""
_BEFORE_BYTES = 1 << 10
"""Before the first byte that is not UTF-8, looked at where it comes late in a text."""

SURE = 0.5
"""Least confidence of an encoding that is taken."""
CERTAIN = 0.9
"""Least confidence of one that tells of the files beside it."""

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
_JAPANESE = re.compile(rb"\x1b\$[@B][!-~]{2}")
"""What only ISO-2022-JP has: the mark of two bytes a character, and one."""
_KOREAN = b"\x1b$)C"
"""What a file in ISO-2022-KR begins with; it tells how all lines are read."""
_DAMAGED = 10
"""Characters of UTF-8 to each that is none, in a text that is UTF-8 all the same."""
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
        if self.name == "iso2022_kr":
            decoder = codecs.getincrementaldecoder(self.name)()
            return decoder.decode(_KOREAN) + decoder.decode(data, final=True)
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

Likely = Callable[[], str | None]
"""What an encoding is likely to be, or None."""


def _nothing() -> None:
    return None


def checked_encoding(name: str) -> str:
    """Return the usual name of an encoding, or `detect`; ConfigError if there is none of it."""
    if name == DETECT:
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


def coding_of(encoding: str, head: bytes, likely: Likely = _nothing) -> Coding:
    """Return how a file that begins with `head` is encoded; Unfit if that is not sure.

    `likely` is asked in doubt, for what is likely beside what the bytes say.
    """
    if encoding in _BY_MARK:
        marked = (name for mark, name in _MARKS if head.startswith(mark))
        family = encoding.partition("-sig")[0]
        return Coding(next((n for n in marked if n.startswith(family)), _BY_MARK[encoding]))
    if encoding != DETECT:
        return Coding(encoding)
    found = _recognised(head)
    if (found is None or 0 < (found.confidence or 0) < CERTAIN) and (name := likely()) is not None:
        found = _recognised(head, name)
    if found is None:
        raise Unfit(f"it is not UTF-8, and its encoding is not certain; {_DECLARE}")
    return found


def coding_of_text(encoding: str, data: bytes, likely: Likely = _nothing) -> Coding:
    """Return how a whole text is encoded, looking at where it is not UTF-8."""
    if encoding != DETECT or len(data) <= HEAD_BYTES:
        return coding_of(encoding, data, likely)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if _is_damaged_utf8(data):
            return PLAIN
        if error.start > HEAD_BYTES // 2 and b"\0" not in data[:4]:
            data = data[error.start - _BEFORE_BYTES :]
    coding = coding_of(encoding, data[:HEAD_BYTES], likely)
    if coding.confidence is None or len(coding.newline) > 1:
        return coding
    later = b"\n".join(_first_places(data))
    return coding_of(encoding, data[: HEAD_BYTES - len(later)] + later, likely) if later else coding


def is_bare(data: bytes) -> bool:
    """Return whether bytes tell of no encoding: ASCII without NULs or escapes."""
    return data.isascii() and b"\0" not in data and b"\x1b" not in data


def _first_places(data: bytes) -> Iterator[bytes]:
    """Yield what is around the first place of each byte beyond ASCII that is not in the head."""
    known = bytes(range(128)) + bytes({*data[:HEAD_BYTES]})
    for byte in sorted({*data[HEAD_BYTES:].translate(None, known)}):
        place = data.index(byte, HEAD_BYTES)
        yield data[place - _AROUND : place + _AROUND]


@lru_cache(maxsize=64)
def _recognised(head: bytes, likely: str = "") -> Coding | None:
    for mark, name in _MARKS:
        if head.startswith(mark):
            return PLAIN if name == UTF8 else Coding(name, 1.0)
    whole = len(head) < HEAD_BYTES
    if _JAPANESE.search(head) and _decodes(head, "iso2022_jp", whole):
        return Coding("iso2022_jp", 1.0)
    if head.startswith(_KOREAN) and _decodes(head, "iso2022_kr", whole):
        return Coding("iso2022_kr", 1.0)
    for name in ("utf-32-le", "utf-32-be") if b"\0" in head else ():
        text = _decoded(head, name, whole)
        if text and "\0" not in text:
            return Coding(name, 1.0)
    is_utf8 = _decodes(head, UTF8, whole)
    if (is_utf8 and b"\0" not in head) or (not is_utf8 and _is_damaged_utf8(head)):
        return PLAIN
    found = detected(head, whole, likely)
    if found is not None and found[1] >= SURE:
        return PLAIN if found[0] == UTF8 else Coding(*found)
    return PLAIN if is_utf8 else None


def _decodes(head: bytes, encoding: str, whole: bool) -> bool:
    return _decoded(head, encoding, whole) is not None


def _decoded(head: bytes, encoding: str, whole: bool) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(head, final=whole)
    except UnicodeDecodeError:
        return None


def _is_damaged_utf8(head: bytes) -> bool:
    """Return whether nearly all characters beyond ASCII are UTF-8."""
    text = codecs.getincrementaldecoder(UTF8)("replace").decode(head)
    beyond = sum(letter > "\x7f" for letter in text)
    return text.count("\ufffd") * _DAMAGED < beyond
