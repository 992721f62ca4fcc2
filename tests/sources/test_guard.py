"""Processes that may die of what they do: what is known then, and what is left of them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from geodata.errors import StoreError
from geodata.sources.guard import guard

FUNCTIONS = "guarded_functions"
LONG = 60.0
"""Seconds after which a condition that is waited for counts as missed."""


@pytest.fixture(autouse=True)
def guards():
    """Nobody's processes before a test, nor after it."""
    guard.end_guards()
    yield
    guard.end_guards()


def ask(function, **request):
    return list(guard.ask(FUNCTIONS, function, request))


def who():
    (said,) = ask("whoami")
    return said


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_for(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_answer_has_its_parts_in_order():
    *parts, batch = ask("echo", parts=[1, "zwei", None])
    assert parts == [{"part": 1}, {"part": "zwei"}, {"part": None}]
    assert batch == pa.record_batch({"id": [3]})


def test_one_child_answers_until_it_meets_damage():
    first = who()
    assert who() == first
    (damaged,) = ask("meet_damage")
    assert damaged["child"] == first["child"]
    then = who()
    assert then["server"] == first["server"]
    assert then["child"] != first["child"]


@pytest.mark.parametrize(
    ("function", "request_", "reason"),
    [
        ("crash", {"signal": "SIGSEGV"}, "what reads it is ended by SIGSEGV"),
        ("crash", {"signal": "SIGKILL"}, "what reads it is ended by SIGKILL"),
        ("fail", {}, "reading it fails in a way that is not known"),
        ("hoard", {"nbytes": 1 << 30}, "reading it fails in a way that is not known"),
        ("spin", {}, "reading it comes to no end"),
        ("babble", {}, "what reads it has gone astray"),
    ],
)
def test_a_death_is_an_answer_and_the_next_question_is_answered(
    monkeypatch, function, request_, reason
):
    monkeypatch.setattr(guard, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(guard, "MEMORY", 256 << 20)
    seen = []
    with pytest.raises(guard.Died, match=reason) as raised:
        seen.extend(guard.ask(FUNCTIONS, function, request_))
    assert raised.value.endless == (function == "spin")
    assert ask("echo", parts=[2])[0] == {"part": 2}


def test_memory_that_is_granted_can_be_taken(monkeypatch):
    monkeypatch.setattr(guard, "MEMORY", 256 << 20)
    assert ask("hoard", nbytes=64 << 20)[-1] == {"part": 64 << 20}


def test_a_question_may_be_long():
    parts = ["x" * 1000] * 1000
    assert len(ask("echo", parts=parts)) == 1001


def test_files_are_shut_until_the_next_question(tmp_path):
    path = tmp_path / "a"
    path.write_text("inside")
    for _ in range(2):
        (said,) = ask("look_around", path=str(path))
        assert said == {"inside": "inside", "then": "Too many open files"}


def test_who_goes_before_the_end_ends_the_process():
    first = who()
    answer = guard.ask(FUNCTIONS, "echo", {"parts": [1, 2]})
    next(answer)
    answer.close()
    wait_for(lambda: is_gone(first["child"]) and is_gone(first["server"]))
    assert who()["server"] != first["server"]


def test_silence_is_an_error_of_the_environment(monkeypatch):
    first = who()
    monkeypatch.setattr(guard, "PATIENCE", 0.2)
    with pytest.raises(StoreError, match="said nothing"):
        ask("sleep", sleep=LONG)
    wait_for(lambda: is_gone(first["child"]))


def test_a_process_that_cannot_begin_is_an_error_of_the_environment():
    with pytest.raises(StoreError, match="is gone"):
        list(guard.ask("geodata.no_such_module", "echo", {}))


def test_answers_side_by_side_have_a_process_each():
    one = guard.ask(FUNCTIONS, "echo", {"parts": [1]})
    assert next(one) == {"part": 1}
    assert ask("echo", parts=[2])[0] == {"part": 2}
    assert list(one) == [pa.record_batch({"id": [1]})]
    assert len(guard._guards[FUNCTIONS]) == 2


def test_nothing_is_left_open():
    who()
    before = open_files()
    for _ in range(5):
        who()
        with pytest.raises(guard.Died):
            ask("fail")
        next(guard.ask(FUNCTIONS, "echo", {"parts": [1]}))
        who()
    assert open_files() == before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_one_of_its_own():
    first = who()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(who()["server"]).encode())
            guard.end_guards()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        other = int(told.read())
    os.waitpid(child, 0)
    assert other != first["server"]
    wait_for(lambda: is_gone(other))
    assert who() == first


@pytest.mark.parametrize("function", ["whoami", "sleep"])
def test_nothing_is_left_of_a_process_that_is_killed(function):
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from geodata.sources import guard
(said,) = guard.ask({FUNCTIONS!r}, "whoami", {{}})
print(said["child"], said["server"], flush=True)
list(guard.ask({FUNCTIONS!r}, {function!r}, {{"sleep": 0.5}}))
time.sleep({LONG})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asking:
        pids = [int(pid) for pid in asking.stdout.readline().split()]
        assert not any(map(is_gone, pids))
        asking.kill()
    wait_for(lambda: all(map(is_gone, pids)))
