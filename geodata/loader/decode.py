"""Arrow columns → tensors: text to tokens, encoded images to uint8, numbers as they are."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from geodata.config import ImageSection, TextSection
from geodata.errors import ConfigError, MissingExtra
from geodata.order import hash64, splitmix64

Int64s = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]

IGNORED = -100
"""The label that a loss leaves out."""

ALIGN = 64
"""Sequences are padded to a multiple of this."""

BYTES_EOS = 256


class Tokenizer(Protocol):
    """Text to token ids."""

    vocab_size: int
    eos_id: int

    def encode(self, column: pa.Array) -> list[Integers]:
        """Return the ids of each text, without an end mark; a null text has none."""


class ByteTokenizer:
    """UTF-8 bytes are the ids 0…255; 256 ends a text."""

    vocab_size = 257
    eos_id = BYTES_EOS

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
            raise MissingExtra.of("tokenizers", "train") from error
        try:
            self._loaded = Loaded.from_file(path)
        except Exception as error:
            raise ConfigError(f"not a tokenizer file: {error}", file=path) from error
        self.vocab_size = self._loaded.get_vocab_size()
        names = ("</s>", "<|endoftext|>", "<eos>", "[SEP]", "<|end_of_text|>")
        ids = [self._loaded.token_to_id(name) for name in names]
        found = next((number for number in ids if number is not None), None)
        self.eos_id = self.vocab_size if found is None else found
        self.vocab_size += found is None

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
    tokens: Sequence[Integers], tokenizer: Tokenizer, section: TextSection, starts: Int64s | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, labels), both int64 [B, T]: each text, its end mark, then padding.

    Labels equal the tokens (not shifted), -100 at padding. A text longer than `length` is cropped
    to the window that `starts` (random 63-bit numbers, or None for the head) chooses.
    """
    length = section.length
    longest = min(max((len(ids) + 1 for ids in tokens), default=1), length)
    width = min(-(-longest // ALIGN) * ALIGN, length)
    labels = np.full((len(tokens), width), IGNORED, np.int64)
    for row, ids in enumerate(tokens):
        room = len(ids) + 1 - length
        start = int(starts[row] % (room + 1)) if room > 0 and starts is not None else 0
        part = ids[start : start + length]
        labels[row, : len(part)] = part
        if len(part) < length and len(ids):
            labels[row, len(part)] = tokenizer.eos_id
    padded = np.where(labels == IGNORED, tokenizer.eos_id, labels)
    return torch.from_numpy(padded), torch.from_numpy(labels)


def crop_starts(samples: Int64s, seed: int, epoch: int) -> Int64s:
    """Return a random non-negative number per sample, a function of (seed, epoch, sample)."""
    mixed = splitmix64(samples.astype(np.uint64) ^ hash64("crop", seed, epoch))
    return (mixed >> np.uint64(1)).astype(np.int64)


class ImageDecoder:
    """Encoded images → uint8 [B, 3, size, size], in threads: the decoders release the GIL."""

    def __init__(self, section: ImageSection):
        self.section = section
        self._threads: ThreadPoolExecutor | None = None
        self._pid = 0

    def __call__(
        self, column: pa.Array, there: Sequence[bool], bad: Callable[[int, str], None]
    ) -> torch.Tensor:
        """Decode a column; a row that is `there` but cannot be decoded is told to `bad`."""
        if self._threads is None or self._pid != os.getpid():
            self._threads = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))
            self._pid = os.getpid()
        out = np.zeros((len(column), self.section.size, self.section.size, 3), np.uint8)
        buffers = [value.as_buffer() if value.is_valid else None for value in column]

        def one(row: int) -> str | None:
            data = buffers[row]
            if data is None:
                return "a record has no image" if there[row] else None
            try:
                out[row] = decode_image(data, self.section.size)
            except MissingExtra:
                raise
            except Exception as error:
                return f"an image cannot be decoded: {error}"
            return None

        for row, reason in enumerate(self._threads.map(one, range(len(column)))):
            if reason is not None:
                bad(row, reason)
        return torch.from_numpy(out).permute(0, 3, 1, 2)

    def __getstate__(self) -> dict[str, Any]:
        return {"section": self.section}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["section"])  # type: ignore[misc]


def decode_image(data: Any, size: int) -> npt.NDArray[np.uint8]:
    """Return encoded bytes as uint8 [size, size, 3]: shorter side scaled to `size`, centre cropped.

    JPEG is decoded at a reduced scale where that is enough. Transparency is laid over white.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra.of("pillow", "images") from error
    raw = bytes(data)
    if raw[:2] == b"\xff\xd8":
        image = Image.fromarray(_decode_jpeg(raw, size))
    else:
        image = Image.open(io.BytesIO(raw))
        if image.mode.startswith("I"):  # 16 bits a pixel
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            layer = image.convert("RGBA")
            image = Image.new("RGBA", layer.size, "white")
            image.alpha_composite(layer)
        image = image.convert("RGB")
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return np.asarray(resized)


def _decode_jpeg(raw: bytes, size: int) -> npt.NDArray[np.uint8]:
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtra.of("simplejpeg", "images") from error
    decoded: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        raw, colorspace="RGB", min_height=size, min_width=size, min_factor=1
    )
    return decoded
