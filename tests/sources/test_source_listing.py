"""The listing of files: the same order everywhere, nothing skipped unseen."""

import os
import pickle
import socket
from pathlib import Path

import pytest
from source_reading import read_all

from geodata.errors import ConfigError
from geodata.sources import SourceFile, list_files, open_source, recognise
from geodata.sources.filelist import FileList
from geodata.sources.listing import suffix_of


def _names(root):
    return [file.name for file in list_files(root).files]


def _touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_files_come_in_the_order_of_their_bytes(tmp_path):
    _touch(tmp_path, "b.txt", "a/z.txt", "a.txt", "a/é.txt", "B.txt", "a0.txt", "ａ.txt")
    expected = ["B.txt", "a.txt", "a/z.txt", "a/é.txt", "a0.txt", "b.txt", "ａ.txt"]
    assert _names(tmp_path) == expected
    assert expected == sorted(expected, key=str.encode)


def test_hidden_files_and_folders_are_skipped_and_counted(tmp_path):
    _touch(tmp_path, "a.txt", ".hidden", ".git/one", ".git/two")
    listing = list_files(tmp_path)
    assert [file.name for file in listing.files] == ["a.txt"]
    assert listing.ignored == {"hidden": 2}


def test_a_link_to_a_folder_is_never_followed(tmp_path):
    _touch(tmp_path, "a/one.txt")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    listing = list_files(tmp_path)
    assert [file.name for file in listing.files] == ["a/one.txt"]
    assert listing.ignored == {"link to a folder": 2}


def test_a_link_to_a_file_is_that_file_and_one_to_nothing_is_still_listed(tmp_path):
    _touch(tmp_path, "data/a.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "data" / "a.txt")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "gone.txt")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    sizes = {file.name: file.nbytes for file in list_files(tmp_path).files}
    assert sizes == {"data/a.txt": 1, "link.txt": 1, "loop.txt": 0, "lost.txt": 0}


def test_a_pipe_is_not_opened(tmp_path):
    _touch(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    listing = list_files(tmp_path)
    assert [file.name for file in listing.files] == ["a.txt"]
    assert listing.ignored == {"not a regular file": 1}
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        list_files(tmp_path / "pipe.txt")


def test_nothing_there_is_the_users_mistake(tmp_path):
    with pytest.raises(ConfigError, match="no corpus: No such file"):
        list_files(tmp_path / "absent")
    with pytest.raises(ConfigError, match="the folder holds no file"):
        list_files(tmp_path)
    _touch(tmp_path, ".hidden")
    with pytest.raises(ConfigError, match="the folder holds no file.* 1 hidden"):
        list_files(tmp_path)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    _touch(tmp_path, "a/one.txt", "b/two.txt")
    real = os.scandir

    def denied(path):
        if path.endswith(b"/b/"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied") as caught:
        list_files(tmp_path)
    assert str(caught.value.fields["file"]).endswith("/b/")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "text", "images"])
def test_a_file_that_may_not_be_read_is_one_rejected_record(tmp_path, kind, monkeypatch):
    _touch(tmp_path, "a.dat")
    (tmp_path / "a.dat").chmod(0)
    if os.access(tmp_path / "a.dat", os.R_OK):  # root may read everything
        _deny(monkeypatch, "a.dat")
    read = read_all(open_source(tmp_path / "a.dat", kind=kind))
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("a.dat", None, "the file cannot be read: Permission denied")
    ]


def _deny(monkeypatch, name):
    """Let opening a file fail as it does for other users."""
    real_open, real_path = os.open, Path.open

    def refused(path):
        if os.fspath(path).endswith(name):
            raise PermissionError(13, "Permission denied")

    def opened(path, *args, **options):
        refused(path)
        return real_open(path, *args, **options)

    def path_opened(path, *args, **options):
        refused(path)
        return real_path(path, *args, **options)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(Path, "open", path_opened)


def test_links_in_a_circle_end(tmp_path):
    _touch(tmp_path, "a/b/one.txt")
    (tmp_path / "a" / "b" / "up").symlink_to("../..", target_is_directory=True)
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    (tmp_path / "self").symlink_to(".", target_is_directory=True)
    listing = list_files(tmp_path)
    assert [file.name for file in listing.files] == ["a/b/one.txt", "x", "y"]
    assert listing.ignored == {"link to a folder": 2}
    read = read_all(open_source(tmp_path, source_id="s"))
    assert list(read.records) == ["s/a/b/one.txt"]
    assert [r.reason for r in read.rejects] == [
        "the file cannot be read: Too many levels of symbolic links"
    ] * 2


def test_sockets_and_devices_are_not_opened(tmp_path):
    _touch(tmp_path, "a.txt")
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(tmp_path / "s.txt"))
    finally:
        server.close()
    (tmp_path / "null.txt").symlink_to("/dev/null")
    listing = list_files(tmp_path)
    assert [file.name for file in listing.files] == ["a.txt"]
    assert listing.ignored == {"not a regular file": 2}


def test_the_list_is_a_sequence_and_travels():
    listed = FileList([(b"b", 2, 20), (b"a", 1, 10), (b"\xff", 3, 30)])
    files = [SourceFile("a", 1, 10), SourceFile("b", 2, 20), SourceFile("\udcff", 3, 30)]
    assert list(listed) == files
    assert listed[-1] == files[-1]
    assert list(listed[1:]) == files[1:]
    assert list(pickle.loads(pickle.dumps(listed))) == files
    with pytest.raises(IndexError):
        listed[3]
    assert list(FileList([])) == []


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (b"a.JPG", ".jpg"),
        (b"a.b/c", ""),
        (b"a/b.tar.gz", ".tar.gz"),
        (b"a.JSONL.ZST", ".jsonl.zst"),
        (b"a.gz", ".gz"),
        (b".gz", ""),
        (b"x/.a.gz", ".gz"),
        (b"dot.", ""),
        (b"x.\xff", ".\\xff"),
    ],
)
def test_suffixes(name, suffix):
    assert suffix_of(name) == suffix


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.JSON", "jsonl"),
        ("a.csv", "csv"),
        ("a.tsv", "csv"),
        ("a.parquet", "parquet"),
        ("a.md", "text"),
        ("a.TIFF", "images"),
    ],
)
def test_a_file_is_recognised_by_its_suffix(tmp_path, name, kind):
    _touch(tmp_path, name)
    assert recognise(tmp_path / name) == kind


def test_a_folder_is_recognised_when_one_kind_clearly_holds_its_files(tmp_path):
    _touch(tmp_path, *(f"{i}.png" for i in range(20)), "README.md", "Thumbs.db")
    assert recognise(tmp_path) == "images"
    source = open_source(tmp_path)
    assert len(source.files) == 20
    assert source.ignored == {".md": 1, ".db": 1}


def test_what_tells_of_media_does_not_hide_their_kind(tmp_path):
    _touch(tmp_path / "a", "metadata.jsonl", "1.png", "2.png")
    _touch(tmp_path / "b", "1.wav", "1.txt", "2.wav", "2.txt")
    (tmp_path / "c/19").mkdir(parents=True)
    _touch(tmp_path / "c/19", "19-1.flac", "19-2.flac", "19.trans.txt")
    found = [recognise(tmp_path / folder) for folder in "abc"]
    assert found == ["images", "audio", "audio"]
    _touch(tmp_path / "d", "1.wav", "1.txt", "2.txt", *(f"{i}.bin" for i in range(3)))
    with pytest.raises(ConfigError, match="cannot tell the kind"):
        recognise(tmp_path / "d")


def test_an_unclear_folder_is_refused_with_its_counts(tmp_path):
    _touch(tmp_path, *(f"{i}.png" for i in range(3)), *(f"{i}.txt" for i in range(3)), "x")
    with pytest.raises(ConfigError, match=r"3 \.png, 3 \.txt, 1 without suffix.*--kind jsonl \|"):
        recognise(tmp_path)


def test_other_files_than_any_kind_knows_are_refused(tmp_path):
    _touch(tmp_path, "one.csv", *(f"{i}.bin" for i in range(9)))
    with pytest.raises(ConfigError, match=r"9 \.bin, 1 \.csv"):
        recognise(tmp_path)


@pytest.mark.parametrize("name", ["data", "data.xyz"])
def test_a_file_of_unknown_suffix_needs_the_kind(tmp_path, name):
    _touch(tmp_path, name)
    with pytest.raises(ConfigError, match="--kind"):
        open_source(tmp_path / name)
    assert open_source(tmp_path / name, kind="text").kind == "text"


def test_a_packed_file_is_to_be_unpacked(tmp_path):
    _touch(tmp_path, "a.7z", "b.bin.gz")
    for name in ("a.7z", "b.bin.gz"):
        with pytest.raises(ConfigError, match="Unpack it first"):
            open_source(tmp_path / name)


def test_a_kind_that_is_not_there_is_refused(tmp_path):
    _touch(tmp_path, "a.csv")
    with pytest.raises(ConfigError, match=r"holds no parquet: 1 \.csv"):
        open_source(tmp_path, kind="parquet")
    with pytest.raises(ConfigError, match="no kind of source 'tar'"):
        open_source(tmp_path, kind="tar")


def test_the_source_id_is_the_name_unless_chosen(tmp_path, monkeypatch):
    _touch(tmp_path, "corpus/a.txt")
    assert open_source(tmp_path / "corpus").source_id == "corpus"
    assert open_source(tmp_path / "corpus" / "a.txt").source_id == "a.txt"
    monkeypatch.chdir(tmp_path / "corpus")
    here = type(tmp_path)(".")
    assert open_source(here).source_id == "corpus"
    assert open_source(here, source_id="news 2024").source_id == "news 2024"


@pytest.mark.parametrize("source_id", ["", "a/b", "..", "\udcff"])
def test_a_source_id_that_makes_no_keys_is_refused(tmp_path, source_id):
    _touch(tmp_path, "a.txt")
    with pytest.raises(ConfigError, match="--source-id"):
        open_source(tmp_path, source_id=source_id)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "text", "images"])
def test_a_name_that_is_not_utf8_is_one_rejected_record(tmp_path, kind):
    (tmp_path / os.fsdecode(b"\xff.dat")).write_bytes(b'{"a": 1}\n')
    suffix = {"jsonl": "jsonl", "csv": "csv", "parquet": "pq", "text": "txt", "images": "png"}[kind]
    (tmp_path / os.fsdecode(b"\xff.dat")).rename(tmp_path / os.fsdecode(b"\xff." + suffix.encode()))
    read = read_all(open_source(tmp_path, kind=kind), 1)
    assert read.records == {}
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        (f"\\xff.{suffix}", None, "the file's name is not UTF-8")
    ]


@pytest.mark.parametrize("kind", ["text", "images"])
def test_a_file_that_vanished_before_it_was_a_record_is_told(tmp_path, kind):
    _touch(tmp_path, "a.dat")
    source = open_source(tmp_path / "a.dat", kind=kind)
    (tmp_path / "a.dat").unlink()
    with pytest.raises(ConfigError, match=r"changed while it was read \(file a.dat\)"):
        read_all(source)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_file_that_vanished_is_one_rejected_record(tmp_path, kind):
    _touch(tmp_path, "a.dat")
    source = open_source(tmp_path / "a.dat", kind=kind)
    (tmp_path / "a.dat").unlink()
    read = read_all(source)
    assert read.records == {}
    assert [(r.file, r.row, r.reason) for r in read.rejects] == [
        ("a.dat", None, "the file cannot be read: No such file or directory")
    ]
