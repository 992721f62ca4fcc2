"""Line JSON: one object a line, in UTF-8.

Only `\\n` ends a line. Blank lines are no records, but count in row numbers. A line is rejected for
what makes its meaning uncertain: a key twice in one object, half a surrogate pair, a number too
large for a float64. Strings stay strings, and integers are exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError
from geodata.schema import SYSTEM
from geodata.sources.arrowjson import MAX_DEPTH, expected, news, parsed
from geodata.sources.base import Piece, Reject, Scan, first_rows
from geodata.sources.batches import Unfit, assemble, bounded, fitting, most_rows
from geodata.sources.corpus import NOT_UTF8_NAME, TOO_LONG, Corpus, unreadable
from geodata.sources.lines import cuts, lines_of
from geodata.sources.listing import Listing
from geodata.sources.observed import Seen, schema_of, see_fields
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.values import array_of, holds_infinity

_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 4 << 20
_SCAN_BYTES = 1 << 20
_FEW_BYTES = 16 << 10
"""Bytes of a block whose lines are as quickly read one by one."""
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")

_Line = tuple[int, bytes, "dict[str, Any] | pa.RecordBatch | str | None"]
"""Number of a line in its piece (0: the file itself), its bytes, and what it holds: a record, the
reason to reject it, or None when it is blank. Lines read as one are a batch, without their bytes
and with the number of the last."""


class JsonLines(Corpus):
    """Line JSON in one file, or in the files of a folder."""

    kind = "jsonl"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        for index, file in enumerate(self.files):
            if file.name.lower().endswith(".json"):
                self._refuse_one_value(index)

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of small files, and parts of large ones cut after line ends."""
        return [
            part
            for piece in self.whole_files(target_bytes)
            for part in self._parts(piece, target_bytes)
        ]

    def scan(self, piece: Piece) -> Scan:
        """Note the types of all records that parse."""
        fields: dict[str, Seen] = {}
        rows = number = 0
        for part in self.by_file(piece):
            for number, _, found in self._lines(part, _SCAN_BYTES, partial(_known, fields)):
                if isinstance(found, pa.RecordBatch):
                    rows += found.num_rows
                    continue
                rows += found is not None
                if isinstance(found, dict):
                    see_fields(fields, found, (part.file, number))
        return Scan(rows, number, columns=fields, file=piece.file)

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the types seen; a field never seen with a value has the type null."""
        whole = Seen()
        for scan, first_row in zip(scans, first_rows(scans), strict=True):
            whole.absorb(Seen(fields=scan.columns), first_row)
        return schema_of(whole.fields, self.files, first_wins=first_wins)

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that parse and fit `schema`."""
        block = _Block(schema, reject)
        columns = pa.schema([field for field in schema if field.name not in SYSTEM])
        for part in self.by_file(piece):
            file, key = self.shown(part.file), self.key(part.file)
            for number, line, found in self._lines(part, _BLOCK_BYTES, partial(parsed, columns)):
                row = first_row + number if number else None
                if isinstance(found, pa.RecordBatch):
                    yield from block.flush()
                    rows = np.arange(found.num_rows) + (first_row + number - found.num_rows + 1)
                    yield from bounded(_keyed(found, schema, key, rows))
                elif isinstance(found, dict):
                    if block.is_full(len(line)):
                        yield from block.flush()
                    block.add(f"{key}#{row}", Reject(file, row, "", line), found)
                elif found is not None:
                    reject(Reject(file, row, found, line))
        yield from block.flush()

    def _lines(
        self, part: Piece, target: int, at_once: Callable[[bytes], pa.RecordBatch | None]
    ) -> Iterator[_Line]:
        """Yield the lines of a part of a file, those of a block together if `at_once` can."""
        if not self.named_in_utf8(part.file):
            yield 0, b"", NOT_UTF8_NAME
            return
        path, number = self.path(part.file), 0
        try:
            for start, stop in pairwise(_blocks(path, part, target)):
                together = _FEW_BYTES <= stop - start <= 2 * target
                batch = at_once(_read(path, start, stop)) if together else None
                if batch is not None:
                    number += batch.num_rows
                    yield number, b"", batch
                    continue
                for line in lines_of(path, start, stop):
                    number += 1
                    if line is None:
                        yield number, b"", TOO_LONG
                    elif number == 1 and part.start == 0:
                        yield number, line, _parse(line.removeprefix(_BOM))
                    else:
                        yield number, line, _parse(line)
        except OSError as error:
            yield 0, b"", unreadable(error)

    def _parts(self, piece: Piece, target_bytes: int) -> Iterator[Piece]:
        """Cut a piece of one large file."""
        offsets = [piece.start, piece.stop]
        if piece.files == 1 and self.named_in_utf8(piece.file):
            with suppress(OSError):
                offsets = cuts(self.path(piece.file), piece.start, piece.stop, target_bytes)
        for start, stop in pairwise(offsets):
            nbytes = stop - start if piece.files == 1 else piece.nbytes
            yield Piece(piece.file, piece.files, start, stop, nbytes)

    def _refuse_one_value(self, index: int) -> None:
        """Raise ConfigError if a `.json` file is one array or one object over several lines."""
        try:
            with self.path(index).open("rb") as file:
                head = file.read(1 << 16).removeprefix(_BOM).lstrip()
        except OSError:
            return
        line, end, _ = head.partition(b"\n")
        what = "array" if line.startswith(b"[") else "object over several lines"
        if what == "array" or (line.startswith(b"{") and end and not line.rstrip().endswith(b"}")):
            raise ConfigError(
                f"the file is one JSON {what}, not one object a line",
                file=self.shown(index),
                hint="Rewrite it as line JSON: jq -c '.[]' for an array, jq -c . for an object",
            )


def _blocks(path: Path, part: Piece, target: int) -> list[int]:
    """Return offsets that cut a part of a file into blocks; the first is small, to learn from."""
    if part.stop - part.start <= 2 * _FEW_BYTES:
        return [part.start, part.stop]
    first = cuts(path, part.start, part.stop, _FEW_BYTES)[1]
    return [part.start, *cuts(path, first, part.stop, target)]


def _keyed(
    batch: pa.RecordBatch, schema: pa.Schema, key: str, rows: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """Return the records of the rows with these numbers, with their keys."""
    keys = pc.binary_join_element_wise(key, pa.array(rows).cast(pa.string()), "#")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return assemble(schema, keys, columns)


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _known(fields: dict[str, Seen], data: bytes) -> pa.RecordBatch | None:
    """Return the records of a block that holds nothing but what `fields` tells."""
    schema = expected(fields)
    batch = None if schema is None else parsed(schema, data)
    if schema is None or batch is None:
        return None
    columns = zip(schema.names, batch.columns, strict=True)
    return None if any(news(array, fields[name]) for name, array in columns) else batch


class _Block:
    """Records on their way into a batch."""

    def __init__(self, schema: pa.Schema, reject: Callable[[Reject], None]):
        self._schema, self._reject = schema, reject
        self._fields = [field for field in schema if field.name not in SYSTEM]
        self._names = {field.name for field in self._fields}
        self._most_rows = most_rows(schema)
        self._clear()

    def _clear(self) -> None:
        self._keys: list[str] = []
        self._origins: list[Reject] = []
        self._records: list[dict[str, Any]] = []
        self._nbytes = 0

    def is_full(self, nbytes: int) -> bool:
        """Return whether a line of `nbytes` belongs in the next batch."""
        full = self._nbytes + nbytes > _BLOCK_BYTES or len(self._keys) >= self._most_rows
        return full and bool(self._keys)

    def add(self, key: str, origin: Reject, record: dict[str, Any]) -> None:
        """Take a record, and how it is rejected should it not fit."""
        self._keys.append(key)
        self._origins.append(origin)
        self._records.append(record)
        self._nbytes += len(origin.raw)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that fit, reject the others, and start again."""
        yield from fitting(self._build, len(self._keys), self._refuse)
        self._clear()

    def _build(self, rows: Sequence[int]) -> pa.RecordBatch:
        records = [self._records[i] for i in rows]
        for name in set().union(*records) - self._names:
            raise Unfit(f"'{name}' is not in the schema")
        columns = {
            field.name: array_of([r.get(field.name) for r in records], field.type, field.name)
            for field in self._fields
        }
        if any(map(holds_infinity, columns.values())):
            for i in rows:
                _refuse_overflow(self._origins[i].raw)
        return assemble(self._schema, [self._keys[i] for i in rows], columns)

    def _refuse(self, index: int, reason: str) -> None:
        self._reject(replace(self._origins[index], reason=reason))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unfit("an object has a key twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Unfit("a number is too large for a float64")
    return value


_decode = json.JSONDecoder(object_pairs_hook=_object).decode
_decode_finite = json.JSONDecoder(parse_float=_finite).decode


def _parse(line: bytes) -> dict[str, Any] | str | None:
    """Return the record of a line, why there is none, or None for a blank line."""
    if line.isspace() or not line:
        return None
    try:
        record = _decode(line.decode())
        if not isinstance(record, dict):
            return "the line is not a JSON object"
        return _doubt(line, record) or record
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start} of the line"
    except json.JSONDecodeError as error:
        column = min(error.pos, len(error.doc.rstrip())) + 1
        return f"invalid JSON at column {column}: {error.msg}"
    except Unfit as error:
        return str(error)
    except RecursionError:
        return f"nested deeper than {MAX_DEPTH} levels"
    except ValueError:
        return "an integer has too many digits"


def _doubt(line: bytes, record: dict[str, Any]) -> str | None:
    """Return why a record that parses is rejected all the same."""
    if line.count(b"{") + line.count(b"[") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} levels"
    if (b"\\ud" in line or b"\\uD" in line) and _has_half_pair(record):
        return "a string holds half a surrogate pair"
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


def _refuse_overflow(line: bytes) -> None:
    """Raise Unfit if a number, not spelled Infinity, became infinite."""
    _decode_finite(line.removeprefix(_BOM).decode())
