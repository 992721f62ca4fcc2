"""Real raw corpora out of installed packages: translations, a table of airports, digits."""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from train.demo.countries import country_of

RECORD_BYTES = 1000
"""About how many bytes of consecutive messages make a record."""


class DemoError(Exception):
    """The demo cannot go on; `code` is its exit code."""

    def __init__(self, message: str, code: int = 2):
        super().__init__(message)
        self.code = code


def write_messages(path: Path) -> int:
    """Write Django's translations as JSON lines; return the number of records.

    A record holds messages of one catalogue in one language: text, locale, language, country,
    catalogue and published (the date of the translation). Names of translators are left out.
    """
    lines = [json.dumps(record, ensure_ascii=False) for record in _records(_package("django"))]
    _write_if_changed(path, ("\n".join(lines) + "\n").encode())
    return len(lines)


def write_airports(path: Path) -> int:
    """Write the airports of airportsdata as CSV; return the number of records."""
    _package("airportsdata")
    import airportsdata

    rows = list(airportsdata.load("ICAO").values())
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    _write_if_changed(path, fresh.read_bytes())
    fresh.unlink()
    return len(rows)


def write_digits(folder: Path) -> int:
    """Write scikit-learn's handwritten digits as PNGs, a folder a digit; return how many.

    They are 8 × 8 pixels of 17 levels of grey (E. Alpaydin and C. Kaynak, UCI 1998).
    """
    table = _package("sklearn") / "datasets/data/digits.csv.gz"
    with gzip.open(table, "rt", encoding="ascii") as file:
        rows = [[int(value) for value in line] for line in csv.reader(file)]
    for number, (*levels, digit) in enumerate(rows):
        ink = bytes(255 - min(255, 16 * level) for level in levels)
        _write_if_changed(folder / str(digit) / f"{number:04}.png", _grey_png(ink, 8))
    return len(rows)


def _grey_png(pixels: bytes, width: int) -> bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("pillow") from error
    buffer = io.BytesIO()
    Image.frombytes("L", (width, len(pixels) // width), pixels).save(buffer, "png")
    return buffer.getvalue()


def _missing(name: str) -> DemoError:
    return DemoError(f'{name} is not installed. pip install "geodata-train[demo]"')


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise _missing(name)
    return Path(next(iter(spec.submodule_search_locations)))


def _write_if_changed(path: Path, data: bytes) -> None:
    """Keep an equal file as it is, so that a second demo finds its conversion done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def _records(django: Path) -> Iterator[dict[str, str | None]]:
    for file in sorted(django.glob("**/locale/*/LC_MESSAGES/*.po")):
        locale = file.parts[-3]
        language = locale.partition("_")[0]
        owner = file.parts[-5]
        found = list(messages(file))
        header = found.pop(0) if found else ""
        about: dict[str, str | None] = {
            "locale": locale,
            "language": language,
            "country": country_of(locale),
            "catalogue": "core" if owner == "conf" else owner,
            "published": published(header),
        }
        for text in _runs(found):
            yield {"text": text, **about}


def messages(file: Path) -> Iterator[str]:
    """Yield the translations of a .po file, first that of the empty message: the header."""
    text, inside = "", False
    for line in [*file.read_text(encoding="utf-8").splitlines(), ""]:
        if inside and line.startswith('"'):
            text += _quoted(line)
        else:
            if text:
                yield text
            inside = line.startswith("msgstr")
            text = _quoted(line) if inside else ""


def _quoted(line: str) -> str:
    return str(ast.literal_eval(line[line.index('"') :]))


def published(header: str) -> str | None:
    """Return the date of a catalogue's last revision, YYYY-MM-DD."""
    for line in header.splitlines():
        name, _, value = line.partition(": ")
        if name == "PO-Revision-Date" and value[:4].isdecimal():
            return value[:10]
    return None


def _runs(messages: list[str]) -> Iterator[str]:
    """Yield consecutive messages joined by line ends, each time about RECORD_BYTES of them."""
    held: list[str] = []
    size = 0
    for message in messages:
        held.append(message)
        size += len(message.encode()) + 1
        if size >= RECORD_BYTES:
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)
