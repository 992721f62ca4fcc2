"""Arrow types by their names: as Arrow itself writes them, and as people do.

bool  int8…uint64  float16 float32 float64 (halffloat float double)
string large_string binary large_binary fixed_size_binary[16]
date32 date64 time32[s] time64[us] timestamp[us] timestamp[us, tz=UTC] duration[ms]
decimal(10, 2) decimal128(10, 2) decimal256(40, 2)
list<int32> large_list<int32> fixed_size_list<float>[3] map<string, int64>
struct<name: string, at: timestamp[s]>
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable

import pyarrow as pa

from geodata.errors import ConfigError

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_FLOATS = {"float16": "halffloat", "float32": "float", "float64": "double"}
_OTHERS = "bool_ string binary null large_string large_binary date32 date64".split()
_PLAIN: dict[str, pa.DataType] = {
    **{name.rstrip("_"): getattr(pa, name)() for name in (*_INTEGERS, *_FLOATS, *_OTHERS)},
    **{name: getattr(pa, plain)() for plain, name in _FLOATS.items()},
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
}
_TIMES = {"time32": ("s", "ms"), "time64": ("us", "ns")}
_UNITS = ("s", "ms", "us", "ns")
_DECIMALS = {"decimal": 38, "decimal128": 38, "decimal256": 76}
_OFFSET = re.compile(r"[+-]\d{2}:\d{2}")
_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)")
_DEEPEST = 32


class _Unknown(Exception):
    """What stands there is not the name of a type."""


def parse_type(text: str) -> pa.DataType:
    """Return the type of this name; ConfigError if there is none."""
    parser = _Parser(text)
    try:
        kind = parser.kind(0)
        parser.end()
    except (_Unknown, ValueError, OverflowError, pa.ArrowException) as error:
        reason = f": {error}" if str(error) else ""
        raise ConfigError(
            f"'{text}' is no type{reason}",
            hint="Write it like int32, string, timestamp[us, tz=UTC], decimal128(10, 2), "
            "list<float32> or struct<a: int8>; or image, audio, text",
        ) from error
    return kind


class _Parser:
    """Reads a type from the left."""

    def __init__(self, text: str):
        self._text, self._at = text, 0

    def kind(self, depth: int) -> pa.DataType:
        """Read a type."""
        if depth > _DEEPEST:
            raise _Unknown("nested too deeply")
        name = self._word()
        nested = _NESTED.get(name)
        if nested is not None:
            return nested(self, depth + 1)
        if name in _DECIMALS:
            precision, scale = self._numbers()
            made = pa.decimal256 if _DECIMALS[name] > 38 else pa.decimal128
            return made(precision, scale)
        if self._next("["):
            return self._unit(name)
        if name not in _PLAIN:
            raise _Unknown
        return _PLAIN[name]

    def end(self) -> None:
        """Fail if something follows."""
        if self._text[self._at :].strip():
            raise _Unknown

    def _unit(self, name: str) -> pa.DataType:
        """Read what stands in brackets behind a name, and the closing one."""
        inside, found, _ = self._text[self._at :].partition("]")
        self._at += len(inside) + len(found)
        unit, comma, zone = (part.strip() for part in inside.partition(","))
        if not found or (comma and name != "timestamp"):
            raise _Unknown
        if f"{name}[{unit}]" in _PLAIN:
            return _PLAIN[f"{name}[{unit}]"]
        if name == "fixed_size_binary" and unit.isdecimal():
            return pa.binary(int(unit))
        if name in _TIMES and unit in _TIMES[name]:
            return getattr(pa, name)(unit)
        if name == "duration" and unit in _UNITS:
            return pa.duration(unit)
        if name == "timestamp" and unit in _UNITS:
            return pa.timestamp(unit, _zone(zone) if comma else None)
        raise _Unknown

    def _list(self, made: Callable[[pa.DataType], pa.DataType], depth: int) -> pa.DataType:
        self._expect("<")
        kind = made(self._item(depth))
        self._expect(">")
        return kind

    def plain_list(self, depth: int) -> pa.DataType:
        """Read list<…>."""
        return self._list(pa.list_, depth)

    def large_list(self, depth: int) -> pa.DataType:
        """Read large_list<…>."""
        return self._list(pa.large_list, depth)

    def fixed_size_list(self, depth: int) -> pa.DataType:
        """Read fixed_size_list<…>[N]."""
        item = self._list(lambda kind: kind, depth)
        self._expect("[")
        size = self._number()
        self._expect("]")
        if size < 0:
            raise _Unknown
        return pa.list_(item, size)

    def map(self, depth: int) -> pa.DataType:
        """Read map<key, value>."""
        self._expect("<")
        key = self.kind(depth)
        self._expect(",")
        value = self.kind(depth)
        self._expect(">")
        return pa.map_(key, value)

    def struct(self, depth: int) -> pa.DataType:
        """Read struct<name: type, …>."""
        fields: dict[str, pa.DataType] = {}
        self._expect("<")
        while not self._next(">"):
            if fields:
                self._expect(",")
            name = self._name()
            if name in fields:
                raise _Unknown(f"two fields '{name}'")
            fields[name] = self.kind(depth)
        return pa.struct(list(fields.items()))

    def _item(self, depth: int) -> pa.DataType:
        """Read the type of a list's items, which Arrow writes with a name before it."""
        found = re.compile(r"\s*\w+\s*:").match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self.kind(depth)

    def _name(self) -> str:
        name, colon, _ = self._text[self._at :].partition(":")
        if not colon or not name.strip():
            raise _Unknown
        self._at += len(name) + 1
        return name.strip()

    def _word(self) -> str:
        found = _WORD.match(self._text, self._at)
        if not found:
            raise _Unknown
        self._at = found.end()
        return found[1]

    def _numbers(self) -> tuple[int, int]:
        self._expect("(")
        precision = self._number()
        scale = self._number() if self._next(",") else 0
        self._expect(")")
        return precision, scale

    def _number(self) -> int:
        found = re.compile(r"\s*(-?\d{1,9})").match(self._text, self._at)
        if not found:
            raise _Unknown
        self._at = found.end()
        return int(found[1])

    def _next(self, sign: str) -> bool:
        """Return whether `sign` comes next, and go past it."""
        rest = self._text[self._at :].lstrip()
        if not rest.startswith(sign):
            return False
        self._at = len(self._text) - len(rest) + len(sign)
        return True

    def _expect(self, sign: str) -> None:
        if not self._next(sign):
            raise _Unknown(f"'{sign}' is missing")


_NESTED: dict[str, Callable[[_Parser, int], pa.DataType]] = {
    "list": _Parser.plain_list,
    "large_list": _Parser.large_list,
    "fixed_size_list": _Parser.fixed_size_list,
    "map": _Parser.map,
    "struct": _Parser.struct,
}


def _zone(text: str) -> str:
    name = text.removeprefix("tz=").strip()
    if name == "UTC" or _OFFSET.fullmatch(name):
        return name
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _Unknown(f"no time zone '{name}'") from error
    return name
