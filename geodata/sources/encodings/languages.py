"""How likely letters are beside one another in a language: what it takes to read one more, in bits.

`letters.json` holds them for 48 languages, counted by `python -m benchmarks letters`. After ASCII,
what is told is how surely it is that letter and no other beyond ASCII: whether one comes next at
all is the same in all readings of the same bytes.
"""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any

LATIN = frozenset("west central turkish baltic vietnamese south celtic".split())
"""Scripts of letters that are Latin."""
WRITTEN_IN_SIGNS = frozenset("japanese simplified traditional korean".split())
"""Scripts of so many letters that each is told alone, not by the one before."""

_FREQUENT = {
    "simplified": ("gb2312", range(0xB0, 0xD8), 24),
    "traditional": ("big5", range(0xA4, 0xC7), 20),
    "korean": ("euc_kr", range(0xB0, 0xC9), 16),
}
"""A standard that puts the frequent signs first, their rows, and the bits of a sign elsewhere."""
_FREQUENT_SIGN = 12
"""Bits of a frequent sign that was not counted."""
_SLACK, _SLACKS = 1.0, {"simplified": 1.2, "traditional": 2.0, "korean": 2.0}
"""Bits that characters may take more than usual: in signs, texts differ by what they tell of."""

_QUOTES = frozenset("’‘“”„«»–—…\xa0")
_USUAL_SIGNS = frozenset("‚‹›·•°§©®™€£¡¿ºª´\xad№′″")
_AFTER_LETTERS = frozenset("’”»›…–—ºª°·´\xa0\xad")
_BEFORE_LETTERS = frozenset("’‘“”„«‹¿¡–—…·\xa0\xad")
_SPACES = "\t\n\v\f\r"

_CONTROL, _FORMAT, _QUOTE, _USUAL, _SIGN, _AGAIN = 16, 10, 5, 7, 12, 2
_TOUCHING, _ODDLY_TOUCHING, _CAPITAL_INSIDE = 2, 3, 5
_APART, _ASCII_AFTER, _ASCII_UNKNOWN = 4, 7, 11
_NEW_PAIR = 3
"""For a pair that is not known, beyond what its letter takes alone."""
_OTHER_LETTER, _OTHER_SCRIPT, _TWO_SCRIPTS, _RARE_SIGN = 13, 15, 9, 14
_SAME_BLOCK, _BLOCK = 7, 7


class Language:
    """A language, and what its letters take."""

    def __init__(self, name: str, script: str, letters: list[str], pairs: list[str], usual: float):
        self.name = name
        self.usual = usual
        self.slack = _SLACKS.get(script, _SLACK)
        self.script = script
        self.is_latin = script in LATIN
        self.in_signs = script in WRITTEN_IN_SIGNS
        self._letters = {c: bits for bits, level in enumerate(letters, 1) for c in level}
        self._pairs = {
            level[i : i + 2]: bits
            for bits, level in enumerate(pairs, 1)
            for i in range(0, len(level), 2)
        }
        self.costs = _Costs(self)
        """Bits that the second of two characters, not both of ASCII, takes after the first."""

    def within_ascii(self, pair: str) -> int:
        """Return what the second of two characters of ASCII, folded, takes after the first."""
        return _AGAIN if pair == "  " else self._pairs.get(pair, _ASCII_UNKNOWN)

    def cost(self, before: str, after: str) -> int:
        """Return what a character takes after another, one of which is beyond ASCII."""
        previous, letter = folded(before), folded(after)
        if letter is None or (after < " " and after not in _SPACES):
            return _cost_of_sign(before, previous, after)
        if self.in_signs:
            return self._sign(previous, after)
        bits = self._letter(previous or " ", letter)
        if letter != " ":
            if before.isdigit() or (previous is None and before not in _BEFORE_LETTERS):
                bits += _TOUCHING
            one_is_ascii = before < "\x80" or after < "\x80"
            if one_is_ascii and not self.is_latin and previous not in (None, " "):
                bits = max(bits, _TWO_SCRIPTS)
        return bits + (_CAPITAL_INSIDE if before.islower() and after.isupper() else 0)

    def _letter(self, before: str, letter: str) -> int:
        bits = self._pairs.get(before + letter)
        if bits is not None:
            return bits
        if letter < "\x80":
            return _APART if letter == " " else _ASCII_AFTER
        alone = self._letters.get(letter)
        if alone is not None:
            return alone + _NEW_PAIR
        return _OTHER_LETTER if _is_latin(letter) == self.is_latin else _OTHER_SCRIPT

    def _sign(self, previous: str | None, sign: str) -> int:
        if sign < "\x80":
            return _AGAIN
        touching = previous is not None and "a" <= previous <= "z"
        bits = self._letters.get(sign) or self._uncounted(sign)
        return bits + (_ODDLY_TOUCHING if touching else 0)

    def _uncounted(self, sign: str) -> int:
        """Return what a sign takes that was not counted, by where the standard has it."""
        if self.script not in _FREQUENT:
            return _RARE_SIGN
        standard, rows, elsewhere = _FREQUENT[self.script]
        found = sign.encode(standard, errors="ignore")
        return _FREQUENT_SIGN if len(found) == 2 and found[0] in rows else elsewhere


class Unknown(Language):
    """A language of a script that no other here has: its letters stand together in Unicode."""

    def __init__(self) -> None:
        super().__init__("unknown", "any", [], [], _SAME_BLOCK)

    def _letter(self, before: str, letter: str) -> int:
        if letter == " " or (before == " " and letter > "\x7f"):
            return _APART if letter == " " else _SAME_BLOCK
        alike = ord(before) >> _BLOCK == ord(letter) >> _BLOCK and letter > "\x7f"
        return _SAME_BLOCK if alike else _OTHER_SCRIPT


class _Costs(dict[str, int]):
    """What pairs take in a language, found when first asked for."""

    def __init__(self, language: Language):
        super().__init__()
        self._language = language

    def __missing__(self, pair: str) -> int:
        bits = self[pair] = self._language.cost(pair[0], pair[1])
        return bits


@cache
def languages() -> list[Language]:
    """Return all languages; English comes first."""
    text = files(__package__).joinpath("letters.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)
    return [Language(**language) for language in found]


@cache
def folded(character: str) -> str | None:
    """Return a letter or mark as a small letter, other ASCII as a space, and None for a sign."""
    if character.isalpha() or unicodedata.category(character).startswith("M"):
        return character.lower()[0]
    return " " if character < "\x7f" else None


def _cost_of_sign(before: str, previous: str | None, sign: str) -> int:
    if sign == before:
        return _AGAIN
    oddly = previous not in (None, " ") and sign not in _AFTER_LETTERS
    return _bits_of_sign(sign) + (_ODDLY_TOUCHING if oddly else 0)


@cache
def _bits_of_sign(sign: str) -> int:
    if sign in _QUOTES:
        return _QUOTE
    if sign in _USUAL_SIGNS:
        return _USUAL
    category = unicodedata.category(sign)
    if category in ("Cc", "Cn", "Co", "Cs"):
        return _CONTROL
    return _FORMAT if category == "Cf" else _SIGN


@cache
def _is_latin(letter: str) -> bool:
    return letter < "\u0250" or "\u0300" <= letter < "\u0370" or "\u1e00" <= letter < "\u1f00"
