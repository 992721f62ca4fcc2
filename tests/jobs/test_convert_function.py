"""Conversions of what a user's function yields, and what the command line says of its mistakes."""

import subprocess
import sys

import geodata
from geodata.sources import Reading

PARTED = """
def rows(part, parts):
    for n in range(part, 10, parts):
        yield {"n": n, "part": part}
"""


def _cli(*arguments, cwd):
    command = [sys.executable, "-m", "geodata.cli", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_conversion_is_the_same_with_one_worker_and_with_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "parted_corpus.py").write_text(PARTED)
    digests = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        reading = Reading(parts=3)
        report = geodata.convert("parted_corpus:rows", out, reading=reading, workers=workers)
        assert (report.records_in, report.records_out, report.shards) == (10, 10, 3)
        digests.append(sorted(file.name for file in (out / "data").rglob("*.parquet")))
    assert digests[0] == digests[1]


def test_the_command_line_shows_a_traceback_only_when_asked(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def rows():\n    yield {'a': 1}\n    raise OSError('broken')"
    )
    quiet = _cli("convert", "mine:rows", "out", cwd=tmp_path)
    assert quiet.returncode == 1
    assert quiet.stderr.strip() == (
        "error: the function raised OSError: broken (file mine:rows, row 2). "
        "Mend it; `geodata -v` shows where it was raised"
    )
    loud = _cli("-v", "convert", "mine:rows", "out", cwd=tmp_path)
    assert loud.returncode == 1
    assert 'mine.py", line 3, in rows' in loud.stderr


def test_an_edit_of_the_function_starts_a_new_version_or_is_refused(tmp_path):
    code = "def rows():\n    for n in range(3):\n        yield {{'a': n * {}}}"
    (tmp_path / "mine.py").write_text(code.format(1))
    assert _cli("convert", "mine:rows", "out", cwd=tmp_path).returncode == 0
    again = _cli("convert", "mine:rows", "out", cwd=tmp_path)
    assert "nothing to do" in again.stdout
    (tmp_path / "mine.py").write_text(code.format(10))
    edited = _cli("convert", "mine:rows", "out", cwd=tmp_path)
    assert edited.returncode == 0, edited.stderr
    assert "v2" in edited.stdout
