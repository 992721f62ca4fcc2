"""Whether files are as they were listed: of every kind, in archives, and beside the records."""

import os
import shutil
import zipfile

import pytest
from sources.source_reading import read_all

from geodata.errors import ConfigError
from geodata.sources import Reading, open_source
from geodata.sources.unchanged import check_unchanged

FORMAT = b"fmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0"
WAV = b"RIFF\x2c\0\0\0WAVE" + FORMAT + b"data\x08\0\0\0abcdefgh"


def check(source):
    check_unchanged(source, range(len(source.files)))


def touch(path):
    """Let a file have another modification time."""
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, now + 1_000_000_000))


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def corpus_of(folder, kind):
    """Make a corpus, and return it with each of its files, by the name that an error has."""
    root = folder / "in"
    root.mkdir()
    if kind == "tree":
        (root / "d").mkdir()
        (root / "a.txt").write_text("a")
        (root / "d/b\udcff.txt").write_text("b")
        return open_source(root), {"a.txt": root / "a.txt", r"d/b\xff.txt": root / "d/b\udcff.txt"}
    if kind == "single":
        (root / "a.jsonl").write_text('{"a": 1}\n')
        return open_source(root / "a.jsonl"), {"a.jsonl": root / "a.jsonl"}
    if kind == "archive":
        zipped(root / "a.zip", **{"../x.txt": "x"})
        return open_source(root / "a.zip"), {"../x.txt": root / "a.zip"}
    if kind == "archives":
        zipped(root / "a.zip", **{"x.txt": "x"})
        (root / "b.txt").write_text("b")
        (root / "c.zip").write_bytes(b"PK broken")
        places = {"a.zip/x.txt": "a.zip", "b.txt": "b.txt", "c.zip": "c.zip"}
        return open_source(root), {name: root / place for name, place in places.items()}
    if kind == "audio":
        (root / "a.wav").write_bytes(WAV)
        (root / "a.txt").write_text("said")
        return open_source(root), {"a.wav": root / "a.wav", "a.txt": root / "a.txt"}
    (root / "a.wav").write_bytes(WAV)
    place = folder if kind == "table outside" else root
    (place / "t.csv").write_text("file_name\na.wav\n")
    chosen = place / "t.csv" if kind == "table outside" else "t.csv"
    name = str(chosen)
    source = open_source(root, kind="audio", reading=Reading(table=str(chosen)))
    return source, {"a.wav": root / "a.wav", name: place / "t.csv"}


KINDS = ["tree", "single", "archive", "archives", "audio", "table outside", "table inside"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_watched_where_it_lies(tmp_path, kind):
    source, places = corpus_of(tmp_path, kind)
    assert len(source.files) == len(places)
    check(source)
    read_all(source)
    check(source)
    for name, path in places.items():
        kept = tmp_path / "kept"
        shutil.copy2(path, kept)
        touch(path)
        with pytest.raises(ConfigError, match="changed while it was read") as caught:
            check(source)
        assert caught.value.fields["file"] == name
        path.unlink()
        with pytest.raises(ConfigError, match="changed while it was read"):
            check(source)
        shutil.copy2(kept, path)
        check(source)


def test_a_file_of_another_size_at_the_same_time_changed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a")
    source, time = open_source(tmp_path), path.stat().st_mtime_ns
    path.write_text("bc")
    os.utime(path, ns=(time, time))
    with pytest.raises(ConfigError, match="changed while it was read"):
        check(source)


def test_what_was_not_there_may_stay_away_and_not_come(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "gone")
    source = open_source(tmp_path)
    check(source)
    (tmp_path / "gone").write_text("here")
    with pytest.raises(ConfigError, match="changed while it was read"):
        check(source)


def test_a_folder_in_the_place_of_a_file_is_a_change(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    source = open_source(tmp_path)
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(ConfigError, match="changed while it was read"):
        check(source)


def test_the_code_of_a_function_is_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "watched_rows.py").write_text("def rows():\n    yield {'a': 1}\n")
    source = open_source("watched_rows:rows")
    check(source)
    touch(tmp_path / "watched_rows.py")
    with pytest.raises(ConfigError, match="changed while it was read"):
        check(source)
