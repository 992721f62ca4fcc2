"""Keeps what scans of pieces found, so that a later plan need not visit them again.

They are stored as plain JSON, some pieces a file. What a source says of its columns may hold Arrow
types and schemas and the types seen in values; a scan with anything else in it is not kept.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from geodata.executors import Executor
from geodata.executors.local import LocalExecutor
from geodata.jobs.base import JobFolder, Progress, digest_of
from geodata.sources.base import Countable, Piece, Scan, Source
from geodata.sources.observed import Seen

_BATCH_BYTES = 256 << 20
"""Raw data of the pieces whose scans lie in one file."""

_PLAIN = (type(None), bool, int, float, str)


class _Unknown(Exception):
    """A value of a kind that is not kept."""


def scan_pieces(
    source: Source,
    pieces: Sequence[Piece],
    names: Sequence[str],
    folder: JobFolder,
    executor: Executor,
    progress: Progress,
    counted: Collection[int] = (),
) -> list[Scan]:
    """Return the scan of each piece; those kept under the same name are not made again.

    Pieces that are only `counted`, by their numbers, say nothing of their columns. A source that
    only glances at its files is scanned in this process, and nothing is kept.
    """
    executor = LocalExecutor(1) if source.glances else executor
    names = [f"{name}-counted" if n in counted else name for n, name in enumerate(names)]
    kept = _load(folder)
    scans = {n: _decoded(kept[name]) for n, name in enumerate(names) if name in kept}
    missing = [number for number in range(len(pieces)) if number not in scans]
    progress.start("scan", sum(piece.nbytes for piece in pieces), "B")
    progress.advance(sum(pieces[number].nbytes for number in scans))
    wanted = [(pieces[number], number in counted) for number in missing]
    fresh: dict[str, Any] = {}
    nbytes = 0
    with closing(executor.run(_scan, wanted, source)) as finished:
        for index, scan in finished:
            number = missing[index]
            scans[number] = scan
            if not source.glances:
                fresh[names[number]] = scan
            nbytes += pieces[number].nbytes
            if nbytes >= _BATCH_BYTES:
                _save(folder, fresh)
                fresh, nbytes = {}, 0
            progress.advance(pieces[number].nbytes)
    _save(folder, fresh)
    progress.finish()
    return [scans[number] for number in range(len(pieces))]


def piece_name(piece: Piece, files: Any, basis: str) -> str:
    """Return the digest of what decides the scan of a piece: its place and its `files`."""
    return digest_of([basis, asdict(piece), files])


def _scan(source: Source, task: tuple[Piece, bool]) -> Scan:
    piece, only_counted = task
    if only_counted and isinstance(source, Countable):
        return source.count(piece)
    return source.scan(piece)


def _load(folder: JobFolder) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for path in sorted(folder.path.glob("scans-*.json")):
        kept |= folder.load(path.stem) or {}
    return kept


def _save(folder: JobFolder, scans: dict[str, Scan]) -> None:
    found = {}
    for name, scan in scans.items():
        try:
            found[name] = _encoded(scan)
        except _Unknown:
            continue
    if found:
        folder.save(f"scans-{digest_of(sorted(found))[:24]}", found)


def _encoded(scan: Scan) -> dict[str, Any]:
    return {
        "rows": scan.rows,
        "advance": scan.advance,
        "columns": _plain(scan.columns),
        "labels": _plain(scan.labels),
        "file": scan.file,
        "encodings": _plain(scan.encodings),
        "ignored": scan.ignored,
    }


def _decoded(data: dict[str, Any]) -> Scan:
    return Scan(
        data["rows"],
        data["advance"],
        columns=_value(data["columns"]),
        labels=_value(data["labels"]),
        file=data["file"],
        encodings=_value(data["encodings"]),
        ignored=Counter(data.get("ignored")),
    )


def _plain(value: Any) -> Any:
    """Return a value as plain JSON: what JSON has not is a list of its kind and its content."""
    if type(value) in _PLAIN:
        return value
    for kind, (name, take, _) in _KINDS.items():
        if type(value) is kind or (kind in _FAMILIES and isinstance(value, kind)):
            return [name, take(value)]
    raise _Unknown


def _value(data: Any) -> Any:
    if not isinstance(data, list):
        return data
    name, content = data
    return _MAKERS[name](content)


def _items(values: Any) -> list[Any]:
    return [_plain(value) for value in values]


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [[_plain(key), _plain(below)] for key, below in value.items()]


def _dict(pairs: list[Any]) -> dict[Any, Any]:
    return {_value(key): _value(below) for key, below in pairs}


def _schema(content: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content)))


def _seen(content: list[Any]) -> Seen:
    first, fields, items = map(_value, content)
    return Seen(first, fields, items)


_KINDS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    list: ("list", _items, lambda content: [*map(_value, content)]),
    tuple: ("tuple", _items, lambda content: tuple(map(_value, content))),
    set: ("set", lambda v: _items(sorted(v, key=repr)), lambda content: set(map(_value, content))),
    dict: ("dict", _pairs, _dict),
    bytes: (
        "bytes",
        lambda value: base64.b64encode(value).decode(),
        base64.b64decode,
    ),
    Seen: ("seen", lambda seen: _items([seen.first, seen.fields, seen.items]), _seen),
    pa.Schema: (
        "schema",
        lambda schema: base64.b64encode(schema.serialize().to_pybytes()).decode(),
        _schema,
    ),
    pa.DataType: (
        "type",
        lambda kind: _plain(pa.schema([("", kind)])),
        lambda content: _value(content).field(0).type,
    ),
}
"""Kinds of value that JSON has not: their name, how they become plain, and how they are made."""

_FAMILIES = (pa.DataType,)
_MAKERS = {name: make for name, _, make in _KINDS.values()}
