"""What an audio file's header says, and whether the file goes on to its end; nothing is decoded.

WAV (RIFF, RF64), FLAC, Ogg (Vorbis, Opus, FLAC, Speex), MP3, ADTS AAC, and MPEG-4, told by their
content. Where one has a length that only decoding tells, it is None.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from geodata.sources.batches import Unfit
from geodata.sources.media.flacframes import ends_whole
from geodata.sources.media.mpegframes import adts_info, mpeg_info

_UNKNOWN = "the file is not audio of a known kind, or its header is damaged"
_EXTENSIBLE = 0xFFFE
_SAMPLED = frozenset({1, 3, 6, 7})
"""Of WAV: PCM, float, A-law, mu-law, whose blocks are one sample of each channel."""
_STREAMED = 0x7FFFF000
"""Sizes from here on stand in what was written to a pipe; no record is so long."""
_LONG_STREAMED = 1 << 62
"""The same of sizes in 64 bits."""
_OPUS_RATE = 48_000
"""In whose samples Opus counts, whatever it was made of (RFC 7845, section 4)."""
_CONTINUED, _LAST = 0x01, 0x04
"""Flags of an Ogg page."""


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """Samples a second, channels, and samples of each channel; None where the header is silent."""

    sample_rate: int | None = None
    channels: int | None = None
    frames: int | None = None

    @property
    def duration(self) -> float | None:
        """Return how long it takes, in seconds."""
        if self.frames is None or not self.sample_rate:
            return None
        return self.frames / self.sample_rate


def audio_info(data: bytes) -> AudioInfo:
    """Return what the header of an audio file says.

    Raises Unfit for what is no audio of these kinds, has a damaged header, or ends before its end.
    """
    if not data:
        raise Unfit("the file is empty")
    start = _after_id3(data)
    try:
        return _info(data, start)
    except (struct.error, IndexError) as error:
        raise Unfit(_UNKNOWN) from error


def _info(data: bytes, start: int) -> AudioInfo:
    magic = data[start : start + 4]
    if magic in (b"RIFF", b"RF64", b"BW64", b"RIFX") and data[start + 8 : start + 12] == b"WAVE":
        return _wav(data, start, ">" if magic == b"RIFX" else "<")
    if magic == b"fLaC":
        return _flac(data, start)
    if magic == b"OggS":
        return _ogg(data, start)
    if data[start + 4 : start + 8] == b"ftyp":
        return _mpeg4(data, start)
    for made in (adts_info(data, start), mpeg_info(data, start)):
        if made is not None:
            return AudioInfo(*made)
    raise Unfit(_UNKNOWN)


def _after_id3(data: bytes) -> int:
    """Return where the audio begins: after an ID3v2 tag, whose size has 7 bits a byte."""
    if not data.startswith(b"ID3") or len(data) < 10:
        return 0
    size = data[6] << 21 | data[7] << 14 | data[8] << 7 | data[9]
    start = 10 + size + (10 if data[5] & 0x10 else 0)
    if start >= len(data):
        raise Unfit("the file ends in its ID3 tag")
    return start


def _sound(rate: int, channels: int, frames: int | None) -> AudioInfo:
    if not (0 < rate < 1 << 31 and 0 < channels < 1 << 16):
        raise Unfit(_UNKNOWN)
    return AudioInfo(rate, channels, frames)


def _wav(data: bytes, start: int, order: str) -> AudioInfo:
    """Return what the chunks of a RIFF say; those of an RF64 have their sizes in `ds64`."""
    at, long_size, counted = start + 12, None, None
    form: tuple[int, ...] | None = None
    while at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from(order + "I", data, at + 4)[0]
        at += 8
        if name == b"data":
            if form is None:
                raise Unfit(_UNKNOWN)
            return _wav_data(form, counted, len(data) - at, size, long_size)
        if name == b"ds64":
            long_size = struct.unpack_from("<8xQ", data, at)[0]
        elif name == b"fmt ":
            form = _wav_format(data, at, size, order)
        elif name == b"fact":
            counted = struct.unpack_from(order + "I", data, at)[0]
        at += size + size % 2
    raise Unfit("the WAV is truncated")


def _wav_format(data: bytes, at: int, size: int, order: str) -> tuple[int, ...]:
    """Return format, channels, rate and block size in bytes."""
    tag, channels, rate, _, block = struct.unpack_from(order + "HHIIH", data, at)
    if tag == _EXTENSIBLE and size >= 26:
        tag = struct.unpack_from(order + "H", data, at + 24)[0]
    return tag, channels, rate, block


def _wav_data(
    form: tuple[int, ...], counted: int | None, left: int, size: int, long_size: int | None
) -> AudioInfo:
    tag, channels, rate, block = form
    streamed = size >= _STREAMED if not long_size else long_size >= _LONG_STREAMED
    size = long_size or size
    if size > left and not streamed:
        raise Unfit("the WAV is truncated")
    if tag not in _SAMPLED:
        return _sound(rate, channels, counted)
    if not block:
        raise Unfit(_UNKNOWN)
    return _sound(rate, channels, min(size, left) // block)


def _flac(data: bytes, start: int) -> AudioInfo:
    """Return what STREAMINFO says (RFC 9639, section 8.2)."""
    about = _streaminfo(data, start + 4)
    at, last = start + 4, False
    while not last:
        if at + 4 > len(data):
            raise Unfit("the FLAC is truncated")
        last = bool(data[at] & 0x80)
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    if at > len(data) or not ends_whole(data, at, about.frames):
        raise Unfit("the FLAC is truncated")
    return about


def _streaminfo(data: bytes, at: int) -> AudioInfo:
    if data[at] & 0x7F or len(data) < at + 38:
        raise Unfit(_UNKNOWN)
    packed = int.from_bytes(data[at + 14 : at + 22], "big")
    frames = packed & ((1 << 36) - 1)
    return _sound(packed >> 44, (packed >> 41 & 7) + 1, frames or None)


def _ogg(data: bytes, start: int) -> AudioInfo:
    """Return what the first stream with sound says; its length is the last page's position."""
    about, serial, skipped, position, flags = AudioInfo(), b"", 0, 0, 0
    at = stop = start
    while data.startswith(b"OggS", at):
        count = data[at + 26] if at + 26 < len(data) else 0
        body = at + 27 + count
        stop = body + sum(data[at + 27 : body])
        if stop > len(data):
            raise Unfit("the Ogg is truncated")
        found = _ogg_sound(data, body) if not serial else None
        if found is not None:
            (about, skipped), serial = found, data[at + 14 : at + 18]
        granule = struct.unpack_from("<q", data, at + 6)[0]
        if data[at + 14 : at + 18] == serial:
            unfinished = count == 255 and data[body - 1] == 255
            flags = data[at + 5] & _LAST or (_CONTINUED if unfinished else 0)
            position = position if granule < 0 else granule
        at = data.find(b"OggS", stop)
    if not serial:
        raise Unfit(_UNKNOWN)
    cut = stop < len(data) and b"OggS".startswith(data[stop : stop + 4])
    if cut or (not flags & _LAST and (flags & _CONTINUED or not position)):
        raise Unfit("the Ogg is truncated")
    return AudioInfo(about.sample_rate, about.channels, max(0, position - skipped))


def _ogg_sound(data: bytes, at: int) -> tuple[AudioInfo, int] | None:
    """Return what a stream's first packet says, and how many samples are skipped at its start."""
    if data.startswith(b"\x01vorbis", at):
        channels, rate = struct.unpack_from("<BI", data, at + 11)
        return _sound(rate, channels, None), 0
    if data.startswith(b"OpusHead", at):
        channels, skipped = struct.unpack_from("<BH", data, at + 9)
        return _sound(_OPUS_RATE, channels, None), skipped
    if data.startswith(b"\x7fFLAC", at):
        return _streaminfo(data, at + 13), 0
    if data.startswith(b"Speex   ", at):
        rate, channels = struct.unpack_from("<I8xI", data, at + 36)
        return _sound(rate, channels, None), 0
    return None


def _mpeg4(data: bytes, start: int) -> AudioInfo:
    """Look whether all boxes are there; what they hold is not looked into."""
    missing, at = {b"moov", b"mdat"}, start
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        missing.discard(name)
        if size == 1:
            size = struct.unpack_from(">Q", data, at + 8)[0]
        elif size == 0:
            size = len(data) - at
        if size < 8:
            raise Unfit(_UNKNOWN)
        at += size
    if at > len(data) or missing:
        raise Unfit("the MPEG-4 is truncated")
    return AudioInfo()
