"""The environment that Petastorm lives in, made once for all tests: 10 seconds, and then cached."""

import fcntl
import os
import subprocess
from functools import lru_cache

import pytest

from geodata.errors import StoreError
from geodata.jobs.petastorm import setup
from geodata.sources.petastorm import environment


@lru_cache
def ready():
    """Return the environment, making it if there is none; skip where PyPI is out of reach."""
    place = environment.default_folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            setup()
        except StoreError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no environment for Petastorm: {error}")
    return environment.needed()


def run_there(code, *arguments):
    """Run code in the environment, and return what it wrote to its output."""
    command = [str(ready().interpreter), "-I", "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


PICKLED = """
import pickle, sys
from decimal import Decimal
import numpy as np
from petastorm.codecs import *
from petastorm.unischema import Unischema, UnischemaField as F
sys.stdout.buffer.write(pickle.dumps(Unischema("Made", [{fields}]), {protocol}))
"""


def unischema(*fields, protocol=4):
    """Return the pickled Unischema of fields, given as code."""
    return run_there(PICKLED.format(fields=", ".join(fields), protocol=protocol))
