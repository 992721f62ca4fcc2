"""CSV and TSV: a header row unless there is none, then records; quotes, newlines inside quotes.

A first column without a name, as of a table's index, is named `index`; any other such column is
left out if it is empty. An unquoted empty field is null, a quoted one the empty string. Every value
is text first; a column becomes bool, int64, uint64 or float64 only if each of its values in all
files says so and would come back the same, else it stays a string. So no types can conflict. Blank
lines are no records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace

import pyarrow as pa

from geodata.errors import ConfigError, SchemaError
from geodata.schema import data_fields
from geodata.sources.base import Piece, Reject, Scan
from geodata.sources.batches import Origin, Unfit, assemble, fitting, most_rows
from geodata.sources.corpus import NOT_UTF8_NAME, Corpus, unreadable
from geodata.sources.encodings.declared import HEAD_BYTES, PLAIN, Coding
from geodata.sources.listing import Listing
from geodata.sources.observed import check_name, number_type, with_text
from geodata.sources.options import AS_FOUND, Reading
from geodata.sources.spellings import text_kinds
from geodata.sources.text.beginning import begin
from geodata.sources.text.rows import Row, rows_of

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20
_LONGEST_NAME = 1_000
_NAME_THEM = "The first row must name each column once; if it is a record, --no-header"
_INDEX = ("index", "row", "unnamed")
"""Names for a first column that has none, as that of a table's index: the first that is free."""


class Csv(Corpus):
    """Delimited text in one file, or in the files of a folder, whose columns unite by name."""

    kind = "csv"

    def __init__(self, listing: Listing, source_id: str, reading: Reading = AS_FOUND):
        super().__init__(listing, source_id, reading)
        if reading.header and reading.columns:
            raise ConfigError(
                "columns are named where the first row is said to name them",
                hint="Say that there is no header: --no-header",
            )
        if not all(reading.columns) or len({*reading.columns}) < len(reading.columns):
            raise ConfigError("two of the columns have one name, or one has none")
        if reading.delimiter is not None and not _can_delimit(reading.delimiter):
            raise ConfigError("a delimiter is one character, and no quote or line end")

    def pieces(self, target_bytes: int) -> list[Piece]:
        """Return runs of whole files: where a record starts is known only from the start."""
        return self.whole_files(target_bytes)

    def scan(self, piece: Piece) -> Scan:
        """Note each file's header, and for each column what its values could be."""
        headers: dict[int, list[str]] = {}
        kinds: dict[str, set[str]] = {}
        unnamed: dict[int, int] = {}
        rows = number = 0
        for part in self.by_file(piece):
            for header, block in self._blocks(part, _BLOCK_ROWS):
                headers[part.file] = header
                rows += len(block)
                number = max([number, *(row.number for row in block)])
                good = [row.fields for row in block if row.fault is None]
                for name, values in zip(header, zip(*good, strict=True), strict=bool(good)):
                    _note(kinds.setdefault(name, set()), values)
                if part.file not in unnamed and (first := _first_beside_names(header, block)):
                    unnamed[part.file] = first
        return Scan(
            rows,
            number,
            columns={"headers": headers, "kinds": kinds, "unnamed": unnamed},
            file=piece.file,
            encodings=self.recognised(piece),
        )

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the columns by name; SchemaError for a name that stands twice.

        A column without a name is left out if it holds nothing. If it does: SchemaError, or, when
        `first_wins`, `read` rejects what holds something there, and also files whose header is no
        header of this corpus, unless most are such.
        """
        whole: dict[str, set[str]] = {}
        strange: list[SchemaError] = []
        headers = 0
        for scan in scans:
            for file, header in scan.columns["headers"].items():
                headers += 1
                try:
                    self._check_header(file, header, whole.keys())
                except SchemaError as error:
                    strange.append(error)
                    if not first_wins:
                        raise
                    continue
                if file in scan.columns["unnamed"] and not first_wins:
                    raise SchemaError(
                        "a column without a name holds values",
                        file=self.shown(file),
                        row=scan.columns["unnamed"][file],
                        hint=_NAME_THEM,
                    )
                for name in filter(None, header):
                    whole.setdefault(name, set()).update(scan.columns["kinds"].get(name, ()))
        if strange and 2 * len(strange) >= headers:
            raise strange[0]
        return with_text([pa.field(name, _type_of(kinds)) for name, kinds in whole.items()])

    def read(
        self,
        piece: Piece,
        first_row: int,
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the header's width whose values fit `schema`."""
        for part in self.by_file(piece):
            file, key = self.shown(part.file), self.key(part.file)
            for header, block in self._blocks(part, min(_BLOCK_ROWS, most_rows(schema))):
                strange = self._strangeness(part.file, header, schema)
                builder = _Builder(schema, [] if strange else header, key, file)
                for row in block:
                    row.fault = row.fault or strange
                    number = first_row + row.number if row.number else None
                    origin = Reject(file, number, row.fault or "", row.raw)
                    if row.fault is None:
                        builder.add(row, origin)
                    else:
                        reject(origin)
                yield from builder.batches(reject)

    def _blocks(self, piece: Piece, most: int) -> Iterator[tuple[list[str], list[Row]]]:
        """Yield the header and the next records, as often as there are some, at least once."""
        header: list[str] = []
        block: list[Row] = []
        nbytes = 0
        try:
            for row in self._rows(piece):
                if row.number == 0 and row.fault is None:
                    header = _named(row.fields) if self.reading.header else _texts(row.fields)
                    continue
                if row.number and row.fault is None and len(row.fields) != len(header):
                    row.fault = f"{len(row.fields)} fields where {self._width} {len(header)}"
                block.append(row)
                nbytes += row.nbytes
                if len(block) >= most or nbytes >= _BLOCK_BYTES:
                    yield header, block
                    block, nbytes = [], 0
        except OSError as error:
            block.append(Row(0, fault=unreadable(error)))
        yield header, block

    @property
    def _width(self) -> str:
        """Return what says how many fields a record has."""
        if self.reading.header:
            return "the header has"
        return "there are columns:" if self.reading.columns else "the first record has"

    def _rows(self, piece: Piece) -> Iterator[Row]:
        """Yield the header as number 0, then the records; a faulty header stands for the file."""
        if not self.named_in_utf8(piece.file):
            yield Row(0, fault=NOT_UTF8_NAME)
            return
        try:
            coding = self._coding(piece.file)
        except Unfit as error:
            yield Row(0, fault=str(error))
            return
        with self.opened(piece.file) as stream:
            nbytes = piece.stop if self.is_plain(piece.file) else None
            try:
                began = begin(stream, nbytes, coding, self.bare_name(piece.file), self.reading)
            except Unfit as error:
                yield Row(0, fault=str(error))
                return
            number = 0 if self.reading.header else 1
            rows = rows_of(
                began.lines, began.delimiter, began.offset, number, coding, self.reading.quotes
            )
            yield from _with_header(rows) if self.reading.header else self._headed(rows)

    def _coding(self, index: int) -> Coding:
        if self.encoding == PLAIN.name:
            return PLAIN
        return self.coding(index, self.head(index, HEAD_BYTES))

    def _headed(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield a header before records that have none, as wide as the first of them."""
        if self.reading.columns:
            yield Row(0, fields=[*self.reading.columns])
            yield from rows
            return
        for row in rows:
            if row.fault is None:
                yield Row(0, fields=[f"column{i}" for i, _ in enumerate(row.fields, 1)])
                yield row
                break
            yield row
        yield from rows

    def _check_header(self, file: int, header: list[str], known: Set[str]) -> None:
        """Raise SchemaError if a file's header names no columns, or none of the `known` ones."""
        if header and not any(header):
            raise SchemaError(
                "the first row names no column", file=self.shown(file), hint=_NAME_THEM
            )
        for name in filter(None, header):
            check_name(name, (file, 0), self.files)
            if header.count(name) > 1:
                raise SchemaError(
                    "two columns have one name",
                    column=name,
                    file=self.shown(file),
                    hint=_NAME_THEM,
                )
        if header and known and not known & {*header}:
            raise SchemaError(
                "no column of this file is in the files before it",
                file=self.shown(file),
                hint="The first row of each file must name its columns; or --no-header",
            )

    def _strangeness(self, file: int, header: list[str], schema: pa.Schema) -> str | None:
        """Return why a file is none of this corpus, which its header tells."""
        try:
            self._check_header(file, header, {field.name for field in data_fields(schema)})
        except SchemaError as error:
            return f"the header: {error.message}"
        return None


def _with_header(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the header and the records, or one fault for all of the file."""
    header = next(rows, None)
    what = "there is none" if header is None else header.fault or _fault_of_names(header.fields)
    if header is None or what:
        yield Row(0, fault=f"no header row: {what}")
        return
    yield header
    yield from rows


def _fault_of_names(fields: Sequence[str | None]) -> str | None:
    too_long = any(len(name or "") > _LONGEST_NAME for name in fields)
    return f"a name has more than {_LONGEST_NAME:,} characters" if too_long else None


def _texts(fields: Sequence[str | None]) -> list[str]:
    return [name or "" for name in fields]


def _named(fields: Sequence[str | None]) -> list[str]:
    """Return the names of columns; the first is given one if it alone has none."""
    names = _texts(fields)
    if not names[0] and any(names):
        names[0] = next((name for name in _INDEX if name not in names), "")
    return names


def _first_beside_names(header: list[str], block: Sequence[Row]) -> int | None:
    """Return the number of the first record that holds something in a column without a name."""
    places = [place for place, name in enumerate(header) if not name]
    for row in block if places else ():
        if row.fault is None and any(row.fields[place] is not None for place in places):
            return row.number
    return None


def _can_delimit(text: str) -> bool:
    return len(text) == 1 and text not in '"\r\n'


class _Builder:
    """Makes batches of some records of a file."""

    def __init__(self, schema: pa.Schema, header: list[str], key: str, file: str):
        self._schema, self._header, self._key, self._file = schema, header, key, file
        self._types = {field.name: field.type for field in data_fields(schema)}
        self._rows: list[Row] = []
        self._origins: list[Reject] = []

    def add(self, row: Row, origin: Reject) -> None:
        """Take a record, and how it is rejected should it not fit."""
        self._rows.append(row)
        self._origins.append(origin)

    def batches(self, reject: Callable[[Reject], None]) -> Iterator[pa.RecordBatch]:
        """Yield the records that fit, reject the others."""

        def refuse(index: int, reason: str) -> None:
            reject(replace(self._origins[index], reason=reason))

        return fitting(self._build, len(self._rows), refuse)

    def _build(self, rows: Sequence[int]) -> pa.RecordBatch:
        by_column = zip(*(self._rows[i].fields for i in rows), strict=True)
        columns = {}
        for name, texts in zip(self._header, by_column, strict=bool(rows)):
            if not name:
                _refuse_values(texts)
                continue
            if name not in self._types:
                raise Unfit(f"'{name}' is not in the schema")
            columns[name] = _column(texts, self._types[name], name)
        numbers = [self._origins[i].row or 0 for i in rows]
        keys = [f"{self._key}#{number}" for number in numbers]
        return assemble(self._schema, keys, columns, Origin(self._file, numbers))


def _refuse_values(texts: Sequence[str | None]) -> None:
    if any(text is not None for text in texts):
        raise Unfit("it holds a value in a column without a name")


def _column(texts: Sequence[str | None], kind: pa.DataType, path: str) -> pa.Array:
    """Return the values as `kind`; raise Unfit unless each comes back the same."""
    text = pa.array(texts, pa.string())
    if text.null_count == len(text):
        return pa.nulls(len(text), kind)
    kinds: set[str] = set()
    try:
        if pa.types.is_float64(kind):
            _note(kinds, texts)
            if pa.types.is_float64(_type_of(kinds | {"double"})):
                return text.cast(kind)
        elif (made := text.cast(kind)).cast(pa.string()).equals(text):
            return made
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    _note(kinds, texts)
    raise Unfit.of(path, kind, str(_type_of(kinds)))


def _note(kinds: set[str], values: Iterable[str | None]) -> None:
    """Add what the values could be."""
    if "string" not in kinds:
        for value in set(values) - {None}:
            kinds.update(text_kinds(value or ""))


def _type_of(kinds: set[str]) -> pa.DataType:
    if not kinds:
        return pa.null()
    if kinds == {"bool"}:
        return pa.bool_()
    common = None if kinds & {"bool", "string"} else number_type(kinds)
    return common or pa.string()
