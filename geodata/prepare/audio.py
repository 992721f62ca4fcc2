"""Audio at one sample rate, or mixed down to one channel, written anew as FLAC.

What already is as asked keeps its bytes. All else is decoded, mixed (the mean of the channels),
resampled (soxr, HQ) and written as FLAC, which keeps what was decoded exactly: with 24 bits where a
lossless source has more than 16, else with 16, lossy sources too; samples beyond full scale are
clipped. Columns of the names in `ABOUT`, where there are, follow. Formats that libsndfile does not
read (AAC, MPEG-4) and audio without any sample are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from geodata.errors import ConfigError, MissingExtra
from geodata.prepare.base import Preparing, Refuse
from geodata.schema import media_of

if TYPE_CHECKING:
    from soundfile import SoundFile

ABOUT = ("sample_rate", "channels", "frames", "duration")
"""Samples a second, channels, samples of each channel, seconds."""

_BLOCK = 1 << 17
"""Samples of all channels that are held at once, decoded or resampled."""
_MOST_SAMPLES = 1 << 32
"""Of each channel of what is written: a day at 48 kHz."""
_MOST_BYTES = (1 << 31) - 1
_LOSSLESS = frozenset({"WAV", "WAVEX", "RF64", "W64", "FLAC", "AIFF", "CAF", "AU"})
_WIDE = frozenset({"PCM_24", "PCM_32", "FLOAT", "DOUBLE"})
_GUESSED = frozenset({"MP3", "MPEG"})
"""Formats whose length libsndfile may only estimate."""

_Samples = npt.NDArray[np.float64]
"""A row for each sample, a column for each channel; full scale is 1."""


class _Refused(Exception):
    """Audio that cannot be prepared; the text says why."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The bytes of a file, and the values of `ABOUT` if they are other ones now."""

    data: bytes
    about: tuple[int, int, int, float] | None = None


class PreparedAudio:
    """The step of all audio columns."""

    def __init__(self, preparing: Preparing):
        self._rate, self._mono = preparing.rate, preparing.mono
        _require_codecs(self._rate)

    @classmethod
    def asked(cls, preparing: Preparing) -> bool:
        """Return whether anything is asked of audio."""
        return preparing.rate is not None or preparing.mono

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema as it is; ConfigError if it has no audio column."""
        if not _audio_columns(schema):
            raise ConfigError(
                "the source has no column of audio",
                hint="Declare one with --schema: a file with the line `COLUMN: audio`",
            )
        return schema

    def apply(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Return the rows all of whose audio can be prepared."""
        columns = _audio_columns(batch.schema)
        kept: list[int] = []
        made: dict[str, list[_Prepared | None]] = {name: [] for name in columns}
        for row in range(batch.num_rows):
            values = [batch.column(name)[row].as_py() for name in columns]
            done: list[_Prepared | None] = []
            try:
                for value in values:
                    done.append(None if value is None else self._prepared(value))
            except _Refused as error:
                refuse(row, str(error), values[len(done)])
                continue
            kept.append(row)
            for name, one in zip(columns, done, strict=True):
                made[name].append(one)
        if len(kept) < batch.num_rows:
            batch = batch.take(pa.array(kept, pa.int64()))
        return _replaced(batch, made)

    def identity(self) -> str:
        """Return nothing more: `Preparing` says all."""
        return "audio"

    def _prepared(self, data: bytes) -> _Prepared:
        import soundfile

        try:
            with soundfile.SoundFile(BytesIO(data)) as sound:
                channels = 1 if self._mono else sound.channels
                rate = self._rate or sound.samplerate
                if (rate, channels) == (sound.samplerate, sound.channels):
                    return _Prepared(data)
                return _written(sound, rate, channels)
        except soundfile.LibsndfileError as error:
            reason = error.error_string.removeprefix("Error : ").rstrip(".")
            raise _Refused(f"the audio cannot be decoded: {reason}") from error


def _written(sound: SoundFile, rate: int, channels: int) -> _Prepared:
    """Return the rest of an open file as FLAC of this rate and so many channels."""
    import soundfile

    wide = sound.format in _LOSSLESS and sound.subtype in _WIDE
    out, frames = BytesIO(), 0
    with soundfile.SoundFile(
        out, "w", rate, channels, subtype="PCM_24" if wide else "PCM_16", format="FLAC"
    ) as flac:
        for block in _resampled(_mixed(sound, channels, rate), sound.samplerate, rate, channels):
            if not np.isfinite(block).all():
                raise _Refused("the audio has samples that are no numbers")
            flac.write(_whole_numbers(block, 24) << 8 if wide else _whole_numbers(block, 16))
            frames += len(block)
            if out.tell() > _MOST_BYTES or frames > _MOST_SAMPLES:
                raise _Refused("the audio takes 2 GiB or more as FLAC, or a day and more")
    if not frames:
        raise _Refused("the audio has no samples")
    return _Prepared(out.getvalue(), (rate, channels, frames, frames / rate))


def _mixed(sound: SoundFile, channels: int, rate: int) -> Iterator[_Samples]:
    """Yield what is decoded, block by block, in one channel where it has to be.

    A block is no longer than its samples may be at `rate`.
    """
    count = 0
    size = max(1, _BLOCK * sound.samplerate // (sound.channels * max(sound.samplerate, rate)))
    while len(block := sound.read(size, dtype="float64", always_2d=True)):
        count += len(block)
        yield block.mean(axis=1, keepdims=True) if channels < sound.channels else block
    if count < sound.frames and sound.format not in _GUESSED:
        raise _Refused("the audio ends before the length in its header")


def _resampled(
    blocks: Iterator[_Samples], given: int, wanted: int, channels: int
) -> Iterator[_Samples]:
    """Yield the blocks at another rate; what comes out does not depend on how they are cut."""
    if given == wanted:
        yield from blocks
        return
    import soxr

    stream = soxr.ResampleStream(given, wanted, channels, dtype="float64", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.empty((0, channels)), last=True)


def _whole_numbers(samples: _Samples, bits: int) -> npt.NDArray[Any]:
    """Return samples as integers of so many bits, the nearest ones, clipped at full scale."""
    scale = 1 << bits - 1
    whole = np.clip(np.rint(samples * scale), -scale, scale - 1)
    return whole.astype(np.int16 if bits == 16 else np.int32)


def _audio_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that hold encoded audio."""
    return [field.name for field in schema if media_of(field) == "audio"]


def _replaced(batch: pa.RecordBatch, made: dict[str, list[_Prepared | None]]) -> pa.RecordBatch:
    """Return the batch with this audio, and with what is said about it if it is one column."""
    for name, files in made.items():
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        values = [None if file is None else file.data for file in files]
        batch = batch.set_column(place, field, pa.array(values, field.type))
    if len(made) == 1:
        (files,) = made.values()
        for number, name in enumerate(ABOUT):
            told = [file.about[number] if file and file.about else None for file in files]
            batch = _told(batch, name, told)
    return batch


def _told(batch: pa.RecordBatch, name: str, values: Sequence[float | None]) -> pa.RecordBatch:
    """Return the batch with these values in a column of numbers, where they are known."""
    place = batch.schema.get_field_index(name)
    if place < 0:
        return batch
    field = batch.schema.field(place)
    seconds = name == ABOUT[-1]
    if not (pa.types.is_floating(field.type) if seconds else pa.types.is_integer(field.type)):
        return batch
    given = pa.array(values, field.type)
    known = given.is_valid()
    return batch.set_column(place, field, pc.if_else(known, given, batch.column(place)))


def _require_codecs(rate: int | None) -> None:
    """Raise MissingExtra without soundfile and soxr, ConfigError where FLAC has no such rate."""
    try:
        import soundfile
        import soxr  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of("soundfile or soxr", "audio") from error
    try:
        if rate is not None:
            soundfile.SoundFile(BytesIO(), "w", rate, 1, format="FLAC", subtype="PCM_16").close()
    except soundfile.LibsndfileError as error:
        raise ConfigError(f"FLAC has no sample rate of {rate} Hz") from error
