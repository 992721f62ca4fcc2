"""What a value of a table of text is by its spelling."""

from __future__ import annotations

import re
from decimal import Decimal

from geodata.sources.observed import integer_kinds

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_LONGEST_NUMBER = 400
_SURE_DIGITS = 15
"""A decimal number of so many digits always comes back the same from a float64."""


def text_kinds(text: str) -> tuple[str, ...]:
    """Return what a value is if its spelling is plain, as in `integer_kinds`; else "string"."""
    if text in ("true", "false"):
        return ("bool",)
    if text in ("nan", "inf", "-inf", "-0"):
        return ("double",)
    number = _NUMBER.fullmatch(text)
    if number is None or len(text) > _LONGEST_NUMBER:
        return ("string",)
    if number[1] is None and number[2] is None:
        return integer_kinds(int(text))
    sure = number[2] is None and len(text) <= _SURE_DIGITS
    return ("double",) if sure or _comes_back(text) else ("string",)


def _comes_back(text: str) -> bool:
    """Return whether the shortest spelling of the float64 is the same number."""
    value = float(text)
    return abs(value) != float("inf") and Decimal(repr(value)) == Decimal(text)
