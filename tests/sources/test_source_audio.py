"""Audio: bytes exactly, what headers say, transcripts beside it, and nothing broken let through."""

import io
import struct
import wave
import zipfile

import numpy as np
import pytest
import soundfile
from source_reading import read_all

from geodata.errors import ConfigError
from geodata.schema import dataset_schema, is_label, media_of, origin_field
from geodata.sources import Reading, open_source
from geodata.sources.batches import Unfit
from geodata.sources.media.audioheaders import AudioInfo, audio_info

NOISE = np.random.default_rng(0).standard_normal((9000, 2)) * 0.1


def _wav(frames=800, rate=8000, channels=1):
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(2 * channels * frames))
    return out.getvalue()


def _made(kind, subtype=None, rate=16000, channels=1, frames=9000):
    out = io.BytesIO()
    soundfile.write(out, NOISE[:frames, :channels], rate, format=kind, subtype=subtype)
    return out.getvalue()


def _put(root, files):
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


MADE = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_U8"),
    ("WAV", "FLOAT"),
    ("WAV", "ULAW"),
    ("WAVEX", "PCM_24"),
    ("RF64", "PCM_16"),
    ("FLAC", "PCM_16"),
    ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"),
    ("MP3", "MPEG_LAYER_III"),
]


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("kind", "subtype"), MADE)
def test_the_header_tells_what_decoding_finds(kind, subtype, channels):
    for frames in (8999, 9000, 500):
        data = _made(kind, subtype, 16000, channels, frames)
        assert audio_info(data) == AudioInfo(16000, channels, frames)
        assert len(soundfile.read(io.BytesIO(data))[0]) == frames


def test_opus_counts_at_48_khz_whatever_it_was_made_of():
    data = _made("OGG", "OPUS", 16000)
    assert audio_info(data) == AudioInfo(48000, 1, 27000)
    assert audio_info(data).duration == 9000 / 16000


@pytest.mark.parametrize(("kind", "subtype"), [*MADE, ("OGG", "OPUS")])
def test_audio_cut_anywhere_is_rejected(kind, subtype):
    data = _made(kind, subtype, frames=3000)
    for length in [*range(0, len(data), 7), *range(len(data) - 9, len(data))]:
        with pytest.raises(Unfit):
            audio_info(data[:length])


def _chunk(name, data, size=None):
    return name + struct.pack("<I", len(data) if size is None else size) + data


def _riff(*chunks):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


FMT = _chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16))


@pytest.mark.parametrize(
    ("data", "info"),
    [
        (_riff(_chunk(b"LIST", b"odd") + b"\0", FMT, _chunk(b"data", bytes(10))), (8000, 1, 5)),
        (_riff(FMT, _chunk(b"data", bytes(7))), (8000, 1, 3)),
        (_riff(FMT, _chunk(b"data", b"")), (8000, 1, 0)),
        (_riff(FMT, _chunk(b"data", bytes(10), 0xFFFFFFFF)), (8000, 1, 5)),
        (_riff(FMT, _chunk(b"data", bytes(10))) + b"trailer", (8000, 1, 5)),
        (
            b"RIFX\0\0\0\x2eWAVEfmt \0\0\0\x10"
            + struct.pack(">HHIIHH", 1, 2, 8000, 32000, 4, 16)
            + b"data\0\0\0\x08"
            + bytes(8),
            (8000, 2, 2),
        ),
        (
            _riff(
                _chunk(b"fmt ", struct.pack("<HHIIHH", 0x11, 1, 8000, 4055, 256, 4)),
                _chunk(b"fact", struct.pack("<I", 505)),
                _chunk(b"data", bytes(256)),
            ),
            (8000, 1, 505),
        ),
        (
            _riff(
                _chunk(b"fmt ", struct.pack("<HHIIHH", 0x55, 2, 44100, 16000, 1, 0)),
                _chunk(b"data", bytes(256)),
            ),
            (44100, 2, None),
        ),
    ],
)
def test_odd_waves(data, info):
    assert audio_info(data) == AudioInfo(*info)


def test_the_long_size_of_an_rf64_is_the_true_one():
    def rf64(size):
        sizes = _chunk(b"ds64", struct.pack("<QQQI", 0, size, size // 2, 0))
        body = b"WAVE" + sizes + FMT + _chunk(b"data", bytes(1000), 0xFFFFFFFF)
        return b"RF64\xff\xff\xff\xff" + body

    for size in (1000, 0, (1 << 64) - 1):  # the last two: written to a pipe
        assert audio_info(rf64(size)) == AudioInfo(8000, 1, 500)
    for size in (1002, 3 << 30):
        with pytest.raises(Unfit, match="the WAV is truncated"):
            audio_info(rf64(size))


def test_a_preview_of_another_kind_does_not_count():
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128)
    for kind in ("MP3", "FLAC", "WAV"):
        assert audio_info(tag + _made(kind)) == AudioInfo(16000, 1, 9000)
    assert audio_info(_made("MP3") + b"TAG" + bytes(125)) == AudioInfo(16000, 1, 9000)
    assert audio_info(_made("FLAC") + b"TAG" + bytes(125)) == AudioInfo(16000, 1, 9000)
    with pytest.raises(Unfit, match="ends in its ID3 tag"):
        audio_info(tag[:60])


def test_an_mp3_without_a_xing_header_is_counted_frame_by_frame():
    data = _made("MP3", rate=44100, channels=2)
    first = 144 * 1000 * 128 // 44100
    while not data.startswith(b"\xff\xfb", first):
        first += 1
    (found,) = {audio_info(data[first:])}
    assert found.sample_rate == 44100
    assert found.frames % 1152 == 0
    assert found.frames >= 9000


def test_frames_behind_a_damaged_one_are_left_to_decoders():
    frame = b"\xff\xfb\x90\xc0" + bytes(413)  # 44.1 kHz, 1 channel
    assert audio_info(frame * 20) == AudioInfo(44100, 1, 20 * 1152)
    assert audio_info(frame * 20 + b"APETAGEX" + b"\xff" * 500) == AudioInfo(44100, 1, 20 * 1152)
    assert audio_info(frame * 10 + b"damage" + frame * 9) == AudioInfo(44100, 1, None)
    adts = bytes([0xFF, 0xF1, 0x50, 0x80, 0x01, 0x9F, 0xFC]) + bytes(5)
    assert audio_info(adts * 8 + b"\xff" + adts * 8) == AudioInfo(44100, 2, None)


def test_aac_in_adts_is_counted_and_mpeg4_is_silent():
    header = bytes([0xFF, 0xF1, 0x50, 0x80, 0x01, 0x9F, 0xFC])  # 44.1 kHz, 2 channels, 12 bytes
    frames = (header + bytes(5)) * 3
    assert audio_info(frames) == AudioInfo(44100, 2, 3072)
    with pytest.raises(Unfit, match="the AAC is truncated"):
        audio_info(frames[:-1])
    boxes = b"\0\0\0\x10ftypM4A \0\0\0\0" + b"\0\0\0\x08moov" + b"\0\0\0\x0cmdatabcd"
    assert audio_info(boxes) == AudioInfo()
    assert audio_info(boxes).duration is None
    with pytest.raises(Unfit, match="the MPEG-4 is truncated"):
        audio_info(boxes.replace(b"moov", b"free"))
    with pytest.raises(Unfit, match="the MPEG-4 is truncated"):
        audio_info(boxes[:-1])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not audio of a known kind"),
        (b"RIFF\0\0\0\0WAVE", "the WAV is truncated"),
        (_riff(_chunk(b"data", bytes(8))), "or its header is damaged"),
        (_riff(FMT), "the WAV is truncated"),
        (b"fLaC\x84" + bytes(60), "or its header is damaged"),
        (b"OggS\0\2" + bytes(20) + b"\1\x08theora..", "or its header is damaged"),
        ("ÿþtext of no kind".encode("latin-1"), "not audio of a known kind|truncated"),
    ],
)
def test_what_is_no_audio_is_rejected(tmp_path, data, reason):
    _put(tmp_path, {"a.wav": data, "b.wav": _wav()})
    read = read_all(open_source(tmp_path, kind="audio", source_id="s"))
    assert list(read.records) == ["s/b.wav"]
    with pytest.raises(Unfit, match=reason):
        audio_info(data)
    assert [(bad.file, bad.row, bad.raw) for bad in read.rejects] == [("a.wav", None, data)]


def test_every_damaged_byte_of_a_header_is_survived():
    for kind in ("WAV", "FLAC", "OGG", "MP3"):
        data = bytearray(_made(kind, frames=600))
        for at in range(min(len(data), 120)):
            for value in (0, 0xFF, data[at] ^ 0x80):
                changed = bytes(data[:at]) + bytes([value]) + bytes(data[at + 1 :])
                try:
                    info = audio_info(changed)
                except Unfit:
                    continue
                assert info.sample_rate is None or info.sample_rate > 0


def test_the_first_folder_is_the_class(tmp_path):
    _put(tmp_path, {"en/x/a.wav": _wav(), "fr/b.ogg": _made("OGG"), "fr/notes.md": "x"})
    for target in (1 << 20, 1):
        source = open_source(tmp_path, source_id="s", kind="audio")
        read = read_all(source, target)
        assert source.ignored == {".md": 1}
        assert read.schema.names == [
            *("audio", "label", "sample_rate", "channels", "frames", "duration")
        ]
        assert media_of(read.schema.field("audio")) == "audio"
        assert is_label(read.schema.field("label"))
        assert list(read.records) == ["s/en/x/a.wav", "s/fr/b.ogg"]
        assert read.records["s/fr/b.ogg"] == {
            "audio": (tmp_path / "fr/b.ogg").read_bytes(),
            "label": 1,
            "sample_rate": 16000,
            "channels": 1,
            "frames": 9000,
            "duration": 0.5625,
        }


def test_flat_audio_has_no_label_and_a_single_file_has_its_name(tmp_path):
    _put(tmp_path, {"a.wav": _wav(), "b.flac": _made("FLAC"), "c.oga": _made("OGG")})
    read = read_all(open_source(tmp_path, source_id="s"))
    assert read.schema.names == ["audio", "sample_rate", "channels", "frames", "duration"]
    assert list(read.records) == ["s/a.wav", "s/b.flac", "s/c.oga"]
    assert list(read_all(open_source(tmp_path / "a.wav")).records) == ["a.wav"]


def test_flat_audio_beside_classes_is_refused_unless_transcribed(tmp_path):
    _put(tmp_path, {"stray.wav": _wav(), "cat/b.wav": _wav()})
    with pytest.raises(ConfigError, match=r"'stray\.wav'.*'cat'"):
        open_source(tmp_path)
    _put(tmp_path, {"stray.txt": "hello"})
    read = read_all(open_source(tmp_path, kind="audio"))
    assert read.column("label") == [0, None]
    assert read.column("transcript") == [None, "hello"]


def test_a_text_of_the_same_name_is_the_transcript(tmp_path):
    _put(
        tmp_path,
        {
            **{f"{name}.wav": _wav() for name in ("a", "b", "c", "d")},
            "a.txt": "\ufeff Grüß dich\n",
            "b.lab": "from lab",
            "b.txt": "from txt",
            "c.lab": "C\r\n",
            "README.txt": "none",
        },
    )
    source = open_source(tmp_path, kind="audio", source_id="s")
    assert source.ignored == {".txt": 1}
    assert [file.name for file in source.files] == sorted(
        ["a.wav", "b.wav", "c.wav", "d.wav", "a.txt", "b.txt", "b.lab", "c.lab"]
    )
    for target in (1 << 20, 1):
        read = read_all(source, target)
        assert media_of(read.schema.field("transcript")) == "text"
        assert list(read.records) == ["s/a.wav", "s/b.wav", "s/c.wav", "s/d.wav"]
        assert read.column("transcript") == ["Grüß dich", "from txt", "C", None]


def test_lists_of_librispeech(tmp_path):
    _put(
        tmp_path,
        {
            "84/1/84-1-0000.flac": _made("FLAC"),
            "84/1/84-1-0001.flac": _made("FLAC"),
            "84/1/84-1.trans.txt": "84-1-0000 WENT ON\n84-1-0001  TO THE   SEA \n",
            "85/2/85-2-0000.flac": _made("FLAC"),
            "85/2/85-2.trans.txt": "85-2-0000 HERE\n",
            "SPEAKERS.TXT": ";ID\n",
        },
    )
    source = open_source(tmp_path, kind="audio")
    read = read_all(source)
    assert read.column("transcript") == ["WENT ON", "TO THE   SEA", "HERE"]
    assert read.column("label") == [0, 0, 1]
    assert source.ignored == {".txt": 1}


def test_a_tsv_of_two_fields_in_the_folder_is_a_list(tmp_path):
    _put(
        tmp_path,
        {
            "en/x/a.wav": _wav(),
            "en/x/b.wav": _wav(),
            "en/x/c.wav": _wav(),
            "en/x/any.tsv": "b.wav\tBe it so.\nc\tby stem\na.wav\t\ngone.wav\tx\n",
            "fr/y/a.wav": _wav(),
            "fr/y/table.tsv": "a.wav\tspeaker\ttext\n",
            "fr/far.tsv": "a.wav\ttext\n",
        },
    )
    source = open_source(tmp_path, kind="audio", source_id="s")
    read = read_all(source)
    assert source.ignored == {".tsv": 2}
    assert read.column("transcript") == [None, "Be it so.", "by stem", None]


def test_a_transcript_that_cannot_be_read_rejects_its_record(tmp_path):
    _put(
        tmp_path,
        {
            **{f"{name}.wav": _wav() for name in ("a", "b", "c", "d")},
            "a.txt": b"\xff\xfe",
            "l.tsv": b"b.wav\tone\nb.wav\ttwo\nc.wav\tcaf\xe9\nd.wav\tfine\nd.wav\tfine\n",
        },
    )
    read = read_all(open_source(tmp_path, kind="audio", source_id="s"))
    assert {key: r["transcript"] for key, r in read.records.items()} == {"s/d.wav": "fine"}
    reasons = [bad.reason for bad in read.rejects]
    assert "its transcript: invalid UTF-8 at byte 0" in reasons[0]
    assert reasons[1:] == ["it has two transcripts", "its transcript: invalid UTF-8 in line 3"]
    assert read.rejects[0].raw == _wav()
    latin = open_source(tmp_path, kind="audio", reading=Reading(encoding="latin-1"))
    assert read_all(latin).column("transcript") == ["ÿþ", "café", "fine"]


def test_lists_are_read_once_a_folder_and_travel_unread(tmp_path, monkeypatch):
    _put(tmp_path, {f"x/{i}.wav": _wav() for i in range(20)})
    _put(tmp_path, {"x/l.tsv": "".join(f"{i}\ttext {i}\n" for i in range(20))})
    source = open_source(tmp_path, kind="audio")
    read = read_all(source, 1)
    assert len(read.batches) == 20
    assert set(read.column("transcript")) == {f"text {i}" for i in range(20)}


def test_unknown_classes_are_rejected_and_origins_are_files(tmp_path):
    _put(tmp_path, {"ape/a.wav": _wav(), "cat/b.wav": _wav()})
    source = open_source(tmp_path)
    schema = dataset_schema(source.merge([])).append(origin_field("origin"))
    rejects = []
    (piece,) = source.pieces(1 << 20)
    (batch,) = source.read(piece, 0, schema, {"label": ["ape"]}, rejects.append)
    assert batch.column("origin").to_pylist() == [{"file": "ape/a.wav", "row": None}]
    assert [(r.file, r.reason) for r in rejects] == [
        ("cat/b.wav", "its class is not among the dataset's labels")
    ]


def test_batches_are_bounded(tmp_path):
    data = _wav(frames=1_700_000)
    assert 3 << 20 < len(data) < 4 << 20
    _put(tmp_path, {f"{i}.wav": data for i in range(5)})
    assert [batch.num_rows for batch in read_all(open_source(tmp_path)).batches] == [2, 2, 1]


def test_a_zip_is_a_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as file:
        file.writestr("en/a.wav", _wav())
        file.writestr("en/a.txt", "hello")
        file.writestr("fr/b.wav", _wav())
    read = read_all(open_source(tmp_path / "corpus.zip", kind="audio", source_id="s"))
    assert [(key.rpartition("/")[2], r["transcript"]) for key, r in read.records.items()] == [
        ("a.wav", "hello"),
        ("b.wav", None),
    ]
