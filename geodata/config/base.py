"""What all sections share: strictness, and sizes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?)?B?\s*$", re.IGNORECASE)
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_size(text: str | int) -> int:
    """Return bytes of a size such as 256MiB, 2TB or 1048576; ValueError for anything else."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ValueError(f"{text} is no size; write it like 256MiB")
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"'{text}' is no size; write it like 256MiB")
    number, unit = match.groups()
    if not unit:
        return int(float(number))
    base = 1024 if unit.lower().endswith("i") else 1000
    return int(float(number) * base ** _UNITS[unit[0].upper()])


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
