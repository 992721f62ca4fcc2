"""WebDataset tars: a reason for every lost sample."""

import gzip
import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tar_files import JPG, PACKERS, read, rejected, special, tar_bytes, write_tar


def test_a_duplicate_member_is_one_error_naming_shard_and_member(tmp_path):
    path = write_tar(
        tmp_path / "a.tar", ("0.txt", b"x"), ("0.cls", b"1"), ("0.TXT", b"y"), ("1.txt", b"z")
    )
    assert rejected(path) == [("a.tar/0.TXT", 1, "two members have this name")]
    with tarfile.open(fileobj=io.BytesIO(read(path).rejects[0].raw)) as raw:
        assert raw.getnames() == ["0.txt", "0.cls", "0.TXT"]
    assert list(read(path).records) == ["s/1"]


def test_members_that_are_no_files(tmp_path):
    path = write_tar(
        tmp_path / "a.tar",
        special("0.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"),
        ("1.jpg", JPG),
        special("2.jpg", tarfile.LNKTYPE, linkname="1.jpg"),
        special("3.jpg", tarfile.CHRTYPE),
        special("4.jpg", tarfile.FIFOTYPE),
        special("5.jpg", tarfile.DIRTYPE),
        special("dir/", tarfile.DIRTYPE),
        special("link", tarfile.SYMTYPE, linkname="1.jpg"),
        ("README", b"x"),
    )
    assert rejected(path) == [
        ("a.tar/0.jpg", 1, "the member is a symbolic link"),
        ("a.tar/2.jpg", 3, "the member is a hard link"),
        ("a.tar/3.jpg", 4, "the member is a device"),
        ("a.tar/4.jpg", 5, "the member is a pipe"),
    ]
    assert list(read(path).records) == ["s/1"]


def gnu_tar():
    told = subprocess.run(["tar", "--version"], check=False, capture_output=True)
    return b"GNU" in told.stdout


@pytest.mark.skipif(not gnu_tar(), reason="only GNU tar writes sparse files")
@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=posix"]])
def test_sparse_files_are_refused(tmp_path, options):
    with (tmp_path / "0.bin").open("wb") as file:
        for place in range(30):
            file.seek(place << 20)
            file.write(b"data" * 1024)
    (tmp_path / "1.bin").write_bytes(b"x")
    command = ["tar", "-C", tmp_path, *options, "--sparse", "-cf", tmp_path / "a.tar"]
    subprocess.run([*command, "0.bin", "1.bin"], check=True)
    found = read(tmp_path / "a.tar")
    assert found.reasons() == [(1, "the member is a sparse file")]
    assert list(found.records) == ["s/1"]


def test_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.tar"
    data = tar_bytes(("0\udcff.txt", b"x"), ("1.txt", b"y"), form=tarfile.GNU_FORMAT)
    path.write_bytes(data)
    assert rejected(path) == [("a.tar/0\\xff.txt", 1, "the member's name is not UTF-8")]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names(tmp_path, form):
    names = ["a/" * 60 + "x.txt", "b/" * 100 + "y.txt", "ü" * 40 + ".txt"]
    if form != tarfile.USTAR_FORMAT:
        names.append("k" * 3000 + ".txt")
    path = write_tar(tmp_path / "a.tar", *[(name, b"v") for name in names], form=form)
    assert list(read(path).records) == [f"s/{name[:-4]}" for name in names]


THREE = [(f"{i}.{e}", b"%d" % i * 300) for i in range(3) for e in ("txt", "bin")]


def test_a_tar_cut_at_any_byte_loses_no_record_silently(tmp_path):
    data, path = tar_bytes(*THREE), tmp_path / "a.tar"
    whole = [f"s/{i}" for i in range(3)]
    for size in [*range(0, 6 * 1024 + 1024, 256), 6 * 1024 + 1, 5 * 1024 - 1]:
        path.write_bytes(data[:size])
        found = read(path)
        assert list(found.records) == whole[: len(found.records)]
        assert all(len(r["txt"]) == len(r["bin"]) == 300 for r in found.records.values())
        ended = size >= 6 * 1024 + 512
        assert len(found.rejects) == (0 if ended else 1), size
        assert len(found.records) >= size // 2048 - (0 if ended else 1)


def test_a_cut_compressed_tar(tmp_path):
    for name, pack in PACKERS.items():
        path = tmp_path / f"a{name}"
        data = pack(tar_bytes(*[(f"{i:03}.bin", os.urandom(5000)) for i in range(100)]))
        path.write_bytes(data[: len(data) // 2])
        found = read(path)
        assert len(found.rejects) == 1 and len(found.records) < 60
        assert list(found.records) == [f"s/{i:03}" for i in range(len(found.records))]
        path.write_bytes(data[:-6])
        assert len(read(path).rejects) == 1


def test_garbage_in_the_middle_ends_the_tar_with_one_reason(tmp_path):
    data = bytearray(tar_bytes(*THREE))
    data[2048:2060] = b"?" * 12
    (tmp_path / "a.tar").write_bytes(data)
    assert rejected(tmp_path / "a.tar") == [("a.tar/0", 1, "no tar header at byte 2048")]
    (tmp_path / "a.tar").write_bytes(b"no tar at all " * 100)
    assert rejected(tmp_path / "a.tar") == [("a.tar", None, "no tar header at byte 0")]


def test_tars_that_are_empty(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    write_tar(tmp_path / "b.tar")
    write_tar(tmp_path / "c.tar", ("0.txt", b"x"))
    found = read(tmp_path)
    assert list(found.records) == ["s/c.tar/0"]
    assert rejected(tmp_path) == [
        ("a.tar", None, "the file is empty"),
        ("b.tar", None, "the tar holds no member"),
    ]


def test_what_follows_the_end_mark_is_told(tmp_path):
    one = tar_bytes(("0.txt", b"x"))
    (tmp_path / "a.tar").write_bytes(one + one)
    found = read(tmp_path / "a.tar")
    assert list(found.records) == ["s/0"]
    assert found.reasons() == [(None, f"other bytes follow the end mark, at byte {len(one)}")]


def test_a_member_of_1_gib_is_refused_unread(tmp_path):
    size = 1 << 30
    info = tarfile.TarInfo("0.bin")
    info.size = size
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(info.tobuf())
        file.seek(size + -size % 512, os.SEEK_CUR)
        file.write(tar_bytes(("1.bin", b"x")))
    found = read(path)
    assert found.reasons() == [(1, "the record holds 1 GiB or more")]
    assert list(found.records) == ["s/1"]


def test_headers_without_end_are_refused_before_they_fill_the_memory(tmp_path):
    record = b"999999 comment=".ljust(999_998, b"x") + b"\n"
    pax = special("h", tarfile.XHDTYPE, size=len(record)).tobuf(tarfile.USTAR_FORMAT)
    endless = (pax + record + bytes(-len(record) % 512)) * 6
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(endless + tar_bytes(("0.txt", b"x")), 1))
    assert rejected(path) == [("a.tar.gz", None, "the headers at byte 0 are too long")]


def test_a_size_beyond_the_file_is_refused(tmp_path):
    info = tarfile.TarInfo("0.bin")
    info.size = 1 << 60
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096)
    assert rejected(tmp_path / "a.tar") == [
        ("a.tar/0", 1, "the tar is cut off within the member at byte 0")
    ]


def test_unreadable_files_are_one_reject(tmp_path):
    write_tar(tmp_path / "a.tar", ("0.txt", b"x"))
    (tmp_path / "b.tar").symlink_to(tmp_path / "gone.tar")
    found = read(tmp_path)
    assert list(found.records) == ["s/a.tar/0"]
    assert [bad.file for bad in found.rejects] == ["b.tar"]


@given(st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_bytes_never_crash(tmp_path, data):
    form = data.draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    whole = bytearray(tar_bytes(*THREE, ("k" * 200 + ".txt", b"x"), form=form))
    places = st.integers(0, len(whole) // 2)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    packed = data.draw(st.booleans())
    (tmp_path / "a.tar").write_bytes(gzip.compress(whole, 1) if packed else whole)
    found = read(tmp_path / "a.tar", data.draw(st.sampled_from([1, 1 << 30])))
    assert len(found.records) + len(found.rejects) <= 8
