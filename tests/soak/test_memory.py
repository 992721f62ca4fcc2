"""Conversion stays under a hard limit of 1 GiB of memory, however large the corpus is.

`pytest -m soak -n 0 -s tests/soak/test_memory.py --corpora DIR`, where DIR holds `text/` and
`tabular/postcodes.jsonl`. A corpus is made by repetition and has 20 GB, or as many as
`GEODATA_SOAK_GB` says, or the disk lets be. The limit is that of a cgroup; where none can be made,
the memory of the processes is watched instead, which is said.
"""

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import count, cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import geodata

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

LIMIT = 1 << 30
GB = 10**9
WANTED = float(os.environ.get("GEODATA_SOAK_GB", "20")) * GB
SPARE = 5 * GB
"""Bytes of the disk that are left alone."""

TOO_LONG = "the record holds 1 GiB or more"


@pytest.fixture
def corpora(request):
    given = request.config.getoption("--corpora")
    if given is None:
        pytest.fail("say where the corpora are: --corpora DIR")
    return Path(given).absolute()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory, which is emptied again."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def bytes_for(place, share):
    """Return how large the corpus can be if `share` of its bytes have to be stored."""
    room = (shutil.disk_usage(place).free - SPARE) / share
    if room < WANTED:
        print(f"\nonly {room / GB:.1f} GB instead of {WANTED / GB:.1f}: the disk is too full")
    return min(WANTED, room)


def parents():
    """Yield folders in which a cgroup may be made, each with the names of its files."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(","):
            for folder in (f"/sys/fs/cgroup/memory{own}", "/sys/fs/cgroup/memory"):
                yield Path(folder), "memory.limit_in_bytes", "memory.oom_control", "total_rss"
        elif not controllers:
            for folder in (Path(f"/sys/fs/cgroup{own}"), Path(f"/sys/fs/cgroup{own}").parent):
                yield folder, "memory.max", "memory.events", "anon"


@contextmanager
def limited():
    """Yield a cgroup of at most 1 GiB and the names of its files, or None."""
    for parent, limit, events, resident in parents():
        group = parent / f"geodata-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
            yield group, events, resident
            return
        except (FileNotFoundError, PermissionError):
            continue
        finally:
            remove(group)
    yield None


def remove(group):
    for _attempt in range(100):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.1)
    return None


def figures(path):
    return dict(line.split()[:2] for line in path.read_text().splitlines() if " " in line)


def shares(session):
    """Return the bytes that the processes of a session hold, shared ones divided among them."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                total += int(figures(folder / "smaps_rollup").get("Pss:", 0)) << 10
        except OSError:
            continue
    return total


def watched(child, measure):
    """Wait for a process; return what it printed, and the most that `measure` found meanwhile."""
    most = [0]

    def watch():
        while child.poll() is None:
            most[0] = max(most[0], measure())
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, told = child.communicate()
    watcher.join()
    return out, told, most[0]


def convert(source, *options, raw=None):
    """Convert with two workers under the limit; return the report, and print what it took.

    `raw` is how many bytes the source has when it is unpacked.
    """
    command = [sys.executable, "-m", "geodata.cli", "convert", str(source), "out", "--json"]
    command += ["--workers", "2", "--on-error", "quarantine", *options]
    with limited() as cgroup:
        enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup and cgroup[0])]
        child = subprocess.Popen(
            [*enter, *command] if cgroup else command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if cgroup:
            group, events, resident = cgroup
            how = "in a cgroup"
            out, told, most = watched(
                child, lambda: int(figures(group / "memory.stat").get(resident, 0))
            )
            killed = int(figures(group / events).get("oom_kill", 0))
        else:
            how, killed = "watched, no cgroup can be made", 0
            out, told, most = watched(child, lambda: shares(child.pid))
    assert killed == 0, f"killed for its memory, after {most >> 20} MiB"
    assert child.returncode == 0, told
    report = json.loads(out)
    given, raw = report["records_in"], raw or report["bytes_in"]
    assert given == report["records_out"] + report["rejected"] + report["duplicates"]
    seconds = report["seconds"]
    print(
        f"\n{source}: {raw / GB:.2f} GB, {given:,} in = {report['records_out']:,} "
        f"out + {report['rejected']:,} rejected + {report['duplicates']:,} repeats; most memory "
        f"{most >> 20} MiB of {LIMIT >> 20} ({how}); {seconds:.0f} s, {given / seconds:,.0f} "
        f"records/s, {raw / seconds / 1e6:.1f} MB/s; "
        f"out {report['bytes_out'] / GB:.2f} GB"
    )
    assert most < LIMIT
    return report


def repeated(files, folder, nbytes):
    """Fill a folder with links to files, over and over, up to about `nbytes`; return the count."""
    sizes = {path: path.stat().st_size for path in files}
    made = 0
    for number, path in zip(count(), cycle(files), strict=False):
        if made >= nbytes:
            return number
        made += sizes[path]
        target = folder / f"{number // 1000:05}" / f"{number % 1000:03}{path.suffix}"
        if number % 1000 == 0:
            target.parent.mkdir(parents=True)
        try:
            target.hardlink_to(path)
        except OSError:
            target.symlink_to(path)
    raise AssertionError("no files")


def packed(path, data, nbytes):
    """Write `data` over and over, compressed so that it takes little room; return how often."""
    times = 1 + (64 << 20) // len(data)
    frame = pa.compress(data * times, "zstd", asbytes=True)
    frames = max(1, round(nbytes / (len(data) * times)))
    with path.open("wb") as file:
        for _ in range(frames):
            file.write(frame)
    return frames * times


def rows_stored():
    listing = geodata.list_files("out")
    return sum(pq.read_metadata(shard.file).num_rows for shard in listing.shards)


def postcodes(corpora, most):
    """Return lines of the corpus of postcodes, up to `most` bytes."""
    with (corpora / "tabular/postcodes.jsonl").open("rb") as file:
        return b"".join(file.readlines(most))


def test_a_folder_of_text_files(corpora, place):
    """Of some length: a conversion takes half a kilobyte of memory for each file of its source."""
    files = sorted(path for path in (corpora / "text").rglob("*") if path.is_file())
    files = [path for path in files if path.stat().st_size >= 12_000]
    number = repeated(files, place / "in", bytes_for(place, 0.35))
    report = convert("in", "--kind", "text")
    assert (report["records_out"], report["rejected"]) == (number, 0)
    assert rows_stored() == number


def test_one_compressed_stream_of_lines(corpora, place):
    data = postcodes(corpora, 1 << 20)
    times = packed(place / "in.jsonl.zst", data, bytes_for(place, 0.2))
    report = convert("in.jsonl.zst", raw=times * len(data))
    assert report["records_out"] == times * data.count(b"\n") == rows_stored()


def test_tables(corpora, place):
    lines = postcodes(corpora, 20 << 20).splitlines()
    rows = [json.loads(line) for line in lines]
    with (place / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    number = repeated([place / "table.csv"], place / "in", bytes_for(place, 0.4))
    report = convert("in")
    assert (report["records_out"], report["rejected"]) == (number * len(rows), 0)
    assert rows_stored() == number * len(rows)


def test_repeats_and_bad_records(corpora, place):
    """Every record but the first of its kind is left out; one line in a hundred is broken."""
    good = postcodes(corpora, 8 << 20).splitlines(keepends=True)
    lines = [line for row in zip(*[iter(good)] * 99, strict=False) for line in (*row, b"{bad\n")]
    (place / "lines.jsonl").write_bytes(b"".join(lines))
    number = repeated([place / "lines.jsonl"], place / "in", bytes_for(place, 0.1))
    report = convert("in", "--dedupe")
    bad = lines.count(b"{bad\n")
    assert report["rejected"] == number * bad
    assert report["records_out"] == len(set(lines)) - 1 == rows_stored()
    files = Path(report["quarantine"]).glob("*.jsonl")
    assert sum(file.read_bytes().count(b"\n") for file in files) == number * bad


def large(path, start=b""):
    """Write a file of over 2 GiB that takes no room."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate((2 << 30) + 100)


def records_of_2_gib(folder):
    """Write files of each kind that hold a record of 2 GiB beside good ones; return their kinds."""
    pictures = {".png": b"\x89PNG\r\n\x1a\n", ".txt": b"", ".wav": b"RIFF"}
    for suffix, start in pictures.items():
        large(folder / f"whole{suffix}", start)
    large(folder / "line.jsonl", b'{"a": 1}\n{"a": "')
    large(folder / "line.csv", b"a,b\n1,2\n3,")
    zeros = gzip.compress(bytes(64 << 20), mtime=0)
    with (folder / "packed.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(b'{"a": 1}\n{"a": "', mtime=0))
        file.writelines(islice(cycle([zeros]), 33))
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    "name",
    ["whole.txt", "whole.png", "whole.wav", "line.jsonl", "line.csv", "packed.jsonl.gz"],
)
def test_one_record_of_2_gib_is_refused(place, name):
    assert name in records_of_2_gib(place)
    report = convert(name)
    good = not name.startswith("whole")
    assert (report["records_out"], report["rejected"]) == (good, 1)
    assert report["reasons"] == {TOO_LONG: 1}


def test_a_quote_that_never_closes_is_one_record(place):
    with (place / "open.csv").open("wb") as file:
        file.write(b'a,b\n1,2\n3,"')
        for _ in range(300):
            file.write(b"and so on and so forth, line by line\n" * 30_000)
    report = convert("open.csv")
    assert (report["records_out"], report["rejected"]) == (1, 1)
