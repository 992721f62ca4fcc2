"""One JSON text of any value, as strictly as `jsonrecord` takes an object."""

from __future__ import annotations

import json
from typing import Any

from geodata.sources.batches import Unfit
from geodata.sources.encodings.declared import PLAIN
from geodata.sources.text.arrowjson import MAX_DEPTH
from geodata.sources.text.jsonrecord import BOM, doubt, finite, object_of

_decode = json.JSONDecoder(object_pairs_hook=object_of, parse_float=finite).decode


def json_value(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8; Unfit says why there is none."""
    try:
        value = _decode(data.removeprefix(BOM).decode())
    except UnicodeDecodeError as error:
        raise Unfit(PLAIN.fault(error)) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise Unfit(f"invalid JSON at {where}: {error.msg}") from error
    except RecursionError as error:
        raise Unfit(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise Unfit("an integer has too many digits") from error
    why = doubt(data, value)
    if why is not None:
        raise Unfit(why)
    return value
