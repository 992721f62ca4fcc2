"""Counts how likely letters are in a language: makes `geodata/sources/encodings/letters.json`.

The texts lie in UTF-8 as LANGUAGE/SOURCE/*.txt. Those counted were the Universal Declaration of
Human Rights, translations of Django's messages, and the manuals of Debian; no source counts for
more than 200,000 characters of a language.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from geodata.sources.encodings.languages import LATIN, WRITTEN_IN_SIGNS, Language, folded

_MADE = Path(__file__).parents[1] / "geodata/sources/encodings/letters.json"
_MOST_OF_A_SOURCE = 200_000
"""Characters in a language."""
_CODES = {
    "west": {
        "English": "en en-US en-GB",
        "French": "fr fr-FR",
        "German": "de de-1996 de-DE",
        "Spanish": "es es-ES",
        "Portuguese": "pt pt-BR pt-PT",
        "Italian": "it it-IT",
        "Dutch": "nl nl-NL",
        "Swedish": "sv sv-SE",
        "Danish": "da da-DK",
        "Norwegian": "nb nb-NO nn",
        "Finnish": "fi",
        "Catalan": "ca ca-ES",
        "Icelandic": "is",
        "Galician": "gl",
        "Irish": "ga",
        "Basque": "eu",
        "Albanian": "sq",
        "Faroese": "fo",
    },
    "central": {
        "Polish": "pl pl-PL",
        "Czech": "cs cs-CZ",
        "Slovak": "sk",
        "Hungarian": "hu",
        "Croatian": "hr hr-HR bs-Latn sr-Latn",
        "Slovene": "sl",
        "Romanian": "ro ro-RO",
    },
    "turkish": {"Turkish": "tr tr-TR"},
    "baltic": {"Lithuanian": "lt", "Latvian": "lv", "Estonian": "et"},
    "vietnamese": {"Vietnamese": "vi vi-VN"},
    "south": {"Esperanto": "eo", "Maltese": "mt"},
    "celtic": {"Welsh": "cy"},
    "cyrillic": {
        "Russian": "ru ru-RU",
        "Bulgarian": "bg",
        "Serbian": "sr sr-Cyrl bs-Cyrl",
        "Macedonian": "mk",
        "Belarusian": "be",
        "Ukrainian": "uk",
    },
    "greek": {"Greek": "el el-GR el-monoton"},
    "hebrew": {"Hebrew": "he"},
    "arabic": {"Arabic": "ar ar-MA ar-DZ", "Persian": "fa fa-IR"},
    "thai": {"Thai": "th"},
    "japanese": {"Japanese": "ja ja-JP"},
    "simplified": {"Simplified Chinese": "zh-CN zh-Hans zh cjy"},
    "traditional": {"Traditional Chinese": "zh-TW zh-Hant"},
    "korean": {"Korean": "ko ko-KR"},
}
_BORROWED = {
    "English": "éèïöçñüáôâê",
    "French": "ñöüäáóíœùÿ",
    "German": "éàèçêáñå",
    "Spanish": "üçèöà",
    "Portuguese": "üàèñö",
    "Italian": "éîóúíòüö",
    "Dutch": "éèëïöüáíóêç",
    "Swedish": "éüàèáæø",
    "Danish": "éüöäèó",
    "Norwegian": "éöäüòóôê",
    "Finnish": "åéšžü",
    "Catalan": "ïüñâ",
    "Icelandic": "üäå",
    "Galician": "çü",
    "Irish": "è",
    "Basque": "éç",
    "Albanian": "éö",
    "Faroese": "äöé",
    "Polish": "éüöä",
    "Czech": "öäüłľ",
    "Slovak": "ôěřöü",
    "Hungarian": "ä",
    "Croatian": "éöü",
    "Slovene": "ćđäöüé",
    "Romanian": "éöü",
    "Turkish": "âîûéä",
    "Lithuanian": "éöü",
    "Latvian": "éöü",
    "Estonian": "éšž",
    "Welsh": "éïëÿ",
}
"""Letters that may be too few in the texts to be seen."""
_RARELY = 4
"""Bits that such a letter takes more where a language has others."""
_MOST_BITS = 9
"""Of pairs that are kept; of signs, two more."""
_LEAST_SHARE = 30_000
_AS_IF_SEEN = 2
_CEDILLAS = str.maketrans("șțȘȚ", "şţŞŢ")
"""Letters of Romanian as the encodings of its time have them."""
_TONES = "\u0300\u0301\u0303\u0309\u0323"


@click.command("letters")
@click.argument("texts", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--without", multiple=True, metavar="SOURCE", help="To be tested with.")
@click.option("--to", type=click.Path(path_type=Path), default=_MADE, help="File to write.")
def count_letters(texts: Path, without: tuple[str, ...], to: Path) -> None:
    """Count the letters of the TEXTS, by language."""
    made: list[dict[str, Any]] = []
    for script, named in _CODES.items():
        for name, codes in named.items():
            found = list(_texts_of(texts, name, codes, without))
            if script in WRITTEN_IN_SIGNS:
                letters, pairs = _counted_signs(found), list[str]()
            else:
                letters, pairs = _counted(found, _BORROWED.get(name, ""), script in LATIN)
            usual = _usual(Language(name, script, letters, pairs, 0), found)
            made.append(
                {"name": name, "script": script, "letters": letters, "pairs": pairs, "usual": usual}
            )
            click.echo(name)
    lines = ",\n".join(json.dumps(language, ensure_ascii=False) for language in made)
    to.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _texts_of(texts: Path, name: str, codes: str, without: Collection[str]) -> Iterator[str]:
    """Yield the texts of a language as its old encodings can spell them."""
    sources: dict[str, list[Path]] = {}
    for code in codes.split():
        for path in sorted((texts / code).glob("*/*.txt")):
            if path.parent.name not in without:
                sources.setdefault(path.parent.name, []).append(path)
    for paths in sources.values():
        left = _MOST_OF_A_SOURCE
        for path in paths:
            text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8"))[:left]
            left -= len(text)
            if name == "Vietnamese":
                text = "".join(map(_with_tone_apart, text))
            yield text.translate(_CEDILLAS) if name == "Romanian" else text


def _with_tone_apart(letter: str) -> str:
    """Return a letter of Vietnamese with its tone as a mark of its own, as in Windows-1258."""
    parts = unicodedata.normalize("NFD", letter)
    tones = "".join(part for part in parts if part in _TONES)
    others = "".join(part for part in parts if part not in _TONES)
    return unicodedata.normalize("NFC", others) + tones


def _counted_signs(texts: Iterable[str]) -> list[str]:
    """Return the bits of each sign."""
    found: Counter[str] = Counter()
    for text in texts:
        for sign, count in Counter(text).items():
            if sign > "\x7f" and unicodedata.category(sign)[0] in "LP":
                found[sign] += count
    total = found.total()
    bits = {sign: _bits(n / total) for sign, n in found.items() if n > _AS_IF_SEEN}
    return _levels({c: b for c, b in bits.items() if b <= _MOST_BITS + 2})


def _counted(texts: Iterable[str], borrowed: str, is_latin: bool) -> tuple[list[str], list[str]]:
    """Return the bits of each letter, and of each pair.

    After ASCII, those are of all that is beyond ASCII, or of all that is not.
    """
    pairs: Counter[str] = Counter()
    for text in texts:
        line = re.sub(" +", " ", "".join(folded(c) or " " for c in text))
        for pair, count in Counter(map("".join, pairwise(line))).items():
            pairs[pair] += count
    second: Counter[str] = Counter()
    for pair, count in pairs.items():
        second[pair[1]] += count
    alphabet = {c for c, n in second.items() if c < "\x80" or n * _LEAST_SHARE > second.total()}
    if not is_latin:
        alphabet = {c for c in alphabet if c == " " or c > "\x7f"}
    beyond = max(1, sum(second[c] for c in alphabet if c > "\x7f"))
    alone = {c: _bits(second[c] / beyond) for c in alphabet if c > "\x7f"}
    totals = {True: beyond, False: second.total() - beyond, None: second.total()}
    first: Counter[tuple[str, bool | None]] = Counter()
    for pair, count in pairs.items():
        first[pair[0], _beyond_if_told(*pair)] += count
    bits = {}
    for pair, count in pairs.items():
        if {*pair} <= alphabet and count > 1:
            told = _beyond_if_told(*pair)
            guessed = _AS_IF_SEEN * second[pair[1]] / totals[told]
            bits[pair] = _bits((count + guessed) / (first[pair[0], told] + _AS_IF_SEEN))
    rare = dict.fromkeys(borrowed, _bits(1 / max(1, len(borrowed))) + (_RARELY if alone else 0))
    return _levels(rare | alone), _levels({p: b for p, b in bits.items() if b <= _MOST_BITS})


def _usual(language: Language, texts: Iterable[str]) -> float:
    """Return the bits that a character takes where it, or the one before, is beyond ASCII."""
    pairs = Counter(pair for text in texts for pair in map("".join, pairwise(text)))
    beyond = {pair: n for pair, n in pairs.items() if not pair.isascii()}
    bits = sum(n * language.costs[pair] for pair, n in beyond.items())
    return round(bits / max(1, sum(beyond.values())), 1)


def _beyond_if_told(one: str, other: str) -> bool | None:
    """Return whether the second letter is beyond ASCII, if that is told after the first."""
    return other > "\x7f" if one < "\x80" else None


def _bits(share: float) -> int:
    return max(1, round(-math.log2(share)))


def _levels(bits: dict[str, int]) -> list[str]:
    """Return what takes 1 bit, 2 bits, and so on, each in one string."""
    levels: list[list[str]] = [[] for _ in range(max(bits.values(), default=0))]
    for found, count in bits.items():
        levels[count - 1].append(found)
    return ["".join(sorted(level)) for level in levels]
