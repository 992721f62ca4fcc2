"""Texts → tokens and labels: for predicting the next token, or hidden ones in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from geodata.config import TextSection
from geodata.errors import ConfigError, MissingExtra
from geodata.loader.seeds import Seeds, unit_interval

Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]

IGNORED = -100
"""The label that a loss leaves out."""

END_NAMES = ("</s>", "<|endoftext|>", "<eos>", "[SEP]", "<|end_of_text|>")
"""What tokenizer files call the token that ends a text, by preference."""

MASK_NAMES = ("[MASK]", "<mask>")
"""What tokenizer files call the token that stands for a hidden one."""

ALIGN = 64
"""Sequences are padded to a multiple of this."""

BYTES_EOS = 256


class Tokenizer(Protocol):
    """Text to token ids."""

    vocab_size: int
    eos_id: int
    mask_id: int
    """Stands for a hidden token; outside of `vocab_size` where the vocabulary has none."""

    def encode(self, column: pa.Array) -> list[Integers]:
        """Return the ids of each text, without an end mark; a null text has none."""


class ByteTokenizer:
    """UTF-8 bytes are the ids 0…255; 256 ends a text."""

    vocab_size = 257
    eos_id = BYTES_EOS
    mask_id = 257

    def encode(self, column: pa.Array) -> list[Integers]:
        """Return the bytes of each text."""
        binary = column.cast(pa.large_binary()).fill_null(b"")
        offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset :][: len(binary) + 1]
        data = binary.buffers()[2]
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return [raw[a:b] for a, b in itertools.pairwise(offsets)]


class FileTokenizer:
    """A `tokenizers` JSON file."""

    def __init__(self, path: str):
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError as error:
            raise MissingExtra.of("tokenizers", "tokens") from error
        try:
            self._loaded = Loaded.from_file(path)
        except Exception as error:
            raise ConfigError(f"not a tokenizer file: {error}", file=path) from error
        self._loaded.no_padding()
        self._loaded.no_truncation()
        self.vocab_size = max(self._loaded.get_vocab().values(), default=-1) + 1
        found = self._first(END_NAMES)
        self.eos_id = self.vocab_size if found is None else found
        self.vocab_size += found is None
        mask = self._first(MASK_NAMES)
        self.mask_id = self.vocab_size if mask is None else mask

    def _first(self, names: Sequence[str]) -> int | None:
        """Return the id of the first of these tokens that there is."""
        ids = [self._loaded.token_to_id(name) for name in names]
        return next((number for number in ids if number is not None), None)

    def encode(self, column: pa.Array) -> list[Integers]:
        """Return the ids of each text."""
        texts = [text or "" for text in column.to_pylist()]
        encoded = self._loaded.encode_batch(texts, add_special_tokens=False)
        return [np.asarray(item.ids, np.int64) for item in encoded]


def make_tokenizer(section: TextSection, resolve: Callable[[str], Any]) -> Tokenizer:
    """Return the tokenizer that the section names; files are relative to the config."""
    if section.tokenizer == "bytes":
        return ByteTokenizer()
    return FileTokenizer(str(resolve(section.tokenizer)))


def sequences(
    tokens: Sequence[Integers], tokenizer: Tokenizer, length: int, starts: Int64s | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, labels), both int64 [B, T]: each text, its end mark, then padding.

    Labels equal the tokens (not shifted), -100 at padding. A text longer than `length` is cropped
    to the window that `starts` (random 63-bit numbers, or None for the head) chooses.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    longest = min(int(lengths.max(initial=0)) + 1, length)
    width = min(-(-longest // ALIGN) * ALIGN, length)
    room = np.maximum(lengths + 1 - length, 0)
    firsts = np.zeros_like(room) if starts is None else starts % (room + 1)
    padded = np.full((len(tokens), width), tokenizer.eos_id, np.int64)
    labels = np.full_like(padded, IGNORED)
    for row, (ids, first) in enumerate(zip(tokens, firsts.tolist(), strict=True)):
        part = ids[first : first + length]
        padded[row, : len(part)] = labels[row, : len(part)] = part
        if len(ids) and len(part) < length:
            labels[row, len(part)] = tokenizer.eos_id
    return torch.from_numpy(padded), torch.from_numpy(labels)


def crop_starts(seeds: Seeds) -> Int64s:
    """Return a random non-negative number per sample."""
    return (seeds.bits("crop") >> np.uint64(1)).astype(np.int64)


def mask(
    tokens: torch.Tensor, labels: torch.Tensor, tokenizer: Tokenizer, share: float, seeds: Seeds
) -> dict[str, torch.Tensor]:
    """Return tokens, labels and attention_mask [B, T] of masked language modelling.

    Each token but the end mark is chosen with probability `share`; of the chosen, 80 % are hidden
    behind `mask_id`, 10 % replaced by a random token, 10 % left as they are (Devlin et al. 2019,
    section 3.1). Labels are the tokens at the chosen places, -100 elsewhere. `attention_mask` is
    False at padding; the first place of a row is always True.
    """
    given, width = labels.numpy(), labels.shape[1]
    real = given != IGNORED
    chosen = real & (given != tokenizer.eos_id)
    chosen &= unit_interval(seeds.grid("masked", width)) < share
    fate = unit_interval(seeds.grid("masked as", width))
    others = (seeds.grid("masked by", width) % np.uint64(tokenizer.vocab_size)).astype(np.int64)
    hidden = np.where(fate < 0.8, tokenizer.mask_id, np.where(fate < 0.9, others, given))
    real[:, 0] = True
    return {
        "tokens": torch.from_numpy(np.where(chosen, hidden, tokens.numpy())),
        "labels": torch.from_numpy(np.where(chosen, given, IGNORED)),
        "attention_mask": torch.from_numpy(real),
    }
