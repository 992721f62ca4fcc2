"""A source of the user's own: a Python function that yields one dict a record.

`module:function` is imported with the working directory on the path, as by `python -m`. A function
that takes `part` and `parts` is called once for each part, with `part` from 0, and the parts are
read in parallel; any other is one part. What stands in `__key__` is the record's key; without, keys
are `<source id>#<n>`, or `<source id>/<part>#<n>` of several parts, counted from 1.

The function is called twice: to learn the types, and to read. Nothing is kept in between, so memory
and disk stay free, and what it yields must be the same both times; a digest over each part's
records says whether it was. (A run that goes on after an interruption checks their number only.)
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from geodata.errors import ConfigError, GeodataError, SchemaError
from geodata.schema import KEY
from geodata.sources.base import OnDisk, Piece, Reject, Scan
from geodata.sources.batches import Unfit
from geodata.sources.blocks import Item, batches_of, by_field
from geodata.sources.corpus import MAX_RECORD, TOO_LONG
from geodata.sources.filelist import SourceFile
from geodata.sources.function.columns import PyChooser, column_of, note_record
from geodata.sources.function.values import plain_record, weight
from geodata.sources.observed import Seen, schema_of
from geodata.sources.options import Reading

_UNKNOWN_BYTES = 1 << 30
"""Said to be in a part: more than any shard has, so that each part is a task of its own."""

_KEYS_KNOWN = 1 << 20
"""Most keys of its own that a part remembers; `shard` finds what stands twice beyond."""

_IMPORTED: dict[str, list[SourceFile]] = {}
"""The code of each module when this process imported it."""

_AGAIN = (
    "Sort what it lists, seed what is random, and open anew what it reads: it is called once to "
    "learn the types and once to read"
)


class FunctionSource:
    """Records that a function yields."""

    kind = "function"
    glances = False
    reads_own_files = False
    checks_as_it_reads = False

    def __init__(self, name: str, source_id: str | None, reading: Reading):
        module, _, attribute = name.partition(":")
        if not module or not attribute.isidentifier():
            raise ConfigError(
                f"'{name}' names no function", hint="Name it as module:function, with no suffix"
            )
        self.root = Path.cwd()
        self.name = name
        self.source_id = _checked(source_id or attribute)
        self.files: Sequence[SourceFile] = self._code()
        self.ignored: dict[str, int] = {}
        self.parts = reading.parts
        self._yielded: dict[int, str] = {}
        self._call(0)
        if self.parts > 1 and not self._is_parted(self._function()):
            raise ConfigError(
                "the function does not take `part` and `parts`",
                file=name,
                hint="Define it as `def rows(part, parts)`, or leave --parts out",
            )

    def on_disk(self, index: int) -> OnDisk:
        """Return where a file of the code lies, its size and modification time."""
        file = self.files[index]
        return str(self.root / file.name), file.nbytes, file.mtime_ns

    def pieces(self, target_bytes: int) -> list[Piece]:  # noqa: ARG002
        """Return one piece for each part."""
        return [Piece(part, 1, 0, 0, _UNKNOWN_BYTES) for part in range(self.parts)]

    def scan(self, piece: Piece) -> Scan:
        """Call the function, and note the types of what it yields."""
        fields: dict[str, Seen] = {}
        records = _Records(self, piece.file)
        for row, _, record in records:
            if isinstance(record, dict):
                note_record(fields, record, (piece.file, row))
        return Scan(
            records.count,
            records.count,
            columns={"fields": fields, "digest": records.digest},
            file=piece.file,
        )

    def merge(self, scans: Sequence[Scan], *, first_wins: bool = False) -> pa.Schema:
        """Unite the types seen, and remember the digest of each part."""
        whole = Seen()
        for scan in scans:
            whole.absorb(Seen(fields=scan.columns["fields"]), 0)
            self._yielded[scan.file] = scan.columns["digest"]
        parts = [SourceFile(self.shown(part), 0, 0) for part in range(self.parts)]
        return schema_of(whole.fields, parts, first_wins=first_wins, choosing=PyChooser)

    def read(
        self,
        piece: Piece,
        first_row: int,  # noqa: ARG002
        schema: pa.Schema,
        labels: dict[str, list[str]],  # noqa: ARG002
        reject: Callable[[Reject], None],
    ) -> Iterator[pa.RecordBatch]:
        """Call the function again, and yield the records that fit `schema`.

        Raises GeodataError where it did not yield what it yielded at the scan, SchemaError for a
        key that it gave twice.
        """
        items = self._items(piece.file, reject)
        return batches_of(items, schema, by_field(column_of), reject)

    def _items(self, part: int, reject: Callable[[Reject], None]) -> Iterator[Item]:
        """Yield the records of a part; what `read` raises comes at their end."""
        shown, start, records = self.shown(part), self.key(part), _Records(self, part)
        for row, key, record in records:
            if isinstance(record, str):
                reject(Reject(shown, row, record))
            else:
                yield Item(key or f"{start}#{row}", shown, row, record, weight(record))
        if self._yielded.get(part, records.digest) != records.digest:
            raise GeodataError(
                "the function did not yield the same records twice", file=shown, hint=_AGAIN
            )

    def key(self, part: int) -> str:
        """Return the start of the keys of a part."""
        return self.source_id if self.parts == 1 else f"{self.source_id}/{part}"

    def shown(self, part: int) -> str:
        """Return the name of a part."""
        return self.name if self.parts == 1 else f"{self.name} part {part}"

    def call(self, part: int) -> Iterator[object]:
        """Call the function, and return what it yields."""
        made = self._call(part)()
        try:
            return iter(made)
        except TypeError as error:
            raise ConfigError(
                f"the function returned {type(made).__name__}, nothing to iterate over",
                file=self.name,
                hint="Yield one dict a record, or return a list of them",
            ) from error

    def _call(self, part: int) -> Callable[[], Any]:
        """Return the function with its arguments; ConfigError if it asks for others."""
        function = self._function()
        try:
            signature = inspect.signature(function)
        except ValueError:  # some builtins have none
            return function
        arguments = {"part": part, "parts": self.parts} if self._is_parted(function) else {}
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise ConfigError(
                f"the function cannot be called: {error}",
                file=self.name,
                hint="It takes no arguments, or `part` and `parts`",
            ) from error
        return lambda: function(**arguments)

    def _is_parted(self, function: Callable[..., Any]) -> bool:
        try:
            return inspect.signature(function).parameters.keys() >= {"part", "parts"}
        except ValueError:
            return False

    def _function(self) -> Callable[..., Any]:
        attribute = self.name.partition(":")[2]
        found = getattr(self._module(), attribute, None)
        if not callable(found):
            raise ConfigError(f"the module has no function '{attribute}'", file=self.name)
        function: Callable[..., Any] = found
        return function

    def _code(self) -> list[SourceFile]:
        """Return the files of the module's code, importing it anew if they changed since."""
        name = self.name.partition(":")[0]
        files = _code_of(self._module(), self.root)
        if _IMPORTED.setdefault(name, files) != files:
            outermost = name.partition(".")[0]
            for stale in [m for m in sys.modules if f"{m}.".startswith(f"{outermost}.")]:
                del sys.modules[stale]
            importlib.invalidate_caches()
            _IMPORTED[name] = files = _code_of(self._module(), self.root)
        return files

    def _module(self) -> Any:
        name = self.name.partition(":")[0]
        if str(self.root) not in sys.path and "" not in sys.path:
            sys.path.insert(0, str(self.root))
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the module cannot be imported: {_said(error)}",
                file=self.name,
                hint="Run this where `python -m` finds it" if _is_missing(error, name) else None,
            ) from error


@dataclass(slots=True)
class _Records:
    """What a function yields for a part: (row from 1, its own key if any, record or fault)."""

    source: FunctionSource
    part: int
    count: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _keys: set[bytes] = field(default_factory=set)

    @property
    def digest(self) -> str:
        """Return the digest of all records so far."""
        return f"{self.count}-{self._digest.hexdigest()}"

    def __iter__(self) -> Iterator[tuple[int, str | None, dict[str, Any] | str]]:
        for found in self._found():
            try:
                key, record = _taken(found)
            except Unfit as error:
                self._digest.update(str(error).encode(errors="replace"))
                yield self.count, None, str(error)
                continue
            if key is not None:
                self._check_new(key)
            self._digest.update(repr(key).encode())
            _feed(self._digest, record)
            yield self.count, key, record

    def _found(self) -> Iterator[object]:
        """Yield what the function yields; its own exceptions become one error."""
        try:
            for found in self.source.call(self.part):
                self.count += 1
                yield found
        except GeodataError:
            raise
        except (Exception, SystemExit) as error:
            raise GeodataError(
                f"the function raised {_said(error)}",
                file=self.source.shown(self.part),
                row=self.count + 1,
                hint="Mend it; `geodata -v` shows where it was raised",
            ) from error

    def _check_new(self, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        if digest in self._keys:
            raise SchemaError(
                "two records have one key",
                file=self.source.shown(self.part),
                row=self.count,
                key=key,
                hint="Keys are unique: mend the function's __key__",
            )
        if len(self._keys) < _KEYS_KNOWN:
            self._keys.add(digest)


def _taken(found: object) -> tuple[str | None, dict[str, Any]]:
    """Return a record's own key, if it has one, and its fields; raise Unfit if it is none."""
    record = plain_record(found)
    key = record.pop(KEY, None)
    if key is not None and (not isinstance(key, str) or not key):
        raise Unfit(f"'{KEY}' is not a string, or empty")
    if weight(record) > MAX_RECORD:
        raise Unfit(TOO_LONG)
    return key, record


def _feed(digest: Any, record: dict[str, Any]) -> None:
    for name, value in record.items():
        digest.update(repr(name).encode())
        if isinstance(value, bytes):
            digest.update(value)
        elif hasattr(value, "dtype"):
            digest.update(repr((value.dtype, value.shape)).encode())
            digest.update(value.data if value.size else b"")
        else:
            digest.update(repr(value).encode())


def _code_of(module: Any, root: Path) -> list[SourceFile]:
    """Return the files of the code that may decide what a function of `module` yields.

    All Python files of its outermost package; of a module outside of packages its own file alone.
    """
    outermost = sys.modules.get(module.__name__.partition(".")[0], module)
    own = getattr(module, "__file__", None)
    package = getattr(outermost, "__file__", None)
    paths = {Path(own)} if own else set()
    if package and Path(package).name == "__init__.py":
        for folder, folders, names in os.walk(Path(package).parent):
            folders[:] = [name for name in folders if name != "__pycache__"]
            paths |= {Path(folder, name) for name in names if name.endswith(".py")}
    return [_file(path, root) for path in sorted(paths)]


def _file(path: Path, root: Path) -> SourceFile:
    status = path.stat()
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return SourceFile(str(shown), status.st_size, status.st_mtime_ns)


def _checked(source_id: str) -> str:
    if source_id in (".", "..") or "/" in source_id or not source_id.isprintable():
        raise ConfigError("the source needs an id: a name without slashes, in UTF-8")
    return source_id


def _said(error: BaseException) -> str:
    """Return an exception's type and message as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _is_missing(error: BaseException, name: str) -> bool:
    missing = getattr(error, "name", None)
    return isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{missing}.")
