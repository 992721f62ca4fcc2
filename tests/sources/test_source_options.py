"""Options of reading: a kind of source uses one, or refuses it before any work."""

import wave
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest
from PIL import Image

from geodata.errors import ConfigError
from geodata.sources import KINDS, Reading, open_source
from geodata.sources.kinds import ZIPPED
from geodata.sources.options import ARCHIVED, AS_FOUND, TABLED, USED_BY

GIVEN = {
    "encoding": "latin-1",
    "header": False,
    "delimiter": ";",
    "quotes": False,
    "columns": ("a", "b"),
    "table": "list.csv",
    "file_column": "file",
    "parts": 2,
}
"""For each option a value that says something."""

OPTIONS = {name: f"--{name.replace('_', '-')}" for name in GIVEN} | {
    "header": "--no-header",
    "quotes": "--no-quotes",
}

FILES = {
    "jsonl": "a.jsonl",
    "csv": "a.csv",
    "parquet": "a.parquet",
    "text": "a.txt",
    "images": "a.png",
    "audio": "a.wav",
    "webdataset": "a.tar",
    "hdf5": "a.h5",
    "tfrecord": "a.tfrecord",
    "arrow": "a.arrow",
    "petastorm": "a.parquet",
    "function": "nowhere:rows",
}
"""For each kind a source that was not opened where an option is refused: none can be read."""


def test_every_option_and_every_kind_is_told_of():
    told = {field.name for field in fields(Reading) if field.compare}
    assert set(GIVEN) == set(USED_BY) == told
    assert set(FILES) == set(KINDS)
    for kinds in USED_BY.values():
        assert set(kinds) <= {*KINDS, ARCHIVED, TABLED}
    for name, value in GIVEN.items():
        reading = Reading(**{name: value})
        assert reading.to_json() == {name: value} and reading != AS_FOUND
        assert reading.options() == [OPTIONS[name]]


def test_where_caches_lie_decides_nothing():
    reading = Reading(cache=Path("somewhere"))
    assert (reading.to_json(), reading.options(), reading) == ({}, [], AS_FOUND)


UNUSED = [(kind, name) for kind in KINDS for name in GIVEN if kind not in USED_BY[name]]


@pytest.mark.parametrize(("kind", "name"), UNUSED)
def test_what_a_kind_does_not_use_is_refused_before_it_is_opened(tmp_path, kind, name):
    (tmp_path / FILES[kind]).touch()
    source = FILES[kind] if kind == "function" else tmp_path
    with pytest.raises(ConfigError) as caught:
        open_source(source, kind=kind, reading=Reading(**{name: GIVEN[name]}))
    assert caught.value.message == f"{OPTIONS[name]} is not for {kind}"
    assert caught.value.hint == f"It is for {', '.join(USED_BY[name])}"


@pytest.mark.parametrize("name", GIVEN)
def test_what_a_kind_uses_is_not_refused(name):
    for kind in USED_BY[name]:
        Reading(**{name: GIVEN[name]}).check(kind)
        Reading(**{name: GIVEN[name]}).check("parquet", kind)


@pytest.mark.parametrize("kind", sorted(ZIPPED))
def test_names_in_archives_have_an_encoding(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(FILES[kind], b"")
    opened = open_source(tmp_path / "a.zip", kind=kind, reading=Reading(encoding="cp437"))
    assert len(opened.files) == 1


@pytest.fixture
def media(tmp_path):
    """A folder of an image and of a sound, each with a table of every kind."""
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0")
    (tmp_path / "list.csv").write_text("file\na.png\n")
    (tmp_path / "list.jsonl").write_text('{"file": "a.png"}\n')
    return tmp_path


@pytest.mark.parametrize("name", sorted({*GIVEN} - {"table", "parts"}))
def test_a_table_takes_the_options_of_its_kind(media, name):
    asked = {name: GIVEN[name], **({"header": False} if name == "columns" else {})}
    csv = Reading(table="list.csv", **asked)
    assert len(open_source(media, kind="images", reading=csv).files) == 2
    lines = Reading(table="list.jsonl", **asked)
    if name in ("encoding", "file_column"):
        assert len(open_source(media, kind="images", reading=lines).files) == 2
    else:
        with pytest.raises(ConfigError, match=r"is not for images. It is for csv"):
            open_source(media, kind="images", reading=lines)


def test_without_a_table_no_column_of_it_is_named(media):
    with pytest.raises(ConfigError, match=r"--file-column is not for audio. It is for media with"):
        open_source(media, kind="audio", reading=Reading(file_column="file"))
