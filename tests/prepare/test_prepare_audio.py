"""Audio prepared: the rate and channels asked for, exact samples, the same bytes each time."""

import io
import pickle
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import soxr

import geodata
from geodata.errors import ConfigError, MissingExtra
from geodata.prepare import Preparing, prepared_schema, run_steps, steps_of
from geodata.schema import dataset_schema, media_field
from geodata.sources.batches import Unfit
from geodata.sources.media.audioheaders import AudioInfo, audio_info

ABOUT = [("sample_rate", pa.int32()), ("channels", pa.int32()), ("frames", pa.int64())]


def _tones(rate=24_000, channels=2, frames=12_000):
    """Return a tone a channel: 440 Hz, 550 Hz."""
    time = np.arange(frames) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * (440 + 110 * c) * time) for c in range(channels)], 1)


def _file(samples, rate=24_000, kind="WAV", subtype="PCM_16"):
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype)
    return out.getvalue()


def _about(file):
    try:
        return audio_info(file)
    except Unfit:
        return AudioInfo()


def _batch(files):
    schema = pa.schema(
        [media_field("audio", "audio"), *ABOUT, ("duration", pa.float64()), ("name", pa.string())]
    )
    schema = dataset_schema(schema)
    infos = [AudioInfo() if file is None else _about(file) for file in files]
    values = {
        "__key__": [str(i) for i in range(len(files))],
        "__subject__": [None] * len(files),
        "audio": files,
        "name": [f"n{i}" for i in range(len(files))],
    }
    for name in ("sample_rate", "channels", "frames", "duration"):
        values[name] = [getattr(info, name) for info in infos]
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _prepared(batch, **asked):
    (step,) = pickle.loads(pickle.dumps(steps_of(Preparing(**asked))))
    refused = []
    made = run_steps(batch, [step], lambda *bad: refused.append(bad))
    assert made.schema.equals(prepared_schema(batch.schema, [step]), check_metadata=True)
    made.validate(full=True)
    return made.to_pylist(), refused


def _samples(data, dtype="float64"):
    return soundfile.read(io.BytesIO(data), dtype=dtype, always_2d=True)[0]


def test_nothing_is_done_unless_asked():
    assert steps_of(Preparing()) == []
    (step,) = steps_of(Preparing(mono=True))
    assert step.identity() == "audio"


def test_a_mix_is_the_mean_of_the_channels():
    samples = _tones()
    ((record,), refused) = _prepared(_batch([_file(samples)]), mono=True)
    assert refused == []
    stored = _samples(_file(samples), "int16").astype(np.float64)
    expected = np.rint(stored.mean(axis=1, keepdims=True)).astype(np.int16)
    assert np.array_equal(_samples(record["audio"], "int16"), expected)
    assert audio_info(record["audio"]) == AudioInfo(24_000, 1, 12_000)
    about = {name: record[name] for name in ("sample_rate", "channels", "frames", "duration")}
    assert about == {"sample_rate": 24_000, "channels": 1, "frames": 12_000, "duration": 0.5}
    assert (record["__key__"], record["name"]) == ("0", "n0")


def test_a_rate_is_reached_as_soxr_does_it_at_once():
    samples = _tones(frames=200_000)
    ((record,), _) = _prepared(_batch([_file(samples)]), rate=16_000)
    given = _samples(_file(samples))
    whole = np.rint(soxr.resample(given, 24_000, 16_000, "HQ") * 32768).astype(np.int16)
    assert np.array_equal(_samples(record["audio"], "int16"), whole)
    assert (record["sample_rate"], record["channels"], record["frames"]) == (16_000, 2, 133_333)
    assert record["duration"] == 133_333 / 16_000


def test_the_tone_stays_and_what_the_rate_cannot_hold_goes():
    time = np.arange(48_000) / 48_000
    both = 0.4 * np.sin(2 * np.pi * 440 * time) + 0.4 * np.sin(2 * np.pi * 15_000 * time)
    ((record,), _) = _prepared(_batch([_file(both, 48_000)]), rate=16_000, mono=True)
    spectrum = np.abs(np.fft.rfft(_samples(record["audio"])[:, 0])) / 8000
    assert spectrum[440] == pytest.approx(0.4, rel=0.01)
    assert np.delete(spectrum, range(430, 451)).max() < 0.002


def test_what_is_as_asked_keeps_its_bytes():
    files = [_file(_tones(channels=1)), _file(_tones(channels=1), kind="OGG", subtype="VORBIS")]
    records, refused = _prepared(_batch(files), rate=24_000, mono=True)
    assert [record["audio"] for record in records] == files
    assert [record["frames"] for record in records] == [12_000, 12_000]
    again, _ = _prepared(_batch([_file(_tones())]), rate=8000, mono=True)
    once = again[0]["audio"]
    ((record,), _) = _prepared(_batch([once]), rate=8000, mono=True)
    assert record["audio"] == once
    assert refused == []


@pytest.mark.parametrize(
    ("kind", "subtype", "stored"),
    [
        ("WAV", "PCM_U8", "PCM_16"),
        ("WAV", "PCM_24", "PCM_24"),
        ("WAV", "PCM_32", "PCM_24"),
        ("WAV", "FLOAT", "PCM_24"),
        ("WAV", "ULAW", "PCM_16"),
        ("FLAC", "PCM_16", "PCM_16"),
        ("FLAC", "PCM_24", "PCM_24"),
        ("AIFF", "PCM_24", "PCM_24"),
        ("OGG", "VORBIS", "PCM_16"),
        ("OGG", "OPUS", "PCM_16"),
        ("MP3", "MPEG_LAYER_III", "PCM_16"),
    ],
)
def test_wide_lossless_sources_stay_wide_and_bytes_are_the_same_each_time(kind, subtype, stored):
    file = _file(_tones(), kind=kind, subtype=subtype)
    records, refused = _prepared(_batch([file, file]), mono=True)
    assert refused == []
    assert records[0]["audio"] == records[1]["audio"]
    about = soundfile.info(io.BytesIO(records[0]["audio"]))
    assert (about.format, about.subtype, about.channels) == ("FLAC", stored, 1)
    assert about.frames == records[0]["frames"] == 12_000
    difference = _samples(records[0]["audio"]) - _samples(file).mean(axis=1, keepdims=True)
    assert np.abs(difference).max() <= 0.51 / (1 << (23 if stored == "PCM_24" else 15))


def test_samples_beyond_full_scale_are_clipped_not_wrapped():
    loud = np.linspace(-2, 2, 1000)
    file = _file(np.stack([loud, loud], 1), subtype="FLOAT")
    ((record,), _) = _prepared(_batch([file]), mono=True)
    found = _samples(record["audio"], "int32")[:, 0] >> 8
    assert (found[0], found[-1]) == (-(1 << 23), (1 << 23) - 1)
    assert np.all(np.diff(found.astype(np.int64)) >= 0)


@pytest.mark.parametrize("asked", [{"mono": True}, {"rate": 16_000}])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(asked, bad):
    samples = np.zeros((1000, 2), np.float32)
    samples[500, 1] = bad
    records, refused = _prepared(_batch([_file(samples, subtype="FLOAT")]), **asked)
    assert records == []
    assert [reason for _, reason, _ in refused] == ["the audio has samples that are no numbers"]


def test_a_rate_far_above_is_reached_in_small_blocks():
    ((record,), _) = _prepared(_batch([_file(np.zeros(1000), rate=10)]), rate=48_000)
    assert (record["frames"], record["duration"]) == (4_800_000, 100.0)


def test_what_would_go_on_for_ever_is_refused(monkeypatch):
    monkeypatch.setattr("geodata.prepare.audio._MOST_SAMPLES", 100_000)
    (_, refused) = _prepared(_batch([_file(np.zeros(1000), rate=10)]), rate=48_000)
    assert refused[0][1] == "the audio takes 2 GiB or more as FLAC, or a day and more"


def test_what_cannot_be_prepared_is_refused_with_its_bytes():
    good, empty = _file(_tones()), _file(np.zeros((0, 2)))
    flac = _file(_tones(), kind="FLAC")
    files = [good, b"\0\0\0\x18ftypM4A ", None, empty, flac[: len(flac) // 2], good]
    records, refused = _prepared(_batch(files), mono=True)
    assert [record["__key__"] for record in records] == ["0", "2", "5"]
    assert records[1]["audio"] is None
    assert records[1]["channels"] is None
    assert [(row, raw) for row, _, raw in refused] == [(i, files[i]) for i in (1, 3, 4)]
    reasons = [reason for _, reason, _ in refused]
    assert reasons[0] == "the audio cannot be decoded: Format not recognised"
    assert reasons[1] == "the audio has no samples"
    assert reasons[2].startswith("the audio cannot be decoded: ")


def test_columns_of_other_types_stay():
    schema = pa.schema([media_field("audio", "audio"), ("frames", pa.string())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([_file(_tones())], pa.binary()), pa.array(["many"])], schema=schema
    )
    ((record,), _) = _prepared(batch, mono=True)
    assert record["frames"] == "many"
    assert audio_info(record["audio"]).channels == 1


def test_two_columns_of_audio_are_both_prepared_and_the_rest_stays():
    schema = pa.schema(
        [media_field("clean", "audio"), media_field("noisy", "audio"), ("channels", pa.int32())]
    )
    files = [pa.array([_file(_tones()), None], pa.binary()), pa.array([b"x", b"y"], pa.binary())]
    batch = pa.RecordBatch.from_arrays([*files, pa.array([7, 8], pa.int32())], schema=schema)
    records, refused = _prepared(batch, mono=True)
    assert (records, [(row, raw) for row, _, raw in refused]) == ([], [(0, b"x"), (1, b"y")])
    batch = batch.set_column(1, schema.field(1), files[0])
    records, refused = _prepared(batch, mono=True)
    assert [audio_info(records[0][name]).channels for name in ("clean", "noisy")] == [1, 1]
    assert [record["channels"] for record in records] == [7, 8]
    assert refused == []


def test_a_source_without_audio_is_a_mistake():
    (step,) = steps_of(Preparing(rate=16_000))
    with pytest.raises(ConfigError, match="no column of audio"):
        step.schema(pa.schema([("x", pa.int64())]))


def test_a_rate_that_flac_lacks_is_a_mistake():
    with pytest.raises(ConfigError, match="no sample rate of 700000 Hz"):
        steps_of(Preparing(rate=700_000))


@pytest.mark.parametrize("package", ["soundfile", "soxr"])
def test_without_the_packages_the_extra_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"geodata-train\[audio\]"):
        steps_of(Preparing(mono=True))


def test_a_conversion_prepares_and_sets_aside_what_it_cannot(tmp_path):
    corpus = tmp_path / "corpus"
    for name, data in {
        "en/a.wav": _file(_tones()),
        "en/a.txt": b"two tones",
        "en/b.ogg": _file(_tones(), kind="OGG", subtype="VORBIS"),
        "fr/empty.wav": _file(np.zeros((0, 1))),
        "fr/cut.wav": _file(_tones())[:-1],
    }.items():
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        (corpus / name).write_bytes(data)
    done = geodata.convert(
        corpus,
        tmp_path / "out",
        kind="audio",
        preparing=Preparing(rate=16_000, mono=True),
        on_error="quarantine",
        workers=1,
    )
    assert (done.records_in, done.records_out, done.rejected) == (4, 2, 2)
    assert done.reasons == {"the WAV is truncated": 1, "the audio has no samples": 1}
    (shard,) = (tmp_path / "out" / "data").rglob("*.parquet")
    records = pq.read_table(shard).to_pylist()
    assert [audio_info(record["audio"]) for record in records] == [AudioInfo(16_000, 1, 8000)] * 2
    assert [record["transcript"] for record in records] == ["two tones", None]
    assert [record["duration"] for record in records] == [0.5, 0.5]
