"""Texts made into token ids, or only counted; a tokenizers file or `bytes`, as in `loader.text`.

No token is added to those of a text, and a text is neither cut nor padded, whatever the file says
of that: the loader adds end marks, and packs or crops. A null text has null tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError, MissingExtra
from geodata.prepare.base import Preparing, Refuse
from geodata.schema import data_fields, media_of

Int64s = npt.NDArray[np.int64]
Encode = Callable[[Sequence[str]], list[Any]]

TOKENS = "tokens"
BYTES = "bytes"
"""The tokenizer whose ids are the bytes of UTF-8."""

_BATCH_CHARS = 1 << 20
_QUIET = "TOKENIZERS_PARALLELISM"


class Tokens:
    """The step that adds the column `tokens`, list<int32>."""

    def __init__(self, preparing: Preparing):
        self._path, self._column = preparing.tokenizer or BYTES, preparing.text_column
        self._encode: Encode | None = None

    @classmethod
    def asked(cls, preparing: Preparing) -> bool:
        """Return whether there is a tokenizer."""
        return preparing.tokenizer is not None

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema with `tokens`; ConfigError if there is such a column, or no text."""
        if TOKENS in schema.names:
            raise ConfigError("the source has a column 'tokens' already", hint="Rename it")
        text_column(schema, self._column)
        self._opened()
        return schema.append(pa.field(TOKENS, pa.list_(pa.int32())))

    def apply(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Return the rows whose text the tokenizer can encode, with their tokens."""
        name = text_column(batch.schema, self._column)
        texts = batch.column(name).to_pylist()
        ids = _encoded(self._opened(), texts)
        bad = {row for row, found in enumerate(ids) if found is None and texts[row] is not None}
        for row in sorted(bad):
            refuse(row, f"the tokenizer cannot encode '{name}'", texts[row].encode())
        if bad:
            kept = [row for row in range(len(ids)) if row not in bad]
            batch, ids = batch.take(pa.array(kept, pa.int64())), [ids[row] for row in kept]
        return batch.append_column(pa.field(TOKENS, pa.list_(pa.int32())), _listed(ids))

    def identity(self) -> str:
        """Return what names the tokenizer, whatever its file is called."""
        return f"tokens {tokenizer_digest(self._path)}"

    def _opened(self) -> Encode:
        if self._encode is None:
            self._encode = open_tokenizer(self._path)
        return self._encode


@dataclass(frozen=True, slots=True)
class Counting:
    """Whose tokens are counted: those of a column of lists, or of texts by a tokenizer."""

    column: str = TOKENS
    tokenizer: str | None = None

    @classmethod
    def again(cls, told: Mapping[str, Any]) -> Counting | None:
        """Return the counting that `to_json` tells of; None if it took a tokenizer's file."""
        tokenizer = told["tokenizer"]
        return cls(told["column"], tokenizer) if tokenizer in (None, BYTES) else None

    def check(self, schema: pa.Schema) -> None:
        """Raise ConfigError unless the column is there and can be counted so."""
        if self.tokenizer is not None:
            text_column(schema, self.column)
            open_tokenizer(self.tokenizer)
        else:
            check_tokens(schema, self.column)

    def to_json(self) -> dict[str, Any]:
        """Return what decides the counts, as plain JSON."""
        digest = None if self.tokenizer is None else tokenizer_digest(self.tokenizer)
        return {"column": self.column, "tokenizer": digest}

    def opened(self) -> Callable[[pa.RecordBatch], Int64s]:
        """Return what counts the tokens of each row of a batch; of a null there are none."""
        encode = None if self.tokenizer is None else open_tokenizer(self.tokenizer)

        def count(batch: pa.RecordBatch) -> Int64s:
            column = batch.column(self.column)
            if encode is None:
                return lengths_of(column)
            if self.tokenizer == BYTES:
                sizes: Int64s = pc.fill_null(pc.binary_length(column), 0).to_numpy()
                return sizes.astype(np.int64)
            ids = _encoded(encode, column.to_pylist())
            return np.fromiter((len(found or ()) for found in ids), np.int64, len(ids))

        return count


def check_tokens(schema: pa.Schema, name: str) -> None:
    """Raise ConfigError unless `name` is a column of lists of integers."""
    lists = [field.name for field in schema if _are_tokens(field.type)]
    if name not in lists:
        found = schema.field(name).type if name in schema.names else None
        raise ConfigError(
            f"column '{name}' is {found}, no list of integers"
            if found
            else f"the dataset has no column '{name}'",
            hint=f"Lists of integers: {', '.join(lists)}"
            if lists
            else "Add one: geodata convert --tokenizer FILE; or count texts with --tokenizer",
        )


def lengths_of(column: pa.Array) -> Int64s:
    """Return how many tokens each list has; a null has none."""
    lengths: Int64s = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return lengths.astype(np.int64)


def text_column(schema: pa.Schema, wanted: str | None) -> str:
    """Return `wanted`, or the only text; ConfigError if it is no text or none is the only one."""
    texts = [field for field in data_fields(schema) if _is_text(field.type)]
    media = [field for field in texts if media_of(field) == "text"]
    names = [field.name for field in texts]
    if wanted in names:
        return str(wanted)
    if wanted is None and 1 in (len(media), len(names)):
        return str((media if len(media) == 1 else texts)[0].name)
    raise ConfigError(
        "which column is the text?" if wanted is None else f"'{wanted}' is no column of text",
        hint=f"Name one of {', '.join(names)}" if names else "There is no text",
    )


def tokenizer_digest(path: str) -> str:
    """Return the SHA-256 of a tokenizer's file; `bytes` is its own name."""
    if path == BYTES:
        return BYTES
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"the tokenizer cannot be read: {error.strerror}", file=path) from error


def open_tokenizer(path: str) -> Encode:
    """Return what makes token ids of texts; ConfigError if the file is no tokenizer."""
    if path == BYTES:
        return lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts]
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra.of("tokenizers", "tokens") from error
    try:
        loaded = Tokenizer.from_file(path)
    except Exception as error:
        raise ConfigError(f"not a tokenizer file: {error}", file=path) from error
    loaded.no_padding()
    loaded.no_truncation()

    def encode(texts: Sequence[str]) -> list[Any]:
        with _single_threaded():
            return [found.ids for found in loaded.encode_batch(texts, add_special_tokens=False)]

    return encode


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Keep the tokenizer, which is told so by the environment, to the thread of the caller."""
    before = os.environ.get(_QUIET)
    os.environ[_QUIET] = "false"
    try:
        yield
    finally:
        os.environ.pop(_QUIET) if before is None else os.environ.update({_QUIET: before})


def _encoded(encode: Encode, texts: Sequence[str | None]) -> list[Any]:
    """Return the ids of each text; None for a null and for one that cannot be encoded."""
    ids: list[Any] = [None] * len(texts)
    for rows in _runs(texts):
        given = [texts[row] or "" for row in rows]
        try:
            found = encode(given)
        except Exception:
            found = [_alone(encode, text) for text in given]
        for row, made in zip(rows, found, strict=True):
            ids[row] = made
    return ids


def _alone(encode: Encode, text: str) -> Any:
    try:
        return encode([text])[0]
    except Exception:
        return None


def _runs(texts: Sequence[str | None]) -> Iterator[list[int]]:
    """Yield the rows that have a text, in runs of about a million characters."""
    run: list[int] = []
    held = 0
    for row, text in enumerate(texts):
        if text is not None:
            run.append(row)
            held += len(text)
        if held >= _BATCH_CHARS:
            yield run
            run, held = [], 0
    if run:
        yield run


def _listed(ids: Sequence[Any]) -> pa.ListArray:
    """Return ids as a column, null where there are none."""
    lengths = np.fromiter((len(found) if found is not None else 0 for found in ids), np.int32)
    flat = [np.asarray(found, np.int32) for found in ids if found is not None]
    values = np.concatenate([*flat, np.empty(0, np.int32)])
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    null = pa.array([found is None for found in ids], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=null)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _are_tokens(kind: pa.DataType) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(listed and pa.types.is_integer(kind.value_type))
