"""Modules with a function of the user's."""

import itertools
import sys
from contextlib import contextmanager

from geodata.sources import open_source

COUNTER = itertools.count()


@contextmanager
def module_here(tmp_path, monkeypatch):
    """Yield what opens a source from the code of a module in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"made_{next(COUNTER)}"

    def make(code, target="rows", **options):
        (tmp_path / f"{name}.py").write_text(code)
        return open_source(f"{name}:{target}", **options)

    yield make
    sys.modules.pop(name, None)
