"""Real raw corpora out of installed packages: Django's translations, and a table of airports."""

from __future__ import annotations

import ast
import csv
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
    _write_if_changed(path, "\n".join(lines) + "\n")
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
    _write_if_changed(path, fresh.read_text(encoding="utf-8"))
    fresh.unlink()
    return len(rows)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f'{name} is not installed. pip install "geodata-train[demo]"')
    return Path(next(iter(spec.submodule_search_locations)))


def _write_if_changed(path: Path, text: str) -> None:
    """Keep an equal file as it is, so that a second demo finds its conversion done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
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
