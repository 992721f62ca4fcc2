"""What a guarded process does in tests: well, badly, or without end."""

import os
import signal
import stat
import time
from pathlib import Path

import pyarrow as pa

from geodata.sources.guard.guarded import shut_files


def echo(asked, say):
    for part in asked["parts"]:
        say({"part": part})
    say(pa.record_batch({"id": [len(asked["parts"])]}))


def whoami(asked, say):
    say({"child": os.getpid(), "server": os.getppid()})


def meet_damage(asked, say):
    say({"broken": ["it is"], "child": os.getpid()})


def crash(asked, say):
    say({"part": 1})
    os.kill(os.getpid(), getattr(signal, asked["signal"]))


def fail(asked, say):
    say({"part": 1})
    raise ValueError


def spin(asked, say):
    say({"part": 1})
    while True:
        pass


def hoard(asked, say):
    say({"part": 1})
    say({"part": len(bytes(asked["nbytes"]))})


def babble(asked, say):
    say({"part": 1})
    for descriptor in range(3, 32):
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"what is no frame")
        except OSError:
            continue


def sleep(asked, say):
    say({"part": 1})
    time.sleep(asked["sleep"])


def look_around(asked, say):
    path = Path(asked["path"])
    inside = path.read_text()
    shut_files()
    try:
        path.read_text()
    except OSError as error:
        say({"inside": inside, "then": error.strerror})
