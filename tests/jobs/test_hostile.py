"""Hostile corpora through the command line: each fault is a rejected record or one clear line."""

import base64
import gzip
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
import zlib

import pyarrow.parquet as pq
import pytest
from PIL import Image

import geodata
from geodata.sources.text import lines, rows

GOOD = b'{"n": 1, "text": "one"}\n{"n": 2, "text": "two"}\n'
TOO_LONG = "the record holds 1 GiB or more"


def start(cwd, *arguments):
    command = [sys.executable, "-m", "geodata.cli", "convert", *map(str, arguments), "--json"]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(child, code=0):
    """Return the one JSON object of a run; an error is one line on stderr besides."""
    out, told = child.communicate(timeout=120)
    assert child.returncode == code, out + told
    assert "Traceback" not in told
    assert len(told.splitlines()) == (code != 0), told
    return json.loads(out)


def convert(cwd, *arguments, code=0):
    return ended(start(cwd, *arguments, "--workers", "1"), code)


def set_aside(cwd, source, **options):
    """Convert with a quarantine; return the report and what lies there: (file, row): reason, bytes.

    What was rejected is counted by reason, and all of it is in the quarantine.
    """
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    report = convert(cwd, source, "out", "--on-error", "quarantine", *given)
    found = {}
    for file in sorted((cwd / "out/quarantine").rglob("*.jsonl")):
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            assert "\n" not in line["reason"]
            found[line["file"], line["row"]] = line["reason"], base64.b64decode(line["raw"])
    assert report["records_in"] == report["records_out"] + report["rejected"]
    assert report["rejected"] == sum(report["reasons"].values()) == len(found)
    return report, found


def fill(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def image(kind="PNG", size=(40, 30)):
    file = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(file, kind)
    return file.getvalue()


def keys(cwd, dest="out"):
    files = sorted((cwd / dest / "data").rglob("*.parquet"))
    return sorted(key for file in files for key in pq.read_table(file)["__key__"].to_pylist())


def test_lines_of_every_fault(tmp_path):
    packed = gzip.compress(GOOD * 2000, mtime=0)
    bad = {
        ("broken.jsonl", 2): ("invalid JSON at column 8", b'{"n": 3,]}\n'),
        ("cut.jsonl", 3): ("the record is cut off", b'{"n": 5, "te'),
        ("latin.jsonl", 1): ("invalid UTF-8", '{"text": "mañana"}\n'.encode("latin-1")),
        ("list.jsonl", 1): ("", b"[1, 2]\n"),
        ("twice.jsonl", 1): ("", b'{"n": 1, "n": 2}\n'),
        ("zeros.jsonl", 1): ("", bytes(5000)),
        ("cut.jsonl.gz", None): ("the gzip stream ends too soon", b""),
        ("rubbish.jsonl.gz", None): ("the gzip stream is damaged", b""),
        ("empty.jsonl.gz", None): ("", b""),
        ("gone.jsonl", None): ("the file cannot be read: No such file", b""),
    }
    raw = {key: value[1] for key, value in bad.items()}
    fill(
        tmp_path / "in",
        {
            "empty.jsonl": b"",
            "good.jsonl": GOOD,
            "broken.jsonl": b'{"n": 2}\n' + raw["broken.jsonl", 2] + b'{"n": 4}\n',
            "cut.jsonl": GOOD + raw["cut.jsonl", 3],
            **{name: raw[name, 1] for name in ("latin.jsonl", "list.jsonl", "twice.jsonl")},
            "zeros.jsonl": raw["zeros.jsonl", 1],
            "cut.jsonl.gz": packed[: len(packed) // 2],
            "rubbish.jsonl.gz": b"\x1f\x8b" + b"rubbish" * 50,
            "empty.jsonl.gz": b"",
        },
    )
    (tmp_path / "in/gone.jsonl").symlink_to("nowhere")
    report, found = set_aside(tmp_path, "in")
    partly = {key for key in found if key[0] == "cut.jsonl.gz"}
    assert found.keys() - partly == bad.keys() - partly
    for key in found.keys() - partly:
        assert found[key][1] == bad[key][1], key
    for key in ("rubbish.jsonl.gz", None), ("gone.jsonl", None), ("latin.jsonl", 1):
        assert found[key][0].startswith(bad[key][0]), found[key]
    assert any(found[key][0].startswith("the gzip stream ends too soon") for key in partly)
    assert report["records_out"] == len(keys(tmp_path)) == len(set(keys(tmp_path)))
    assert {"in/good.jsonl#1", "in/broken.jsonl#3", "in/cut.jsonl.gz#1"} <= set(keys(tmp_path))


def claiming(width, height):
    """Return a PNG of one pixel whose header says that it has more."""
    data = bytearray(image(size=(1, 1)))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def test_images_of_every_fault(tmp_path):
    whole = image("JPEG", (200, 200))
    bad = {
        "bomb.png": claiming(50_000, 50_000),
        "cut.jpg": whole[: len(whole) // 2],
        "empty.png": b"",
        "text.png": b"not an image at all",
        "zeros.gif": bytes(1000),
    }
    fill(tmp_path / "in", {**bad, "good.png": image(), "good.jpg": whole})
    report, found = set_aside(tmp_path, "in")
    assert {name: raw for (name, _), (_, raw) in found.items()} == bad
    reasons = {name: reason for (name, _), (reason, _) in found.items()}
    assert reasons["bomb.png"] == "the image claims too many pixels"
    assert reasons["cut.jpg"] == "the JPEG is truncated"
    assert reasons["empty.png"] == "the file is empty"
    assert keys(tmp_path) == ["in/good.jpg", "in/good.png"]
    assert report["records_out"] == 2


def test_a_png_that_claims_what_it_has_not_is_rejected_when_images_are_verified(tmp_path):
    lying = claiming(5_000, 5_000)
    fill(tmp_path / "in", {"lying.png": lying, "good.png": image()})
    report = convert(tmp_path, "in", "out", "--verify-images", "--on-error", "skip")
    assert (report["records_out"], report["rejected"]) == (1, 1)
    assert keys(tmp_path) == ["in/good.png"]


@pytest.mark.parametrize("suffix", [".txt", ".png"])
def test_a_gigantic_file_is_rejected_unread(tmp_path, suffix):
    good = {".txt": b"good", ".png": image()}[suffix]
    fill(tmp_path / "in", {f"a{suffix}": good})
    with (tmp_path / f"in/b{suffix}").open("wb") as file:
        file.truncate(3 << 30)
    report, found = set_aside(tmp_path, "in")
    assert found == {(f"b{suffix}", None): (TOO_LONG, b"")}
    assert report["bytes_in"] == (3 << 30) + len(good)
    assert keys(tmp_path) == [f"in/a{suffix}"]


def test_bombs_are_rejected_and_the_rest_is_read(tmp_path):
    zeros = gzip.compress(bytes(64 << 20), mtime=0)
    fill(tmp_path / "in", {"a.txt": b"good", "bomb.txt.gz": zeros * 33})
    with zipfile.ZipFile(tmp_path / "in/b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.txt", "good too")
        archive.writestr("lying.txt", bytes(1 << 20))
        archive.writestr("gone.txt", b"x" * 50)
    data = bytearray((tmp_path / "in/b.zip").read_bytes())
    entry = data.rindex(b"lying.txt") - 46
    data[entry + 24 : entry + 28] = (100).to_bytes(4, "little")
    entry = data.rindex(b"gone.txt") - 46
    data[entry + 24 : entry + 28] = ((1 << 31) + 5).to_bytes(4, "little")
    (tmp_path / "in/b.zip").write_bytes(data)
    _, found = set_aside(tmp_path, "in")
    assert {name: reason for (name, _), (reason, _) in found.items()} == {
        "bomb.txt.gz": TOO_LONG,
        "b.zip/gone.txt": TOO_LONG,
        "b.zip/lying.txt": "the member does not have the size that the archive declares",
    }
    assert keys(tmp_path) == ["in/a.txt", "in/b.zip/good.txt"]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz"])
def test_long_records_are_whole_and_too_long_ones_are_not_held(tmp_path, monkeypatch, suffix):
    """As with 64 MiB and 1 GiB: here the bounds are 200 kB and 20 MB."""
    for module in (lines, rows):
        monkeypatch.setattr(module, "MAX_RECORD", 20_000_000)
    monkeypatch.setattr(lines, "_LONG", 200_000)
    monkeypatch.setattr(rows, "_HELD", 1_000)
    monkeypatch.setattr(rows, "_MOST_RAW", 100_000)
    texts = ["short", "l\nöng\U0001f30d" * 100_000, "x" * 20_000_001, "\n" * 1_000_000, "short too"]
    if "jsonl" in suffix:
        texts[3] = "\u00e9" * 6_000_000
        text = "".join(json.dumps({"v": v}, ensure_ascii=False) + "\n" for v in texts)
    else:
        text = "v\n" + "".join(f'"{v}"\n' for v in texts)
    data = text.encode()
    (tmp_path / f"in{suffix}").write_bytes(gzip.compress(data) if "gz" in suffix else data)
    report = geodata.convert(
        tmp_path / f"in{suffix}", tmp_path / "out", on_error="quarantine", workers=1
    )
    assert report.reasons == {TOO_LONG: 1}
    files = sorted((tmp_path / "out/data").rglob("*.parquet"))
    assert [v for file in files for v in pq.read_table(file)["v"].to_pylist()] == [
        text for number, text in enumerate(texts) if number != 2
    ]


def test_a_quote_that_never_closes_is_one_record_without_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_MOST_RAW", 1_000)
    fill(tmp_path / "in", {"a.csv": b'a,b\n1,2\n3,"' + b"on and on\n" * 5000})
    report = geodata.convert(tmp_path / "in", tmp_path / "out", on_error="skip", workers=1)
    assert (report.records_out, report.rejected) == (1, 1)
    where = "before the end of the file: it takes the last 5,000 lines"
    assert report.reasons == {f"a quoted field is not closed {where}": 1}


def test_links_pipes_and_sockets(tmp_path):
    fill(tmp_path / "in/deep", {"a.jsonl": GOOD})
    (tmp_path / "in/deep/loop").symlink_to("..")
    (tmp_path / "in/round.jsonl").symlink_to("round.jsonl")
    (tmp_path / "in/folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "in/pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tmp_path)
        listener.bind("in/socket.jsonl")
        report, found = set_aside(tmp_path, "in")
    assert report["ignored"] == {"link to a folder": 1, "not a regular file": 2}
    (((name, row), (reason, raw)),) = found.items()
    assert (name, row, raw) == ("round.jsonl", None, b"")
    assert reason == "the file cannot be read: Too many levels of symbolic links"
    assert keys(tmp_path) == ["in/deep/a.jsonl#1", "in/deep/a.jsonl#2"]
    done = ended(start(tmp_path, "in/pipe.jsonl", "no"), 2)
    assert done["message"] == "neither a file nor a folder"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/mem is Linux's")
@pytest.mark.parametrize("suffix", [".txt", ".png", ".tar", ".wav"])
def test_a_file_whose_disk_fails_is_one_rejected_record(tmp_path, suffix):
    (tmp_path / "in").mkdir()
    (tmp_path / f"in/bad{suffix}").symlink_to("/proc/self/mem")
    report, found = set_aside(tmp_path, "in")
    assert found == {(f"bad{suffix}", None): ("the file cannot be read: Input/output error", b"")}
    assert (report["records_in"], report["records_out"]) == (1, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_one_rejected_record(tmp_path):
    fill(tmp_path / "in", {"a.jsonl": GOOD, "b.jsonl": GOOD})
    (tmp_path / "in/b.jsonl").chmod(0)
    _, found = set_aside(tmp_path, "in")
    assert found == {("b.jsonl", None): ("the file cannot be read: Permission denied", b"")}


def test_names_that_are_not_utf8(tmp_path):
    fill(tmp_path / "in", {"ok.jsonl": GOOD, os.fsdecode(b"caf\xe9.jsonl"): GOOD})
    fill(
        tmp_path / "odd",
        {"sp ace\n.txt": b"line feed", "d\u00e9j\u00e0 \U0001f30d.txt": b"", "%23#": b"x"},
    )
    _, found = set_aside(tmp_path, "in")
    assert found == {("caf\\xe9.jsonl", None): ("the file's name is not UTF-8", b"")}
    convert(tmp_path, "odd", "named", "--kind", "text")
    assert keys(tmp_path, "named") == [
        "odd/%23#",
        "odd/d\u00e9j\u00e0 \U0001f30d.txt",
        "odd/sp ace\n.txt",
    ]


def test_failing_names_file_and_row_and_leaves_nothing_half_written(tmp_path):
    lines = b"".join(b'{"n": %d, "text": "%s"}\n' % (n, b"x" * 90) for n in range(30_000))
    fill(tmp_path / "in", {"a.jsonl": lines, "b.jsonl": GOOD + b"{broken\n", "c.jsonl": lines})
    for workers in ("1", "2"):
        child = start(tmp_path, "in", "out", "--shard-size", "500kB", "--workers", workers)
        error = ended(child, 1)
        assert (error["error"], error["file"], error["row"]) == ("TooManyBadRecords", "b.jsonl", 3)
        assert "broken" not in json.dumps(error)
        assert not list((tmp_path / "out").glob("metadata/*"))
        assert not list((tmp_path / "out").rglob("*.tmp"))
    fill(tmp_path / "in", {"b.jsonl": GOOD})
    report = convert(tmp_path, "in", "out", "--shard-size", "500kB")
    assert (report["records_out"], report["version"]) == (60_002, "v000001")


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 8 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    mounted = shutil.which("mount") and subprocess.run(command, capture_output=True, check=False)
    if not mounted or mounted.returncode:
        pytest.skip("a small filesystem cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("form", ["parquet", "webdataset", "hdf5", "tfrecord"])
def test_a_full_disk_is_told_and_the_same_command_goes_on_after_room_was_made(
    tmp_path, small_disk, form
):
    fill(tmp_path / "in", {f"{n}.txt": os.urandom(50_000).hex().encode() for n in range(40)})
    (small_disk / "ballast").write_bytes(bytes(13 << 19))
    command = ["in", small_disk / "out", "--format", form, "--shard-size", "500kB"]
    error = convert(tmp_path, *command, code=4)
    assert (error["error"], error["message"]) == (
        "StoreError",
        "cannot write: No space left on device",
    )
    assert "make room and run the same command again" in error["hint"]
    assert not list((small_disk / "out").glob("metadata/v*"))
    (small_disk / "ballast").unlink()
    made = set((small_disk / "out").glob("data/**/*.*"))
    report = convert(tmp_path, *command)
    assert (report["records_out"], report["version"]) == (40, "v000001")
    assert made <= set((small_disk / "out").glob("data/**/*.*"))
    assert not list((small_disk / "out").rglob("*.tmp"))


WAITING = """
import pathlib, time

def records():
    yield {"n": 1}
    pathlib.Path("inside").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    yield {"n": 2}
"""


@pytest.mark.parametrize("other", ["waiting:records", "other.jsonl"])
def test_of_two_that_convert_into_one_place_one_wins_and_the_other_says_so(tmp_path, other):
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "other.jsonl").write_bytes(GOOD)
    first = start(tmp_path, "waiting:records", "out", "--workers", "1")
    try:
        while not (tmp_path / "inside").exists():
            assert first.poll() is None, first.communicate()
            time.sleep(0.01)
        if other == "other.jsonl":
            assert convert(tmp_path, other, "out")["version"] == "v000001"
        else:
            assert (
                "running in another process" in convert(tmp_path, other, "out", code=4)["message"]
            )
        (tmp_path / "go").touch()
        if other == "other.jsonl":
            error = ended(first, 4)
            assert error["error"] == "CommitConflict"
            assert keys(tmp_path, "out")[:2] == ["other.jsonl#1", "other.jsonl#2"]
        else:
            assert ended(first)["records_out"] == 2
    finally:
        first.kill()
        first.communicate()
    assert [path.name for path in (tmp_path / "out/metadata").glob("v*")] == ["v000001.json"]
