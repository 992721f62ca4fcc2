"""One JSON object → a record, strictly: what makes its meaning uncertain is a reason to reject it.

That is a key twice in one object, half a surrogate pair, a number too large for a float64, and
nesting deeper than Parquet readers take. Strings stay strings, and integers are exact.
"""

from __future__ import annotations

import json
import re
from typing import Any

from geodata.sources.batches import Unfit
from geodata.sources.encodings.declared import PLAIN
from geodata.sources.observed import MAX_FIELDS, TOO_MANY_FIELDS, too_many_fields
from geodata.sources.text.arrowjson import MAX_DEPTH

BOM = b"\xef\xbb\xbf"
TWICE = "an object has a key twice"
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


def record_of(line: bytes, what: str = "line") -> dict[str, Any] | str | None:
    """Return the record of a line or item, why there is none, or None for a blank line."""
    if line.isspace() or not line:
        return None
    try:
        record = _decode(line.decode())
        if not isinstance(record, dict):
            return f"the {what} is not a JSON object"
        return doubt(line, record) or record
    except UnicodeDecodeError as error:
        return PLAIN.fault(error, 0, f" of the {what}")
    except json.JSONDecodeError as error:
        column = min(error.pos, len(error.doc.rstrip())) + 1
        return f"invalid JSON at column {column}: {error.msg}"
    except Unfit as error:
        return str(error)
    except RecursionError:
        return f"nested deeper than {MAX_DEPTH} levels"
    except ValueError:
        return "an integer has too many digits"


def doubt(line: bytes, record: Any) -> str | None:
    """Return why a value that parses is rejected all the same."""
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} levels"
    if (b"\\ud" in line or b"\\uD" in line) and _has_half_pair(record):
        return "a string holds half a surrogate pair"
    if line.count(b":") > MAX_FIELDS and too_many_fields(record):
        return TOO_MANY_FIELDS
    return None


def _depth(value: Any) -> int:
    """Return how many levels of lists and objects `value` has, without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [x for item in level for x in (item.values() if type(item) is dict else item)]
    return depth


def _has_half_pair(value: Any) -> bool:
    if isinstance(value, str):
        return _HALF_PAIR.search(value) is not None
    if isinstance(value, dict):
        return any(map(_has_half_pair, value)) or any(map(_has_half_pair, value.values()))
    return isinstance(value, list) and any(map(_has_half_pair, value))


def refuse_overflow(line: bytes) -> None:
    """Raise Unfit if a number, not spelled Infinity, became infinite."""
    _decode_finite(line.decode())


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these members; raise Unfit if a key stands twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unfit(TWICE)
    return made


def finite(text: str) -> float:
    """Return the float that a number means; raise Unfit if it is too large for one."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Unfit("a number is too large for a float64")
    return value


_decode = json.JSONDecoder(object_pairs_hook=object_of).decode
_decode_finite = json.JSONDecoder(parse_float=finite).decode
